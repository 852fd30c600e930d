"""Memory in use by the generated code and by eager, step by step, against real allocations."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from compiler.autograd.eager_memory import eager_memory, with_eager_memory
from compiler.engine import Exploration
from compiler.record import Record
from compiler.record.measure_facts import MemoryEvent
from compiler.record.options import Options
from compiler.timing.memory_trace import measured_events, with_measured_memory
from compiler.torch_api.allocator import RecordingError, cpu_changes, cpu_peak_bytes, cuda_changes, history_changes
from explorer import explore
from explorer.findings.memory.memory import timelines

ROWS, WIDTH = 512, 64


class Net(nn.Module):
    """A network that saves several tensors for the backward, one of them computed from another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.last = nn.Linear(2 * WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)).sin().exp())


def explored(target: str = "h100", **options: object) -> Record:
    net, x = Net(), torch.randn(ROWS, WIDTH)
    with Exploration(Options(target=target, **options)) as exploration:  # type: ignore[arg-type]
        exploration.compile(net)(x).sum().backward()
    return exploration.record


@pytest.fixture(scope="module")
def record() -> Record:
    return explored()


def events(record: Record, side: str = "compiled") -> list[MemoryEvent]:
    return [event for event in record.memory if event.side == side]


def peak_above_inputs(record: Record, side: str) -> tuple[int, int]:
    """The peak without incoming gradients, and the bytes in use between forward and backward."""
    line = timelines(record)[0].lines[side]
    handed = sum(step.event.bytes for step in line.steps if step.event.role == "tangent")
    return line.peak_bytes - handed, line.kept


def measured(call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[int, int]:
    """The same for a real, warmed-up call, with its gradient created before."""
    gradient = torch.ones(ROWS, 8)
    call(x).backward(gradient)
    results: list[Tensor] = []
    changes = cpu_changes(lambda: results.append(call(x)))
    whole = cpu_changes(lambda: call(x).backward(gradient))
    return max(event.live for event in measured_events(whole)), sum(changes)


@pytest.mark.needs("g++")
def test_computed_peak_matches_the_compiled_code() -> None:
    record, net = explored("cpu"), Net()
    compiled = torch.compile(net)
    peak, kept = measured(_without_gradients(net, compiled), torch.randn(ROWS, WIDTH))
    computed_peak, computed_kept = peak_above_inputs(record, "compiled")
    assert kept == computed_kept
    assert peak == pytest.approx(computed_peak, rel=0.02)


def test_computed_eager_peak_matches_the_real_run() -> None:
    record, net = explored("cpu"), Net()
    peak, kept = measured(_without_gradients(net, net), torch.randn(ROWS, WIDTH))
    computed_peak, computed_kept = peak_above_inputs(record, "eager")
    assert kept == computed_kept
    assert peak == pytest.approx(computed_peak, rel=0.02)


def test_no_garbage_is_collected_in_a_measured_call() -> None:
    """A collection would free other tensors, too."""

    def call() -> list[object]:
        ring: list[object] = [torch.ones(1000)]
        ring.append(ring)
        ring = []
        return [[] for _ in range(10 * gc.get_threshold()[0])]

    assert cpu_changes(call) == [4000]
    assert gc.isenabled()


def test_frees_of_earlier_allocations_are_ignored() -> None:
    """The profiler remembers the sizes of addresses, and some of these have been reused."""
    held: list[Tensor] = []
    for _ in range(20):
        assert cpu_changes(lambda: held.append(torch.empty(1 << 24))) == [1 << 26]
        held.clear()
        held.append(torch.empty(1 << 24))  # the system allocates memory of this size, mostly at the same address again
        assert cpu_changes(held.clear) == []
    assert cpu_peak_bytes(lambda: held.append(torch.empty(10))) == 40


def _without_gradients(net: nn.Module, call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        net.zero_grad(set_to_none=True)
        return call(x)

    return run


@pytest.mark.parametrize("side", ["compiled", "eager"])
def test_bytes_in_use_sum_the_live_buffers(record: Record, side: str) -> None:
    line = timelines(record)[0].lines[side]
    for number, step in enumerate(line.steps):
        assert step.above == sum(each.event.bytes for each in line.alive(number)), step


@pytest.mark.parametrize("side", ["compiled", "eager"])
def test_backward_starts_with_memory_the_forward_left(record: Record, side: str) -> None:
    for before, after in pairwise(events(record, side)):
        if (before.half, after.half) == ("forward", "backward"):
            added = after.bytes if after.role == "tangent" else 0
            assert after.live == before.live + added
            return
    pytest.fail("there is no backward")


def test_saved_tensors_and_gradients_have_roles(record: Record) -> None:
    roles = {event.role for event in events(record)}
    assert roles == {"", "input", "saved", "tangent", "result", "gradient"}
    gradients = sum(event.bytes for event in events(record) if event.role == "gradient" and event.what == "output")
    assert gradients == sum(parameter.nbytes for parameter in Net().parameters())


@pytest.mark.parametrize("side", ["compiled", "eager"])
def test_only_the_callers_memory_outlives_the_backward(record: Record, side: str) -> None:
    """Autograd's saved tensors, and the backward's incoming gradients, are freed by its end."""
    found = events(record, side)
    given = sum(event.bytes for event in found if event.what == "input" and event.half == "forward")
    left = sum(event.bytes for event in found if event.role in ("result", "gradient"))
    assert found[-1].half == "backward"
    assert found[-1].live == given + left


def test_inputs_and_parameters_count_once_in_the_base(record: Record) -> None:
    base = timelines(record)[0].base
    assert base["parameters"] == sum(parameter.nbytes for parameter in Net().parameters())
    assert base["inputs"] == ROWS * WIDTH * 4


def test_buffer_has_its_writer_and_wrapper_line(record: Record) -> None:
    known = {entity.id for entity in record.entities()}
    rows = {half: record[f"kernels[0/0 {half}]"].text.split("\n") for half in ("forward", "backward")}
    made = [event for event in events(record) if event.what in ("allocate", "reuse")]
    assert made
    for event in made:
        assert event.entity in known
        assert rows[event.half][event.at - 1].strip().startswith(f"{event.buffer} = ")
        assert "reuse" not in event.what or "reuse" in rows[event.half][event.at - 1]


def test_eager_memory_leaves_state_unchanged() -> None:
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)), torch.randn(16, 8)
    with Exploration(Options(target="h100")) as exploration:
        exploration.compile(net)(x)
    captured = exploration.kept["0/0"].captured
    assert captured is not None
    before = [buffer.clone() for buffer in net.buffers()]
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    found = eager_memory(captured, "0/0", trains=True)
    assert found[-1].half == "backward"
    assert torch.equal(state, torch.get_rng_state())
    assert torch.is_grad_enabled() is grad
    assert all(torch.equal(one, other) for one, other in zip(before, net.buffers(), strict=True))
    assert all(parameter.grad is None for parameter in net.parameters())


def test_inference_has_no_backward() -> None:
    with torch.no_grad():
        record = explore(Net(), torch.randn(4, WIDTH), target="h100").record
    assert {event.half for event in record.memory} == {"forward"}
    assert {event.side for event in record.memory} == {"compiled", "eager"}


def test_a_call_in_several_graphs_is_one_timeline() -> None:
    def broken(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).sin()
        torch._dynamo.graph_break()
        return (y * 2).exp()

    w = torch.randn(32, 32, requires_grad=True)
    with Exploration(Options(target="h100")) as exploration:
        exploration.compile(broken)(torch.randn(16, 32), w).sum().backward()
    whole, *parts = timelines(exploration.record)
    assert whole.title == "the whole call"
    assert len(parts) == 2
    line = whole.lines["compiled"]
    assert next(step.event.graph for step in line.steps) == parts[0].graphs[0]
    assert line.steps[-1].event.graph == parts[0].graphs[0]  # the first graph's backward runs last
    assert all(step.above == sum(each.event.bytes for each in line.alive(n)) for n, step in enumerate(line.steps))


def test_symbolic_sizes_use_the_sizes_of_the_call() -> None:
    record = explore(lambda x: x.exp(), torch.randn(64, 4), target="h100", dynamic=True).record
    assert any(event.what == "allocate" and event.bytes == 64 * 4 * 4 for event in events(record))
    assert any(event.what == "allocate" and event.bytes == 64 * 4 * 4 for event in events(record, "eager"))


def test_cuda_graph_partitions_are_one_timeline() -> None:
    record = explored(mode="reduce-overhead")
    assert {event.half for event in events(record)} == {"forward", "backward"}
    assert not [problem for problem in record.problems if problem.stage == "memory"]


def test_memory_pools_are_a_problem_with_a_hint() -> None:
    def chain(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax((x @ w).relu() @ w, -1) @ w

    options = {"memory_planning": True}
    with torch.no_grad():
        record = explore(chain, torch.randn(64, 64), torch.randn(64, 64), target="h100", options=options).record
    [problem] = [problem for problem in record.problems if problem.stage == "memory"]
    assert "pools" in problem.reason
    assert "memory_planning" in problem.hint


def test_measured_memory_is_added_to_the_computed(record: Record) -> None:
    net, x = Net(), torch.randn(ROWS, WIDTH)
    found = with_measured_memory(record, lambda: net(x).sum().backward())
    assert with_measured_memory(found, lambda: None).memory == record.memory
    line = timelines(found)[0].lines["measured"]
    assert line.peak_bytes > ROWS * WIDTH * 4


@pytest.mark.needs("gpu")
def test_gpu_memory_history_is_recorded_and_stopped() -> None:
    x = torch.randn(1 << 20, device="cuda")

    def call() -> Tensor:
        doubled = x * 2
        return doubled.sin()

    live = [event.live for event in measured_events(cuda_changes(call))]
    assert max(live) == 2 * x.nbytes
    assert live[-1] == 0
    assert cuda_changes(lambda: None) == []
    torch.cuda.memory._record_memory_history()
    try:
        with pytest.raises(RecordingError, match="stop that first"):
            cuda_changes(lambda: None)
    finally:
        torch.cuda.memory._record_memory_history(None)


def test_allocator_history_counts_requests_and_frees() -> None:
    """The history follows the documentation of `torch.cuda.memory._snapshot()`: a free completes after its request."""
    actions = ("segment_alloc", "alloc", "free_requested", "free_completed", "alloc")
    trace = [{"action": action, "size": 512 * place} for place, action in enumerate(actions, start=1)]
    assert list(history_changes(trace)) == [1024, -1536, 2560]


def test_record_with_eager_memory_is_unchanged(record: Record) -> None:
    assert with_eager_memory(record, {}) is record


def test_a_graph_without_inputs_has_eager_memory() -> None:
    record = explore(lambda n: torch.arange(n) * 2, 5).record
    assert not record.problems
    assert any(event.side == "eager" for event in record.memory)


def test_optimizer_step_has_eager_memory() -> None:
    w = torch.ones(4, requires_grad=True)
    w.grad = torch.ones(4)
    record = explore(torch.optim.Adam([w]).step).record
    assert not [problem for problem in record.problems if problem.stage == "memory"]
    assert any(event.side == "eager" for event in record.memory)


def test_nested_tensors_are_named_as_the_reason() -> None:
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    (problem,) = [item for item in explore(lambda x: (x * 2).sin(), nested).record.problems if item.stage == "memory"]
    assert problem.reason == (
        "eager's memory is not known: the graph has nested tensors, whose parts are not followed here"
    )
