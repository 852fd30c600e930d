"""Timing a call with several candidates: what is compared, what counts as one call, what stays unchanged."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.guards import DeletedGuardManagerWrapper

from compiler.calls.call import Call
from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record.measure_facts import Candidate
from compiler.record.options import OptionError, Options
from compiler.timing.candidate_times import Measured, Plan, Progress, measure
from compiler.timing.candidates import ALL, ON_CPU, specs
from tests.compiler.models import MLP


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, because threads that wait for each other are slow on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Normed(nn.Module):
    """A model with buffers that training mutates."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.dropout(self.linear(x), 0.5, self.training))


def timed(fn: Any, *args: Any, **plan: Any) -> Measured:
    plan.setdefault("asked", ["aot_eager"])
    return measure(Call(fn, fn, args), Options(), Plan(rounds=3, **plan))


def names(found: Measured) -> list[str]:
    return [candidate.name for candidate in found.candidates]


def of(found: Measured, name: str) -> Candidate:
    return next(candidate for candidate in found.candidates if candidate.name == name)


def test_cpu_default_candidates_and_the_omitted_are_named() -> None:
    chosen, left_out = specs(True, Options(), gpu=False)
    assert [spec.name for spec in chosen] == ["eager", "aot_eager", "inductor"]
    assert len(chosen) == len(ON_CPU)
    assert "max-autotune" in left_out
    assert "--time=all" in left_out


def test_gpu_times_every_mode() -> None:
    chosen, left_out = specs(None, Options(), gpu=True)
    assert [spec.name for spec in chosen] == [
        "eager", "aot_eager", "inductor", "inductor reduce-overhead", "inductor max-autotune-no-cudagraphs",
        "inductor max-autotune",
    ]  # fmt: skip
    assert len(chosen) == len(ALL)
    assert left_out == ""


def test_cell_options_are_among_the_candidates() -> None:
    chosen, _ = specs(True, parse_options(mode="max-autotune"), gpu=False)
    assert chosen[-1].name == "inductor max-autotune"
    chosen, _ = specs(True, parse_options(options={"max_autotune": True}), gpu=False)
    assert (chosen[-1].name, chosen[-1].settings) == ("inductor with the cell's options", {"max_autotune": True})


def test_candidates_are_named_by_mode_and_backend() -> None:
    chosen, _ = specs("default, reduce-overhead,cudagraphs", Options(), gpu=False)
    assert [spec.name for spec in chosen] == ["eager", "inductor", "inductor reduce-overhead", "cudagraphs"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("reduce_overhead", "did you mean 'reduce-overhead'?"),
        ("indutor", "did you mean 'inductor'?"),
        (3, "time=3: it is True, False, 'all', or names"),
    ],
)
def test_unknown_candidate_is_refused(asked: Any, expected: str) -> None:
    with pytest.raises(OptionError) as told:
        parse_options(time=asked)
    assert expected in str(told.value)


def test_call_is_timed_with_its_backward_if_any() -> None:
    x = torch.randn(4, 8)
    assert of(timed(Normed(), x), "eager").what == "forward and backward"
    assert of(timed(Normed(), x, backward=False), "eager").what == "forward"
    assert of(timed(torch.relu, x), "eager").what == "forward"
    assert of(timed(Normed(), x, optimizer="AdamW"), "eager").what == "training step"


def test_missing_backward_is_refused() -> None:
    with pytest.raises(OptionError, match="nothing that has a gradient"):
        timed(torch.relu, torch.randn(4), backward=True)


def test_unknown_optimizer_is_refused() -> None:
    with pytest.raises(OptionError, match="did you mean 'AdamW'"):
        timed(Normed(), torch.randn(4, 8), optimizer="adamw")


def test_training_function_is_a_training_step() -> None:
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    before = copy.deepcopy(model.state_dict())
    assert of(timed(step, torch.randn(4, 8)), "eager").what == "training step"
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_interleaved_rounds_give_median_and_quartiles() -> None:
    found = timed(MLP(), torch.randn(8, 64))
    assert names(found) == ["eager", "aot_eager"]
    for candidate in found.candidates:
        assert len(candidate.rounds) == 3
        assert candidate.seconds == sorted(candidate.rounds)[1]
        assert 0 < candidate.low <= candidate.seconds <= candidate.high  # type: ignore[operator]
    assert of(found, "eager").compile_seconds is None
    assert (of(found, "aot_eager").compile_seconds or 0) > 0
    assert of(found, "aot_eager").graphs == 1
    assert (of(found, "aot_eager").host.guards or 0) > 0  # type: ignore[union-attr]


def test_measurement_states_method_and_machine() -> None:
    found = timed(MLP(), torch.randn(8, 64)).measurement
    assert (found.device, found.threads) == ("cpu", torch.get_num_threads())
    assert found.device_name
    assert "median and quartiles of 3 rounds in turns, each of calls for about 20 ms" in found.method
    assert f"torch.utils.benchmark, {found.threads} threads" in found.method


def test_user_model_is_unchanged() -> None:
    model, x = Normed(), torch.randn(4, 8, requires_grad=True)
    model(x).sum().backward()
    state = copy.deepcopy(model.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    versions = [parameter._version for parameter in model.parameters()]
    random, value, gradient = torch.get_rng_state(), x.detach().clone(), x.grad.clone()  # type: ignore[union-attr]
    timed(model, x, optimizer="AdamW")
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    for parameter, before in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, before)  # type: ignore[arg-type]
    assert [parameter._version for parameter in model.parameters()] == versions
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(x, value)
    assert torch.equal(x.grad, gradient)  # type: ignore[arg-type]


def test_user_process_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    import torch._dynamo.config as dynamo_config

    settings = {name: getattr(dynamo_config, name) for name in ("suppress_errors", "recompile_limit")}
    environment, folders = dict(os.environ), set(Path(tempfile.gettempdir()).glob("tcompile-time-*"))
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()

    def loud(x: Tensor) -> Tensor:
        print("called")  # noqa: T201 - as a user's function may
        return x.sin()

    timed(loud, torch.randn(4), asked=["eager"])
    assert {name: getattr(dynamo_config, name) for name in settings} == settings
    assert {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"} == {
        name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"
    }
    assert set(Path(tempfile.gettempdir()).glob("tcompile-time-*")) == folders
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, grad)
    assert capsys.readouterr().out == ""


def test_user_compiled_code_is_unchanged() -> None:
    model, x, compilations = MLP(), torch.randn(8, 64), []

    def backend(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        compilations.append(module)
        return module.forward

    compiled = torch.compile(model, backend=backend)
    compiled(x)
    timed(model, x)
    compiled(x)
    assert len(compilations) == 1
    entries = _debug_get_cache_entry_list(MLP.forward.__code__)
    assert len([entry for entry in entries if not isinstance(entry.guard_manager, DeletedGuardManagerWrapper)]) == 1
    torch.compiler.reset()


def test_candidates_start_with_equal_weights_and_random_numbers() -> None:
    seen: list[Tensor] = []

    def backend(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            results = module(*args)
            seen.append(results[0].detach().clone())
            return results

        return run

    def other(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return backend(module, inputs)

    torch.manual_seed(0)
    timed(Normed(), torch.randn(4, 8), asked=[backend], backward=False)
    first = seen[0]
    seen.clear()
    torch.manual_seed(0)
    timed(Normed(), torch.randn(4, 8), asked=["aot_eager", other], backward=False)
    assert torch.equal(seen[0], first)


def test_failing_candidate_has_a_problem_others_continue() -> None:
    def broken(_module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        raise RuntimeError("no code today")

    found = timed(MLP(), torch.randn(8, 64), asked=[broken, "aot_eager"])
    assert names(found) == ["eager", "broken", "aot_eager"]
    assert "no code today" in of(found, "broken").problem
    assert (of(found, "broken").seconds, of(found, "broken").rounds) == (None, ())
    assert of(found, "aot_eager").seconds is not None


def test_candidate_failing_later_has_no_time() -> None:
    def tires(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        calls = 0

        def run(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 5:
                raise RuntimeError("tired")
            return module(*args)

        return run

    found = timed(MLP(), torch.randn(8, 64), asked=[tires, "aot_eager"])
    assert of(found, "tires").problem == "RuntimeError: tired"
    assert of(found, "tires").seconds is None
    assert len(of(found, "aot_eager").rounds) == 3


def test_interrupt_keeps_finished_candidates() -> None:
    told: list[str] = []

    def stop(progress: Progress) -> None:
        told.append(str(progress))
        if progress.candidate == "cudagraphs":
            raise KeyboardInterrupt

    model = MLP()
    plan = Plan(asked=["aot_eager", "cudagraphs"], rounds=3)
    found = measure(Call(model, model, (torch.randn(8, 64),)), Options(), plan, stop)
    assert names(found) == ["eager", "aot_eager"]
    assert found.measurement.interrupted
    assert all("timed by itself" in candidate.notes[-1] for candidate in found.candidates)
    assert told[0] == "eager: the first call (1 of 3)"
    assert told[-1] == "cudagraphs: compiling (3 of 3)"


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x.sin() * 2


def test_recompilations_are_no_part_of_a_call() -> None:
    with torch._dynamo.config.patch(recompile_limit=4):
        found = timed(Counting(), torch.randn(8))
    notes = [candidate.notes for candidate in found.candidates]
    assert notes[0] == ()
    (note,) = [note for note in notes[1] if "recompile limit" in note]
    assert "compiled 3 graphs more" in note
    assert found.candidates[1].graphs == 1


def test_interrupt_keeps_finished_rounds() -> None:
    def stop(progress: Progress) -> None:
        if progress.doing == "rounds" and progress.done == 5:
            raise KeyboardInterrupt

    model = MLP()
    found = measure(Call(model, model, (torch.randn(8, 64),)), Options(), Plan(["aot_eager"], rounds=9), stop)
    assert [len(candidate.rounds) for candidate in found.candidates] == [5, 4]
    assert found.measurement.interrupted


def test_call_keeps_user_autocast_and_grad_mode() -> None:
    seen: list[tuple[torch.dtype, bool]] = []

    def product(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        note(y)
        return y

    def note(y: Tensor) -> None:
        seen.append((y.dtype, torch.is_grad_enabled()))

    x = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        call = Call(product, product, (x, x))
    measure(call, Options(), Plan(["eager"], rounds=1))
    assert not seen  # the function's closure is a copy too
    probe = Probe()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        call = Call(probe, probe, (x,))
    measure(call, Options(), Plan(["eager"], rounds=1))
    assert set(Probe.seen) == {(torch.bfloat16, False)}


class Probe(nn.Module):
    """A module that records the dtype it computes in."""

    seen: ClassVar[list[tuple[torch.dtype, bool]]] = []

    def forward(self, x: Tensor) -> Tensor:
        y = x @ x
        Probe.seen.append((y.dtype, torch.is_grad_enabled()))
        return y


@pytest.mark.needs("g++")
def test_inductor_compiles_with_temporary_empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "users"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def gelu_of_sum(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x + y) @ x

    found = of(timed(gelu_of_sum, torch.randn(16, 16), torch.randn(16, 16), asked=["default"]), "inductor")
    assert (found.mode, found.backend, found.problem) == ("default", "inductor", "")
    assert (found.kernels, found.launches, found.graphs) == (1, 2, 1)
    assert (found.compile_seconds or 0) > 0
    assert not cache.exists()
    assert list(tmp_path.iterdir()) == []


def test_absent_gpu_times_are_measured_on_cpu() -> None:
    options = parse_options(time="aot_eager", target="h100")
    record = explore(MLP(), (torch.randn(8, 64),), options=options).record
    assert record.target == "h100"
    assert "triton" in {kernel.language for kernel in record.kernels}
    assert [(candidate.name, candidate.device) for candidate in record.candidates] == [
        ("eager", "cpu"),
        ("aot_eager", "cpu"),
    ]
    assert record.measurement is not None
    assert record.measurement.device == "cpu"
    assert type(record).from_json(record.to_json()) == record


def test_cell_with_torch_compile_explains_missing_times() -> None:
    from compiler.engine import Exploration

    x = torch.randn(4)
    with Exploration(parse_options(time=True, stages="captured")) as exploration:
        torch.compile(torch.sin, backend="eager")(x)
    assert [problem.stage for problem in exploration.record.problems] == ["timing"]
    assert "without torch.compile" in exploration.record.problems[0].hint
