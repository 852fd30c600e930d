"""The parts of a measurement: copies, warm-up, rounds, memory, noise notes, calls until compiling has paid."""

from __future__ import annotations

import functools
import gc
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compiler.calls.call import Call
from compiler.calls.copies import CannotCopyError, copy_call
from compiler.process import without_collection
from compiler.record.measure_facts import Candidate
from compiler.timing import noise
from compiler.timing.rounds import CpuClock, calls_a_round, settle, time_in_turns, turns, warm_up
from compiler.timing.spread import Spread, calls_to_pay, saved_seconds, speed_up, speed_up_spread
from compiler.torch_api import apart, generated_code
from compiler.torch_api.allocator import cpu_peak_bytes

WEIGHT = nn.Parameter(torch.ones(3))


def weighted(x: Tensor) -> Tensor:
    return x * WEIGHT


def copy_of(fn: Any, *args: Any, **kwargs: Any) -> Any:
    return copy_call(Call(fn, fn, args, kwargs))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_module_copy_has_separate_weights_and_keeps_ties() -> None:
    model = Tied()
    made = copy_of(model, torch.ones(1, 4)).fn
    assert made.first.weight is made.second.weight
    assert made.first.weight is not model.first.weight
    assert torch.equal(made.first.weight, model.first.weight)


def test_weight_passed_as_argument_stays_shared() -> None:
    model = nn.Linear(4, 4)
    made = copy_of(model, model.weight)
    assert made.args[0] is made.fn.weight
    assert len(made.leaves()) == 2


def test_tensor_passed_twice_is_copied_once_with_strides() -> None:
    x = torch.randn(4, 6).t()
    made = copy_of(torch.add, x, other=x)
    assert made.args[0] is made.kwargs["other"]
    assert made.args[0].stride() == x.stride()
    assert made.args[0].data_ptr() != x.data_ptr()


def test_nonleaf_tensor_becomes_a_leaf_in_the_copy() -> None:
    x = torch.randn(4, requires_grad=True) * 2
    made = copy_of(torch.relu, x)
    assert made.args[0].is_leaf
    assert made.args[0].requires_grad


def test_function_is_copied_with_closure_and_globals() -> None:
    model, seen = nn.Linear(3, 3), []

    def call(x: Tensor) -> Tensor:
        seen.append(1)
        return model(weighted(x))

    made = copy_of(call, torch.ones(3))
    made.fn(*made.args).sum().backward()
    assert seen == []
    assert model.weight.grad is None
    assert WEIGHT.grad is None
    assert len(made.leaves()) == 3
    assert all(leaf.grad is not None for leaf in made.leaves())


def test_bound_method_and_partial_copy_their_module() -> None:
    model = Tied()
    for fn in (model.forward, functools.partial(model, torch.ones(1, 4))):
        made = copy_of(fn, *(() if isinstance(fn, functools.partial) else (torch.ones(1, 4),)))
        made.fn(*made.args).sum().backward()
        assert model.first.weight.grad is None


def test_copied_optimizer_trains_copied_weights() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    before = model.weight.detach().clone()
    made = copy_of(step, torch.ones(3))
    made.fn(*made.args)
    assert torch.equal(model.weight, before)
    assert not torch.equal(made.modules[0].weight, before)


def test_uncopyable_module_is_reported() -> None:
    class Guarded(nn.Module):
        def __deepcopy__(self, _memo: object) -> None:
            raise RuntimeError("there can be only one")

    with pytest.raises(CannotCopyError, match="a Guarded can't be copied: RuntimeError: there can be only one"):
        copy_of(Guarded(), torch.ones(1))


class Told:
    """A clock with given times."""

    def __init__(self, seconds: list[float]) -> None:
        self.left = seconds

    def seconds(self, function: Callable[[], Any], _calls: int) -> float:
        function()
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def synchronize(self) -> None:
        pass


def test_calls_that_compile_come_before_the_warmup() -> None:
    graphs = [1]

    def step(most: int) -> None:
        graphs[0] += graphs[0] < most

    for most, limit, found in ((1, 8, (0, False)), (4, 8, (3, False)), (100, 8, (7, True))):
        graphs[0] = 1
        settled = settle(lambda most=most: step(most), lambda: graphs[0], limit)
        assert (settled.graphs, settled.has_limit) == found


def test_warmup_ends_when_calls_stop_improving() -> None:
    falling = [2.0**-number for number in range(20)]
    warm = warm_up(lambda: None, Told([*falling, falling[-1]]), seconds=100)
    assert warm.is_stable
    assert 20 < warm.calls <= 30
    assert warm.seconds == falling[-1]


def test_warmup_of_slow_calls_ends_after_three() -> None:
    warm = warm_up(lambda: None, Told([5.0]), seconds=1)
    assert (warm.calls, warm.seconds) == (3, 5.0)


def test_unstable_warmup_is_reported() -> None:
    warm = warm_up(lambda: None, Told([0.9**number for number in range(200)]), seconds=5)
    assert not warm.is_stable


def test_candidates_are_called_in_turns() -> None:
    order: list[str] = []
    functions = {name: functools.partial(order.append, name) for name in "abc"}
    found = list(turns(functions, dict.fromkeys("abc", 1), 2, Told([1.0])))
    assert order == ["a", "b", "c", "a", "b", "c"]
    assert [name for name, _ in found] == order


def test_a_round_lasts_about_twenty_milliseconds() -> None:
    assert calls_a_round(1e-3) == 20
    assert calls_a_round(10.0) == 1
    assert calls_a_round(10.0, least=5) == 5
    assert calls_a_round(0.0) == 1000


def test_cpu_clock_counts_seconds_per_call() -> None:
    x = torch.randn(64, 64)
    found = time_in_turns({"once": lambda: x @ x, "many times": lambda: [x @ x for _ in range(50)]})
    assert found["many times"].seconds > found["once"].seconds
    assert CpuClock().seconds(lambda: None, 10) < found["many times"].seconds


def test_garbage_collection_is_disabled_while_timing() -> None:
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_quartiles_of_the_rounds() -> None:
    assert Spread.of_numbers([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of_numbers([2.0]) == Spread(2.0, 2.0, 2.0)


def candidate(*rounds: float, **facts: Any) -> Candidate:
    spread = Spread.of_numbers(list(rounds))
    return Candidate("eager", seconds=spread.middle, low=spread.low, high=spread.high, rounds=rounds, **facts)


def test_varying_rounds_state_their_uncertainty() -> None:
    varied = candidate(0.91, 1.0, 1.09, 0.91, 1.0, 1.09, 1.0, 0.91, 1.09)
    assert list(noise.notes([varied], [], None)) == ["eager varied by 18 %: read its time as ±9 %"]


def test_rounds_that_agree_have_no_note() -> None:
    assert list(noise.notes([candidate(1.0, 1.01, 1.0, 0.99)], [1980.0, 1965.0], 0.1)) == []


def test_drift_between_halves_is_reported() -> None:
    drifted = candidate(1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 1.1, 1.1)
    assert any("became slower by 10 %" in note for note in noise.notes([drifted], [], None))


def test_clock_changes_and_busy_machine_are_reported() -> None:
    notes = list(noise.notes([], [1980.0, 1500.0], 100.0 * (os.cpu_count() or 1)))
    assert "the GPU's clock was between 1500 and 1980 MHz while it was measured" in notes
    assert any(note.startswith("the machine was busy") for note in notes)


def test_break_even_number_of_calls() -> None:
    eager = Candidate("eager", seconds=3e-3, rounds=(3e-3,))
    faster = Candidate("inductor", seconds=2e-3, rounds=(2e-3,), compile_seconds=10.0)
    slower = Candidate("inductor", seconds=4e-3, rounds=(4e-3,), compile_seconds=10.0)
    assert (calls_to_pay(faster, eager), speed_up(faster, eager)) == (10_000, 1.5)
    assert calls_to_pay(replace(faster, seconds=2.7, rounds=(2.7,)), replace(eager, seconds=5.7, rounds=(5.7,))) == 4
    assert math.isinf(calls_to_pay(slower, eager) or 0)
    assert calls_to_pay(eager, eager) is None
    assert calls_to_pay(Candidate("broken", problem="no"), eager) is None


def test_speedups_are_paired_by_round() -> None:
    """A machine that becomes slower for both does not change the ratio."""
    eager, faster = candidate(2.0, 4.0, 6.0, 8.0), candidate(1.0, 2.0, 3.0, 4.0)
    assert speed_up_spread(faster, eager) == Spread(2.0, 2.0, 2.0)
    steady = replace(eager, rounds=tuple(one + 1.0 for one in faster.rounds))
    assert saved_seconds(faster, steady) == Spread(1.0, 1.0, 1.0)
    assert saved_seconds(replace(faster, rounds=()), eager) == Spread(2.5, 0.25, 4.75)
    assert speed_up_spread(Candidate("broken"), eager) is None


def test_common_variation_is_separated_from_speedup_variation() -> None:
    eager = candidate(2.0, 4.0, 6.0, 8.0, 2.0, 4.0, 6.0, 8.0)
    faster = replace(candidate(1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0), name="inductor")
    notes = list(noise.notes([eager, faster], [], None))
    assert (
        "the speed-up of inductor, taken round by round, varied by 0 % only: the machine's speed changed for both"
        in notes
    )


def test_a_steady_speed_up_is_steadier_than_both_times() -> None:
    """A ratio that varies half as much as one time means that only that time varied more."""
    eager = candidate(2.0, 4.0, 6.0, 8.0, 2.0, 4.0, 6.0, 8.0)
    other = replace(candidate(*(1 + 0.35 * seconds for seconds in eager.rounds)), name="inductor")
    ratio = speed_up_spread(other, eager)
    assert ratio is not None
    least, most = sorted(Spread.of_numbers(each.rounds).relative for each in (eager, other))
    assert least / 2 < ratio.relative < most / 2
    assert not [note for note in noise.notes([eager, other], [], None) if "round by round" in note]


def test_peak_is_the_memory_live_at_once() -> None:
    x = torch.randn(1000, 1000)
    square = 4_000_000

    def call() -> None:
        first = x + 1
        second = first * 2
        del first
        third = second @ second
        del second, third

    def held() -> None:
        first = x + 1
        second = first * 2
        third = second @ second
        del first, second, third

    assert cpu_peak_bytes(call) == pytest.approx(2 * square, rel=0.001)
    assert cpu_peak_bytes(held) == pytest.approx(3 * square, rel=0.001)


def test_profiler_is_silent_and_leaves_no_setting(capfd: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    cpu_peak_bytes(lambda: None)
    assert dict(os.environ) == before
    assert capfd.readouterr().err == ""


def test_kernels_and_calls_in_generated_code_are_counted() -> None:
    code = """
aten = torch.ops.aten
cpp_fused_add_0 = async_compile.cpp_pybinding(['float*'], r'''void kernel()''')
triton_poi_1 = async_compile.triton('triton_poi_1', '''def triton_poi_1(x): pass''')

def call(args):
    cpp_fused_add_0(arg0_1, buf0)
    triton_poi_1.run(buf0, 64, stream=stream0)
    triton_poi_1.run(buf1, 64, stream=stream0)
    extern_kernels.mm(buf0, arg0_1, out=buf1)
    buf2 = torch.ops.aten.convolution.default(buf1)
    buf3 = aten.sort.default(buf2)
    return (buf3, )
"""
    assert (generated_code.kernels(code), generated_code.calls(code)) == (2, 6)


def test_guard_check_is_timed_and_its_compilation_dropped() -> None:
    seconds: list[float] = []
    compilations: list[object] = []

    def backend(module: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        compilations.append(module)
        return module.forward

    def doubled(x: Tensor) -> Tensor:
        return x * 2

    with apart.forget_compilations(seconds.append):
        compiled = torch.compile(doubled, backend=backend)
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    assert len(seconds) == len(compilations) == 1
    assert 0 < seconds[0] < 0.01
    compiled(torch.ones(3))
    assert len(compilations) == 2
    torch.compiler.reset()
