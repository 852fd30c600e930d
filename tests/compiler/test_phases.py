"""torch's compile time by phase: its own events, by graph, without tcompile's recording time."""

from __future__ import annotations

import time

import pytest
import torch

from compiler.engine import Exploration, explore
from compiler.option_checks import parse_options
from compiler.record import Phase, Record
from compiler.recorder import Recorder
from compiler.stopwatch import Stopwatch, untimed_observer
from tests.compiler.models import MLP


@pytest.fixture(scope="module")
def mlp_record() -> Record:
    with Exploration() as exploration:
        exploration.compile(MLP().train())(torch.randn(8, 64)).sum().backward()
    return exploration.record


def named(record: Record, name: str) -> list[Phase]:
    return [phase for phase in record.phases if phase.name == name]


def test_compilation_is_one_root_phase(mlp_record: Record) -> None:
    roots = [phase for phase in mlp_record.phases if not phase.parent]
    assert [(phase.name, phase.graph, phase.count) for phase in roots] == [("dynamo", "0/0", 1)]
    assert all(phase.seconds <= roots[0].seconds for phase in mlp_record.phases)


def test_inductor_phases_cover_forward_and_backward(mlp_record: Record) -> None:
    assert sum(phase.count for phase in named(mlp_record, "GraphLowering.codegen")) == 2
    assert {phase.parent for phase in named(mlp_record, "Scheduler.codegen")} == {"GraphLowering.codegen"}


def test_subphases_take_no_longer_than_their_phase(mlp_record: Record) -> None:
    for whole in mlp_record.phases:
        parts = [phase.seconds for phase in mlp_record.phases if phase.parent == whole.name]
        wholes = [phase.seconds for phase in named(mlp_record, whole.name)]
        assert sum(parts) <= sum(wholes) + 1e-6, whole.name


def test_phases_belong_to_the_compiled_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    record = explore(f, calls=[(torch.randn(4),), (torch.randn(5),)]).record
    graphs = {frame.id for frame in record.frames if frame.graphs}
    assert len(graphs) == 2  # one for each size
    assert {phase.graph for phase in named(record, "backend_compile")} == graphs


def test_recording_time_is_excluded_from_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Recorder.on_bytecode

    def slowly(*args: object) -> None:
        time.sleep(0.5)
        original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Recorder, "on_bytecode", slowly)
    record = explore(lambda x: x + 1, (torch.randn(4),), options=parse_options(backend="eager")).record
    hooks = [phase for phase in record.phases if phase.name.startswith("bytecode_hooks")]
    assert hooks
    assert sum(phase.seconds for phase in hooks) < 0.5


def test_stopped_stopwatch_runs_inside_torch_work() -> None:
    watch = Stopwatch()
    with watch.pause():
        before = watch.seconds()
        time.sleep(0.01)
        assert watch.seconds() == before
        with watch.resume():
            time.sleep(0.01)
        assert watch.seconds() >= before + 0.01


def test_observer_is_called_with_the_watch_stopped() -> None:
    watch = Stopwatch()

    class Slow:
        def told(self, what: str) -> str:
            time.sleep(0.2)
            return what

    assert untimed_observer(Slow(), watch).told("a graph") == "a graph"
    assert watch.seconds() < 0.2


def test_events_are_not_observed_after_the_exploration() -> None:
    from torch._dynamo.utils import ChromiumEventLogger

    before = ChromiumEventLogger.log_event_end
    explore(lambda x: x + 1, (torch.randn(4),), options=parse_options(backend="eager"))
    assert ChromiumEventLogger.log_event_end is before
