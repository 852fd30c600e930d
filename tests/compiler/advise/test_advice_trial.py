"""Advice is tried on the user's own call, without changing the process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from compiler.advise import Advice, Change, Gain, advise
from compiler.advise.trial import CannotApplyError, Result, agreement, run_trial
from compiler.engine import Explored, explore
from compiler.option_checks import parse_options
from tests.compiler.advise.advice_cases import printing


def explored(fn: Any, *args: Any) -> Explored:
    """Explore with a backend that builds no code, which compiles quickly."""
    return explore(fn, args, options=parse_options(target="cpu", stages=("captured",), backend="aot_eager"))


def trial_of(found: Explored, change: Change, numbers: str = "", gain: Gain | None = None) -> Any:
    assert found.call is not None
    return run_trial(
        Advice("test", "a change", "", gain=gain, change=change, numbers=numbers), found.record, found.call
    )


@pytest.fixture(scope="module")
def linear() -> Explored:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Sequential(nn.Linear(32, 32)))
    return explored(model, torch.randn(4, 32))


def test_rewrite_removes_the_break_and_keeps_the_result() -> None:
    found = explored(printing, torch.randn(100, 100))
    (advice,) = (item for item in advise(found.record) if item.rule == "break")
    assert found.call is not None
    before = printing.__code__
    trial = run_trial(advice, found.record, found.call)
    assert trial.same == "equal"
    assert trial.rounds >= 5
    assert trial.low <= trial.gained <= trial.high  # type: ignore[operator]
    assert printing.__code__ is before


def test_forward_and_backward_are_timed_with_gradients(linear: Explored) -> None:
    trial = trial_of(linear, Change("eager", eager=True))
    assert trial.what == "forward and backward"
    assert trial.same in ("equal", "close")
    assert trial.compile_before is None


def test_settings_apply_to_one_side_and_are_restored(linear: Explored) -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    settings = ("torch.set_num_threads(1)", 'torch.set_float32_matmul_precision("medium")')
    trial = trial_of(linear, Change("settings", settings=settings))
    assert trial.same in ("equal", "close", "differs")
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (threads, precision)


def test_autocast_trial_reports_changed_numbers(linear: Explored) -> None:
    trial = trial_of(linear, Change("autocast", autocast="bfloat16"), numbers="products in bfloat16")
    assert trial.same == "differs"
    assert trial.numbers.startswith("numbers change, as expected")


def test_compile_time_is_compared_if_claimed(linear: Explored) -> None:
    gain = Gain(1e-3, "compile", "by hand")
    trial = trial_of(linear, Change("regions", regions=("0", "2")), gain=gain)
    assert trial.compile_before > 0
    assert trial.compile_after > 0
    assert (trial.expected, trial.of) == (1e-3, "compile")


def test_trial_repeats_recompiling_calls() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    options = parse_options(target="cpu", stages=("captured",), backend="aot_eager")
    found = explore(f, calls=[(torch.randn(4, 8),), (torch.randn(4, 8),), (torch.randn(5, 8),)], options=options)
    assert found.call is not None
    assert [call.args[0].shape[0] for call in found.call.later] == [5]
    (advice,) = (item for item in advise(found.record) if item.rule == "recompile")
    trial = run_trial(advice, found.record, found.call)
    assert trial.compile_before is not None
    assert (trial.graphs_before, trial.graphs_after) == (2, 1)
    assert trial.same in ("equal", "close")


def test_model_gradients_and_generator_stay_unchanged() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1)).train(), torch.randn(4, 8)
    found = explored(model, x)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trial_of(found, Change("eager", eager=True))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_regions_missing_from_the_model_are_refused(linear: Explored) -> None:
    with pytest.raises(CannotApplyError, match=r"no module that the call runs has layers\.0 to layers\.3"):
        trial_of(linear, Change("regions", regions=("layers.0", "layers.3")))


def test_exception_with_the_change_is_reported(linear: Explored) -> None:
    with pytest.raises(CannotApplyError, match=r"the call raises \w+ with the change"):
        trial_of(linear, Change("a backend that does not exist", {"backend": "no_such_backend"}))


def test_advice_without_a_change_cannot_be_tried(linear: Explored) -> None:
    with pytest.raises(ValueError, match="by hand"):
        trial_of(linear, Change("think again"))


def results(*values: Any) -> list[Result]:
    return [Result(f"output {number}", value) for number, value in enumerate(values)]


def test_tolerance_depends_on_the_dtype() -> None:
    x = torch.ones(4)
    assert agreement(results(x), results(x))[0] == "equal"
    assert agreement(results(x), results(x * (1 + 1e-6)))[0] == "close"
    assert agreement(results(x), results(x * 1.01))[0] == "differs"
    assert agreement(results(x.bfloat16()), results(x.bfloat16() * 1.01))[0] == "close"
    assert agreement(results(x), results(x * torch.nan))[0] == "differs"
    assert agreement(results(x), results(x[:2]))[0] == "differs"
    assert agreement(results(x, 3), results(x, 4))[0] == "differs"
    assert agreement(results(x), results(x, x))[0] == "differs"


def test_random_calls_are_not_comparable() -> None:
    x = torch.ones(4)
    assert agreement(results(x), results(x * 2), draws=True)[0] == "not comparable"
    assert agreement(results(x), results(x), draws=True)[0] == "equal"
