"""Eager mode's memory use and saved tensors for a captured graph, found by a run on fake tensors.

Eager mode holds a value until Python drops it: here, after the last use in the graph. Memory that an operator
allocates and frees before it returns is not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule, Node

from compiler.calls.graph_runs import Hook, HookedInterpreter
from compiler.calls.kept_graphs import KeptFrame
from compiler.record import Problem, Record
from compiler.record.builder import Builder
from compiler.record.measure_facts import Half, MemoryEvent, MemoryWhat, Role
from compiler.torch_api import autograd_nodes, fx
from compiler.torch_api.dtensor import differentiable_part, local_tensor
from compiler.torch_api.eager import Watching
from compiler.torch_api.pytrees import tree_leaves

HINT = "the memory of the generated code is there"


def eager_memory(captured: GraphModule, graph: str, *, trains: bool) -> tuple[MemoryEvent, ...]:
    """Memory events of one call of this graph; with `trains`, also of its backward. Has no side effects.

    Raises any exception of an operation that can't run without data.
    """
    examples = [fx.value_of(node) for node in captured.graph.nodes if node.op == "placeholder"]
    known = [fx.value_of(node) for node in captured.graph.nodes]
    log = _Log(graph)
    with fx.fake_mode(known) as mode, torch.set_grad_enabled(trains), torch.autograd.set_multithreading_enabled(False):
        inputs = [_fresh(value) for value in examples]
        for node, value in zip(captured.graph.find_nodes(op="placeholder"), inputs, strict=True):
            log.add_inputs(node.name, [value], "input")
        with Watching(log.add_results):
            results = HookedInterpreter(captured, _tell(log, mode)).run(*inputs)
        log.keep("result", results)
        if trains:
            _backward(log, results)
        log.keep("gradient", [value.grad for value in inputs if isinstance(value, torch.Tensor)])
        log.closed = True
    return tuple(log.events)


def add_eager_memory(builder: Builder, kept: Mapping[str, KeptFrame]) -> None:
    """Add eager mode's memory events for each graph with events of compiled code; a failure is added as a Problem."""
    events, problems = eager_of(builder.memory, kept)
    builder.memory.extend(events)
    for problem in problems:
        builder.problem(problem)


def with_eager_memory(record: Record, kept: Mapping[str, KeptFrame]) -> Record:
    """The record with eager mode's events added, if it lacks them and the graphs were kept; else the same record."""
    done = any(event.side == "eager" for event in record.memory)
    if done or not kept or any(problem.stage == "memory" for problem in record.problems):
        return record
    events, problems = eager_of(record.memory, kept)
    if not events and not problems:
        return record
    return record.with_fields(memory=(*record.memory, *events), problems=(*record.problems, *problems))


def eager_of(compiled: Sequence[MemoryEvent], kept: Mapping[str, KeptFrame]) -> tuple[list[MemoryEvent], list[Problem]]:
    """Eager mode's memory events for the compiled graphs of these events, and a problem for each graph that failed."""
    halves = {(event.graph, event.half) for event in compiled}
    events: list[MemoryEvent] = []
    problems: list[Problem] = []
    for graph in dict.fromkeys(event.graph for event in compiled if event.side == "compiled"):
        frame = kept.get(graph)
        if frame is None or frame.eager is None:
            continue
        try:
            events += eager_memory(frame.eager, graph, trains=(graph, "backward") in halves)
        except Exception as error:  # noqa: BLE001 - operators that can't run without data raise anything
            problems.append(Problem("memory", _why_unknown(frame.eager, error), HINT, graph))
    return events, problems


def _why_unknown(captured: GraphModule, error: Exception) -> str:
    """The message that says why eager mode's memory is not known."""
    kinds = {type(fx.value_of(node)).__name__ for node in captured.graph.nodes}
    if "NestedTensor" in kinds:
        return "eager's memory is not known: the graph has nested tensors, whose parts are not followed here"
    words = next(iter(str(error).splitlines()), "")
    return (
        f"eager's memory is not known: an operation can't run on tensors without data ({type(error).__name__}: {words})"
    )


def _backward(log: _Log, results: Any) -> None:
    leaves = [value for value in tree_leaves(results) if isinstance(value, torch.Tensor) and value.requires_grad]
    outputs = [differentiable_part(value) for value in leaves]
    if not outputs:
        return
    total = _HandingIn.apply(log, *outputs)
    log.half, log.node = "backward", ""
    seed = torch.empty_like(total)
    with Watching(log.add_results):
        total.backward(seed)


class _HandingIn(torch.autograd.Function):
    """Computes one value from all outputs, so that only autograd holds their gradients, as in a real call."""

    @staticmethod
    def forward(ctx: Any, log: _Log, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.log = log
        ctx.layouts = [(output.shape, output.stride(), output.dtype, output.device) for output in outputs]
        return outputs[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        with ctx.log.collect_tangents():
            return (None, *(torch.empty_strided(size, stride, dtype=dtype, device=device)
                            for size, stride, dtype, device in ctx.layouts))  # fmt: skip


def _fresh(value: Any) -> Any:
    """A new leaf that shares the tensor's memory, so that its gradient is separate; other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


class _Log:
    """A log of allocations and frees. `node` is the captured graph's current node."""

    def __init__(self, graph: str) -> None:
        self.graph = graph
        self.events: list[MemoryEvent] = []
        self.half: Half = "forward"
        self.node = ""
        self.live = 0
        self.closed = False
        self.handing = False
        self.spans: autograd_nodes.Spans[str] = autograd_nodes.Spans()
        self.known: dict[int, tuple[str, int, str]] = {}
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._counts: dict[str, int] = {}

    def add_inputs(self, name: str, values: Iterable[Any], role: Role) -> None:
        """Record memory that existed before the call, each storage once."""
        for value in map(local_tensor, values):
            if isinstance(value, torch.Tensor) and fx.memory_of(value) not in self.known:
                self._add(value, name, "input", role)

    def add_results(self, values: Any) -> None:
        """Record new storages among an operation's results as allocations."""
        for value in map(local_tensor, tree_leaves(values)):
            if not isinstance(value, torch.Tensor) or fx.memory_of(value) in self.known:
                continue
            if self.handing:
                self._add(value, self._name("tangents"), "input", "tangent")
            else:
                maker = self.node or self.maker()
                name = maker if self.half == "forward" else f"{maker or 'gradient'} backward"
                self._add(value, self._name(name), "allocate", "", maker)

    @contextmanager
    def collect_tangents(self) -> Iterator[None]:
        """Record allocations in the block as gradients of outputs."""
        self.handing = True
        yield
        self.handing = False

    def keep(self, role: Role, values: Any) -> None:
        """Record tensors that outlive the forward or the backward."""
        for value in map(local_tensor, tree_leaves(values)):
            found = self.known.get(fx.memory_of(value)) if isinstance(value, torch.Tensor) else None
            if found is not None:
                self._note("output", *found, role=role)

    def maker(self) -> str:
        """The captured graph's node whose derivative is being computed, "" for none."""
        return self.spans.find(autograd_nodes.running_number()) or ""

    def _name(self, name: str) -> str:
        """A unique name: `relu`, then `relu 2`."""
        self._counts[name] = count = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name} {count}"

    def _add(self, value: torch.Tensor, name: str, what: MemoryWhat, role: Role, maker: str = "") -> None:
        key, size = fx.memory_of(value), fx.storage_bytes(value)
        node = name if role == "input" else maker
        entity = f"captured[{self.graph}].{node}" if node else ""
        self.known[key] = (name, size, entity)
        self.live += size
        self._watched[key] = weakref.ref(value.untyped_storage(), lambda _: self._note_freed(key))
        self._note(what, name, size, entity, role=role)

    def _note_freed(self, key: int) -> None:
        name, size, entity = self.known.pop(key)
        del self._watched[key]
        if not self.closed:
            self.live -= size
            self._note("free", name, size, entity)

    def _note(self, what: MemoryWhat, name: str, size: int, entity: str, *, role: Role = "") -> None:
        self.events.append(
            MemoryEvent(self.graph, self.half, what, name, size, self.live, "eager", role, entity=entity)
        )


def _tell(log: _Log, mode: Any) -> Hook:
    """A hook that gives the log the current node and the sequence numbers of its autograd nodes.

    Tensors that the graph itself holds, such as an optimizer's state, become fake tensors and are logged as inputs.
    """

    def tell(node: Node, run: Callable[[], Any]) -> Any:
        log.node = node.name
        first = autograd_nodes.next_number()
        result = run()
        if node.op == "get_attr" and isinstance(result, torch.Tensor) and not fx.has_fakes([result]):
            result = mode.from_tensor(result)
            log.add_inputs(log.node, [result], "input")
        log.spans.add(first, autograd_nodes.next_number(), node.name)
        return result

    return tell


@dataclass(frozen=True, slots=True)
class EagerSaved:
    """Number and bytes of storages that `grad_fn` nodes save. `activation_bytes` excludes graph inputs."""

    tensors: int
    saved_bytes: int
    activation_bytes: int


def saved_by_eager(captured: GraphModule) -> EagerSaved:
    """Count the tensors that a forward call of this graph saves, on fake tensors. Has no side effects.

    Uses torch.autograd.graph.saved_tensors_hooks. Raises any exception of an operation that can't run without data.
    """
    examples = [fx.value_of(node) for node in captured.graph.nodes if node.op == "placeholder"]
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(fx.memory_of(tensor), tensor)
        return tensor

    with fx.fake_mode(examples), torch.enable_grad():
        inputs = [_fresh(value) for value in examples]
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            results = captured(*inputs)
        given = {fx.memory_of(value) for value in inputs if isinstance(value, torch.Tensor)}
    sizes = {memory: _bytes(tensor) for memory, tensor in kept.items()}
    del results
    return EagerSaved(len(sizes), sum(sizes.values()), sum(size for key, size in sizes.items() if key not in given))


def _bytes(tensor: torch.Tensor) -> int:
    size = tensor.untyped_storage().nbytes()
    return size if isinstance(size, int) else 0
