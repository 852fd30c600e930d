"""`explorer.thresholds(p)`: sliders, and what is shown without a kernel; and `compiler.open` as HTML."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch.nn import functional

import compiler
import explorer
from compiler.backend import build
from compiler.backend.context import Thresholds
from compiler.backend.opened import Opened
from compiler.options import OptionError
from explorer import opened_html
from explorer.thresholds import WITH_GRAPHS_ONLY, ThresholdControl, all_thresholds, described


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.layer_norm(x @ weight, weight.shape[1:])).sum(0)


@pytest.fixture(scope="module")
def opened() -> Opened:
    return compiler.open(block, torch.randn(8, 16, requires_grad=True), torch.randn(16, 32, requires_grad=True))


@pytest.fixture
def control(opened: Opened) -> ThresholdControl:
    return explorer.thresholds(opened)


def sliders(control: ThresholdControl) -> Any:
    control.widget()
    return control._view


def test_every_threshold_is_explained_by_the_docstring_that_declares_it() -> None:
    found = {item.name: item.words for item in all_thresholds()}
    assert list(found) == [item.name for item in fields(Thresholds)]
    assert all(len(words) > 20 for words in found.values()), found


def test_words_may_go_on_in_the_next_line() -> None:
    doc = "All.\n\none    first\n       and more\ntwo    second\n"
    assert described(doc, ["one", "two"]) == {"one": "first and more", "two": "second"}


def test_a_slider_runs_the_passes_again_and_shows_what_changed(control: ThresholdControl) -> None:
    view = sliders(control)
    assert "as at first" in view.text.value
    before = control.opened.totals
    view.sliders["fused_loops"].value = 2
    assert control.opened.thresholds.fused_loops == 2
    assert control.opened.totals.kernels > before.kernels
    assert "<td" in view.numbers.value
    assert str(len(control.opened.fused.kernels)) in view.numbers.value
    assert "+    kernel" in view.text.value
    assert "-    kernel" in view.text.value
    assert control.start.totals == before
    view.usual.click()
    assert control.opened.totals == before
    assert view.sliders["fused_loops"].value == Thresholds().fused_loops
    assert "as at first" in view.text.value


def test_another_graph_and_another_stage_can_be_chosen(control: ThresholdControl) -> None:
    view = sliders(control)
    view.graph.value = "backward"
    assert "program backward" in view.text.value
    view.stage.value = "lowered"
    assert str(opened_lines(control.opened.backward)[1].strip()[:12]) in view.text.value


def opened_lines(opened: Opened) -> list[str]:
    return str(opened.lowered).splitlines()


def test_a_threshold_that_only_the_code_follows_shows_there(control: ThresholdControl) -> None:
    view = sliders(control)
    view.sliders["parallel_work"].value = 1
    assert "as at first; the code has changed" in view.text.value
    view.stage.value = "code"
    assert "- at first, + now" in view.text.value
    assert "+    #pragma omp parallel for" in view.text.value


def test_an_error_of_a_pass_is_shown_in_place_and_what_was_there_stays(opened: Opened) -> None:
    def picky(program: Any, ctx: Any) -> Any:
        if ctx.thresholds.fused_loops < 8:
            raise ValueError("<b>too few</b>")
        return program

    view = sliders(control := explorer.thresholds(opened.replace("fuse", picky)))
    shown = view.text.value
    view.sliders["fused_loops"].value = 4
    assert "ValueError" in view.problem.value
    assert "&lt;b&gt;too few" in view.problem.value
    assert view.text.value == shown
    assert control.opened.thresholds.fused_loops == 64
    view.sliders["fused_loops"].value = 16
    assert view.problem.value == ""


def test_python_moves_the_sliders_too(control: ThresholdControl) -> None:
    view = sliders(control)
    control.move(inline_cost=8, fused_loops=5)
    assert (view.sliders["inline_cost"].value, control.opened.thresholds.fused_loops) == (8, 5)
    with pytest.raises(OptionError, match="did you mean fused_loops"):
        control.move(fused_loop=5)
    with pytest.raises(TypeError, match=r"takes what compiler.open gives; got function"):
        explorer.thresholds(block)  # type: ignore[arg-type]


@pytest.mark.skipif(not build.compiler(), reason="no C++ compiler")
def test_time_is_measured_where_it_is_asked_for(control: ThresholdControl) -> None:
    view = sliders(control)
    assert "time" not in view.numbers.value
    view.measure.value = True
    assert "measuring" in view.numbers.value
    view._worker.shutdown(wait=True)
    assert "time of the graph" in view.numbers.value
    assert "measuring" not in view.numbers.value


def test_a_graph_for_a_gpu_that_is_not_here_has_other_thresholds_and_no_time(opened: Opened) -> None:
    here, there = (sliders(explorer.thresholds(p)) for p in (opened, opened.on("h100")))
    assert "row_buffer" in here.sliders
    assert "row_buffer" not in there.sliders
    assert "split_length" in there.sliders
    assert not {*WITH_GRAPHS_ONLY} & {*here.sliders, *there.sliders}
    assert {*WITH_GRAPHS_ONLY} < {field.name for field in fields(Thresholds)}
    there.measure.value = True
    assert "is not here" in there.numbers.value


def test_without_a_kernel_it_is_a_table_of_what_other_values_would_change(
    control: ThresholdControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("explorer.thresholds"), "MOST_SECONDS", 600.0)
    bundle = control._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    for text in bundle.values():
        assert "fused_loops" in text
        assert "the most loops that one kernel may have" in text
        assert "fused_loops=1" in text
    effects = control.effects
    assert effects.iloc[0].kernels == control.opened.totals.kernels
    assert (effects[effects.threshold == "fused_loops"].kernels >= effects.iloc[0].kernels).all()
    assert not effects[effects.value == 64].shape[0]
    monkeypatch.setattr(import_module("explorer.thresholds"), "MOST_SECONDS", 0.0)
    assert "trying more takes long" in str(control)


def test_the_extension_shows_opened_calls_as_html_and_takes_that_back(opened: Opened) -> None:
    InteractiveShell.clear_instance()  # a terminal's, which shows no HTML
    shell = InteractiveShell.instance()
    explorer.load_ipython_extension(shell)
    try:
        data, _ = shell.display_formatter.format(opened)
        assert "program forward" in data["text/html"]
        assert "<script" not in data["text/html"]
        assert data["text/plain"].startswith("block: ")
        assert "rgba" in shell.display_formatter.format(opened.diff("lowered", "fused"))[0]["text/html"]
        assert "Every stage computes" in shell.display_formatter.format(opened.check())[0]["text/html"]
    finally:
        explorer.unload_ipython_extension(shell)
        InteractiveShell.clear_instance()
    assert "text/html" not in shell.display_formatter.format(opened)[0]


def test_html_of_an_opened_call_escapes_what_the_user_wrote(opened: Opened) -> None:
    def weird(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    weird.__qualname__ = "<img src=x>"
    assert "<img" not in opened_html.opened_html(compiler.open(weird, torch.randn(4)))
