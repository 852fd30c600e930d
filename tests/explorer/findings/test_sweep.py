"""Sweeps over sizes and dtypes; no test asserts a time.

Real calls use a backend that needs no compiler; the reports on speed-ups by size use hand-written numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from compiler.calls.call import Call
from compiler.record.options import OptionError
from compiler.timing.candidate_times import Progress
from compiler.timing.sweep import Axes, resize, scaled_dims
from explorer import explore, load
from explorer.findings.sweep.sweep import Spot, Sweep
from explorer.findings.sweep.words import break_even_size, pays_from
from explorer.findings.timing import again as timing
from explorer.findings.timing.compared import Ratio, beside_eager
from explorer.run.run import Run
from tests.explorer.findings.timed_record import MS, candidate


class Classifier(nn.Module):
    """A classifier of rows, with labels that a cast must not change; keeps its last arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(x), labels)


class OnlyEvenRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2, 4).sum(1)


def explored(model: nn.Module, *args: torch.Tensor) -> Run:
    return explore(model, *args, backend="aot_eager", stages=("captured",))


@pytest.fixture(scope="module")
def classifier() -> Run:
    torch.manual_seed(0)
    return explored(Classifier(), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))


@pytest.fixture(scope="module")
def swept(classifier: Run) -> Sweep:
    return classifier.timing.sweep(batch=[2, 16], dtype=[torch.float32, torch.float64], rounds=1)


# Real calls


def test_each_size_and_dtype_times_eager_and_compiled(swept: Sweep) -> None:
    table = swept.table
    assert table[["batch", "dtype", "name"]].to_numpy().tolist() == [
        [size, dtype, name]
        for dtype in ("float32", "float64")
        for size in (2, 16)
        for name in ("eager", "aot_eager")
    ]  # fmt: skip
    assert table["seconds"].notna().all()
    assert table["problem"].isna().all()
    assert table.loc[table["name"] == "aot_eager", "speedup"].notna().all()


def test_sweep_prints_and_plots_its_result(swept: Sweep) -> None:
    assert "It was stopped" not in str(swept)
    told = str(swept)
    assert "Classifier: time of one call (forward and backward) on the CPU" in told
    assert "aot_eager, float32: compiling pays" in told
    assert "1 round of each: how far the times vary is hardly known." in told
    [axes] = swept.plot().axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["aot_eager, float32", "aot_eager, float64"]
    shown = swept._repr_mimebundle_()
    assert shown["text/plain"] == told
    assert "data:image/svg+xml" in shown["text/html"]


def test_user_state_is_unchanged() -> None:
    model, x = Classifier(), torch.randn(6, 4, requires_grad=True)
    labels = torch.zeros(6, dtype=torch.int64)
    run = explored(model, x, labels)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    run.timing.sweep(batch=3, dtype="bfloat16", rounds=1)
    assert [parameter.dtype for parameter in model.parameters()] == [torch.float32] * 2
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in (*model.parameters(), x))
    assert x.shape == (6, 4)
    assert torch.equal(torch.get_rng_state(), state)


def test_failing_point_keeps_its_reason_and_others_continue() -> None:
    swept = explored(OnlyEvenRows(), torch.randn(4, 4)).timing.sweep(batch=[3, 8], rounds=1)
    table = swept.table.set_index("batch")
    assert "shape '[-1, 2, 4]' is invalid" in table.loc[3, "problem"]
    assert table.loc[8, "seconds"].notna().all()
    assert "batch 3: RuntimeError: shape '[-1, 2, 4]' is invalid" in str(swept)


def test_interrupt_keeps_finished_points(classifier: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes while the second of three points is compiled."""

    @contextmanager
    def interrupting() -> Iterator[Callable[[Progress], None]]:
        def hear(progress: Progress) -> None:
            if str(progress).startswith("point 2 of 3 (size 4), aot_eager: compiling"):
                raise KeyboardInterrupt

        yield hear

    monkeypatch.setattr(timing, "progress_line", interrupting)
    swept = classifier.timing.sweep(batch=[2, 4, 8], rounds=1)
    assert swept.table["batch"].unique().tolist() in ([2], [2, 4])
    assert swept.table.loc[swept.table["batch"] == 2, "seconds"].notna().all()
    assert "It was stopped after 1 of 3 points." in str(swept)


def test_inputs_can_be_made_by_a_function(classifier: Run) -> None:
    made: list[int] = []

    def inputs(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        made.append(size)
        return torch.ones(size, 4), torch.zeros(size, dtype=torch.int64)

    swept = classifier.timing.sweep(batch=[1, 5], inputs=inputs, rounds=1)
    assert set(made) == {1, 5}
    assert swept.table["seconds"].notna().all()


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda run: run.timing.sweep(batch=0), "a size is a whole number, at least 1"),
        (lambda run: run.timing.sweep(batch=2.5), "a size is a whole number"),
        (lambda run: run.timing.sweep(dtype=torch.int64), "floating-point dtypes"),
        (lambda run: run.timing.sweep(batch=2, dims={"y": 0}), "no such argument; it has x, labels"),
        (lambda run: run.timing.sweep(batch=2, dims={"x": 2}), "no such dimension in \\[6, 4\\]"),
        (lambda run: run.timing.sweep(dims={"x": 0}), "give sizes too"),
        (lambda run: run.timing.sweep(batch=2, mode="fastest"), "fastest"),
    ],
)
def test_invalid_arguments_are_refused_in_words(
    classifier: Run, ask: Callable[[Run], Sweep], words: str
) -> None:  # fmt: skip
    with pytest.raises((OptionError, TypeError), match=words):
        ask(classifier)


def test_loaded_run_has_no_call_to_sweep(classifier: Run, tmp_path: object) -> None:
    with pytest.raises(ValueError, match="no call to time"):
        load(classifier.save(f"{tmp_path}/run.json")).timing.sweep(batch=2)


# Inputs of another size


def call_of(*args: object, **kwargs: object) -> Call:
    def fn(x: object, y: object = None, *, mask: object = None, **rest: object) -> object:
        return x

    return Call(fn, fn, args, kwargs)


def test_batch_tensors_share_the_first_dimension() -> None:
    call = call_of(torch.ones(8, 3), torch.ones(3, 8), mask=torch.ones(8), other=torch.tensor(1.0))
    assert scaled_dims(call, Axes((2,))) == {0: (0,), 2: (0,)}


def test_other_dimensions_are_chosen_by_argument_name() -> None:
    call = call_of([torch.ones(2, 8), torch.ones(3, 8)], mask=torch.ones(1, 8, 8), other=torch.ones(8))
    dims = {"x": 1, "mask": (1, 2), "other": 0}
    assert scaled_dims(call, Axes((2,), dims=dims)) == {0: (1,), 1: (1,), 2: (1, 2), 3: (0,)}


def test_resizing_cuts_or_repeats_rows() -> None:
    rows = torch.arange(3)
    assert resize(rows, (0,), 2).tolist() == [0, 1]
    assert resize(rows, (0,), 7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    image = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    larger = resize(image, (0,), 5)
    assert larger.is_contiguous(memory_format=torch.channels_last)
    assert larger.requires_grad
    assert larger.is_leaf


# The conclusion


def ratio(value: float, spread: float = 0.02) -> Ratio:
    return Ratio(value, value * (1 - spread), value * (1 + spread))


def test_break_even_size_is_interpolated_logarithmically() -> None:
    assert break_even_size((8, ratio(0.5)), (32, ratio(2))) == pytest.approx(16)
    assert break_even_size((8, ratio(1.1)), (32, ratio(2))) is None
    told = pays_from([(8, ratio(0.5)), (32, ratio(2))])
    assert told == "from about 16 on, between 8 (0.50 ×) and 32 (2.00 ×)"


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ([(8, ratio(0.5)), (64, ratio(0.9))], "never in this range (8 to 64): 0.90 × at best, at 64"),
        ([(8, ratio(0.5)), (64, ratio(1.01))],
         "never in this range (8 to 64): 1.01 × at best, at 64, which is within the noise"),
        ([(8, ratio(1.5)), (64, ratio(2))], "from the smallest size that was measured on: 8 (1.50 ×)"),
        ([(8, ratio(1.01)), (64, ratio(2))], "somewhere between 8 (1.01 ×) and 64 (2.00 ×)"),
        ([(8, ratio(2)), (64, ratio(0.5)), (128, ratio(1.01))],
         "from the smallest size that was measured on: 8 (2.00 ×); but not at 64 (0.50 ×); "
         "at 128 (1.01 ×) the noise hides it"),
        ([(8, ratio(2))], "at 8 (2.00 ×)"),
        ([(8, ratio(0.5))], "never at 8: 0.50 × at best"),
        ([], "could not be compared with eager"),
    ],
)  # fmt: skip
def test_break_even_size_in_words(measured: list[tuple[int, Ratio]], words: str) -> None:
    assert pays_from(measured) == words


def by_hand() -> Sweep:
    """Half as fast at 8, twice as fast at 32, and a size with a failed compilation."""
    spots = [
        Spot(size, "", tuple(beside_eager([candidate("eager", 2 * MS), candidate("inductor", seconds * MS)])))
        for size, seconds in ((8, 4), (32, 1))
    ]
    return Sweep("f", "the CPU, 2 threads", "", "in turns", (*spots, Spot(64, "", problem="<b>OOM</b>")), 3)


def test_plot_has_points_error_bars_and_eager_line() -> None:
    [axes] = by_hand().plot().axes
    [container] = axes.containers
    points = container.lines[0]
    assert points.get_ydata().tolist() == [0.5, 2]
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [1]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["8", "32"]
    assert axes.get_yscale() == "log"


def test_dtypes_without_sizes_are_not_interpolated() -> None:
    dtypes = ("float32", "bfloat16")
    spots = [Spot(None, dtype, at.timed) for dtype, at in zip(dtypes, by_hand().spots[:2], strict=True)]
    swept = replace(by_hand(), spots=tuple(spots), total=2)
    assert swept.sentences() == []
    [axes] = swept.plot().axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["inductor, float32", "inductor, bfloat16"]


def test_failure_reason_is_escaped() -> None:
    assert "&lt;b&gt;OOM&lt;/b&gt;" in by_hand()._repr_mimebundle_()["text/html"]


def test_all_points_are_inside_the_plot() -> None:
    sweep = by_hand()
    low, high = sweep.plot().axes[0].get_ylim()
    speedups = sweep.table["speedup"].dropna()
    assert low < min(0.9, *speedups)
    assert high > max(1.1, *speedups)


def test_sweep_without_comparisons_has_a_table_only() -> None:
    failed = replace(by_hand(), spots=by_hand().spots[2:])
    with pytest.raises(ValueError, match="no point of this sweep"):
        failed.plot()
    assert failed.table["problem"].tolist() == ["<b>OOM</b>"]
    assert "svg" not in failed._repr_mimebundle_()["text/html"]
