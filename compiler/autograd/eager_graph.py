"""The graph that autograd built while eager code ran: from a tensor's `grad_fn` back to the leaves.

Nodes come in the order in which torch's engine runs them: of the ready nodes the last created first, and an
AccumulateGrad at once (torch/csrc/autograd/engine.cpp, CompareNodeTaskTime).
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import torch
from torch.autograd.graph import get_gradient_edge

from compiler.autograd.recording import Call, Recording, is_users
from compiler.autograd.stops import Stop, Stops
from compiler.torch_api import autograd_nodes
from compiler.torch_api.autograd_nodes import SavedSlot, TensorFacts
from compiler.torch_api.fx import parse_stack

Kind = Literal["call", "custom", "compiled", "accumulate", "outer"]
_STOP_NAMES = {"detached": "detach", "no_grad": "no_grad"}
_SUFFIX = re.compile(r"(Backward\d*|BackwardAutogradNestedTensor\d*)$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class NoGraphError(ValueError):
    """Raised for tensors without an autograd graph; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A gradient from output `slot` of the node `source`; if `source` is "", the gradient of root `slot`."""

    source: str
    slot: int

    def __str__(self) -> str:
        return f"{self.source or 'grad'}[{self.slot}]"


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of the graph.

    `function` is autograd's own object, which keeps its saved tensors alive. `results` has the metadata of each result
    of the forward operation. `takes` has the incoming gradients of each result, which autograd adds up. `gives` has,
    for each input of the forward operation, the node that made the input and the output number; None if it needs no
    gradient. `derivative_of` names the node whose derivative includes this one, if a backward pass with
    `create_graph=True` made this node.
    """

    name: str
    kind: Kind
    op: str
    function: Any = field(repr=False, compare=False)
    number: int | None
    results: tuple[TensorFacts, ...]
    takes: tuple[tuple[Flow, ...], ...]
    gives: tuple[tuple[str, int] | None, ...]
    saved: tuple[SavedSlot, ...] = field(default=(), repr=False, compare=False)
    hooks: tuple[str, ...] = ()
    call: Call | None = None
    derivative_of: str = ""

    @property
    def leaf(self) -> torch.Tensor | None:
        """The leaf tensor of an `accumulate` node, else None."""
        return autograd_nodes.leaf_of(self.function) if self.kind == "accumulate" else None


@dataclass(frozen=True, slots=True)
class GraphStop:
    """A place where gradients stop: an input of the nodes `takers` that is a constant in backward.

    `source` is the node that the tensor was detached from, or its operation if it is not in this graph; "" if unknown.
    """

    name: str
    stop: Stop
    takers: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class EagerGraph:
    """An autograd graph: `nodes` in backward order, `roots` as (node name, output number).

    `stops` are known only if the graph was recorded.
    """

    nodes: tuple[GraphNode, ...]
    roots: tuple[tuple[str, int], ...]
    recorded: bool
    stops: tuple[GraphStop, ...] = ()

    def node(self, name: str) -> GraphNode:
        """The node of this name. Raises KeyError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"no node {name!r} in this graph")


def eager_graph(
    outputs: Sequence[torch.Tensor],
    *,
    recording: Recording | None = None,
    names: Mapping[int, str] | None = None,
    boundary: Mapping[Any, str] | None = None,
    stops: Stops | None = None,
) -> EagerGraph:
    """The autograd graph of these outputs.

    `names` has names of leaves by `id`; the walk ends at the nodes of `boundary`. `stops` are the gradient stops, if
    there is no recording.
    Raises NoGraphError if no output requires grad.
    """
    roots = [_edge(output) for output in outputs if output.requires_grad]
    if not roots:
        raise NoGraphError(_why_none(outputs))
    boundary = boundary or {}
    order = _in_backward_order([node for node, _ in roots], boundary)
    labels = _labels(order, names or {}, boundary)
    takes = _flows(order, roots, labels, boundary)
    nodes = tuple(_node(each, labels, takes[each], boundary, recording) for each in order)
    heard = recording.stops if recording else stops
    ends = _stops(nodes, heard, recording, names or {}) if heard else ()
    return EagerGraph(nodes, tuple((labels[node], slot) for node, slot in roots), recording is not None, ends)


def _stops(
    nodes: Sequence[GraphNode], heard: Stops, recording: Recording | None, names: Mapping[int, str]
) -> tuple[GraphStop, ...]:
    takers: dict[Stop, list[str]] = {}
    for taken in heard.taken:
        made = [node for node in nodes if node.number is not None and taken.first <= node.number < taken.end]
        made.sort(key=lambda node: node.number or 0)
        taker = [node for node in made if len(node.gives) > 1 and None in node.gives] or made
        for stop in taken.stops if taker else ():
            takers.setdefault(stop, []).append(taker[0].name)
    by_number = {node.number: node.name for node in nodes if node.number is not None}
    by_leaf = {id(node.leaf): node.name for node in nodes if node.leaf is not None}
    used = Counter(node.name for node in nodes)
    found = []
    for stop, where in takers.items():
        wanted = names.get(stop.parameter or 0, "parameter") if stop.kind == "frozen" else _STOP_NAMES[stop.kind]
        used[wanted] += 1
        name = wanted if used[wanted] == 1 else f"{wanted}_{used[wanted] - 1}"
        source = (
            by_number.get(-1 if stop.source is None else stop.source, "")
            or by_leaf.get(stop.leaf or 0, "")
            or _op_of(recording, stop.source)
        )
        found.append(GraphStop(name, stop, tuple(dict.fromkeys(where)), source))
    return tuple(found)


def _op_of(recording: Recording | None, number: int | None) -> str:
    """The operation that made a node outside the graph, "" if unknown."""
    call = recording.calls.find(number) if recording else None
    return call.op.rpartition(".")[2].strip("_") if call is not None else ""


def without_inner(outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The outputs that no other output depends on; logits returned with their loss are left out."""
    edges = [(_edge(output)[0] if output.requires_grad else None) for output in outputs]
    targets = [target for node in dict.fromkeys(edges) if node is not None for target in _targets(node, {})]
    inner = set(autograd_nodes.nodes_behind(targets))
    return tuple(output for output, node in zip(outputs, edges, strict=True) if node not in inner)


def _edge(output: torch.Tensor) -> tuple[Any, int]:
    edge = get_gradient_edge(output)
    return edge.node, edge.output_nr


def _why_none(outputs: Sequence[torch.Tensor]) -> str:
    if any(output.is_inference() for output in outputs):
        return "this tensor was made under torch.inference_mode(): autograd recorded nothing"
    return (
        "this tensor has no autograd graph: nothing that it was computed from wants a gradient (requires_grad=True), "
        "or it was computed under torch.no_grad(), or detached"
    )


def _targets(node: Any, boundary: Mapping[Any, str]) -> tuple[Any, ...]:
    """The nodes that receive a node's gradients, one entry for each edge."""
    return () if node in boundary else tuple(target for target, _ in autograd_nodes.edges_of(node) if target)


def _in_backward_order(roots: Sequence[Any], boundary: Mapping[Any, str]) -> list[Any]:
    waiting: Counter[Any] = Counter()
    seen, todo = set(roots), list(dict.fromkeys(roots))
    while todo:
        for target in _targets(todo.pop(), boundary):
            waiting[target] += 1
            if target not in seen:
                seen.add(target)
                todo.append(target)
    tie = count()
    ready = [(_priority(root), next(tie), root) for root in dict.fromkeys(roots) if not waiting[root]]
    heapq.heapify(ready)
    order: list[Any] = []
    while ready:
        node = heapq.heappop(ready)[-1]
        order.append(node)
        for target in _targets(node, boundary):
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (_priority(target), next(tie), target))
    return order


def _priority(node: Any) -> float:
    number = autograd_nodes.number_of(node)
    return float("-inf") if number is None else -number


def _labels(order: Sequence[Any], names: Mapping[int, str], boundary: Mapping[Any, str]) -> dict[Any, str]:
    """Name the nodes in forward order: `mul`, `mul_1`; a leaf has the name of its tensor."""
    taken: dict[str, int] = {}
    labels = {}
    for node in sorted(order, key=_priority, reverse=True):
        wanted = boundary.get(node) or _plain_name(node, names)
        number = taken[wanted] = taken.get(wanted, -1) + 1
        labels[node] = f"{wanted}_{number}" if number else wanted
        taken.setdefault(labels[node], 0)
    return labels


def _plain_name(node: Any, names: Mapping[int, str]) -> str:
    leaf = autograd_nodes.leaf_of(node)
    if leaf is not None:
        return names.get(id(leaf), "leaf")
    return base_name(node.name().rpartition("::")[2])


def base_name(op: str) -> str:
    """The forward operation of a node: `native_layer_norm` for `NativeLayerNormBackward0`."""
    return _HUMP.sub("_", _SUFFIX.sub("", op)).lower() or "node"


def _flows(
    order: Sequence[Any], roots: Sequence[tuple[Any, int]], labels: Mapping[Any, str], boundary: Mapping[Any, str]
) -> dict[Any, dict[int, list[Flow]]]:
    """The gradients that arrive at each slot of each node, in order."""
    takes: dict[Any, dict[int, list[Flow]]] = {node: {} for node in order}
    for index, (node, slot) in enumerate(roots):
        takes[node].setdefault(slot, []).append(Flow("", index))
    for node in order:
        edges = () if node in boundary else autograd_nodes.edges_of(node)
        for index, (target, slot) in enumerate(edges):
            if target is not None:
                takes[target].setdefault(slot, []).append(Flow(labels[node], index))
    return takes


def _node(
    function: Any,
    labels: Mapping[Any, str],
    takes: Mapping[int, Sequence[Flow]],
    boundary: Mapping[Any, str],
    recording: Recording | None,
) -> GraphNode:
    number = autograd_nodes.number_of(function)
    results = autograd_nodes.outputs_of(function)
    found = GraphNode(
        labels[function],
        "outer" if function in boundary else _kind(function),
        function.name().removeprefix("torch::autograd::"),
        function,
        number,
        results,
        tuple(tuple(takes.get(slot, ())) for slot in range(max(len(results), *(slot + 1 for slot in takes)))),
        (),
    )
    if function in boundary:
        return found
    return replace(
        found,
        gives=tuple((labels[to], slot) if to else None for to, slot in autograd_nodes.edges_of(function)),
        saved=tuple(autograd_nodes.saved_slots(function)),
        hooks=_hooks(function, number, recording),
        call=recording.calls.find(number) if recording else _call_in_anomaly_mode(function),
        derivative_of=_derivative_of(recording, number, labels) if recording else "",
    )


def _derivative_of(recording: Recording, number: int | None, labels: Mapping[Any, str]) -> str:
    """The name in the graph, or else the operation, of the node whose derivative includes this one."""
    node = recording.second_order.node_of(number)
    return "" if node is None else labels.get(node) or base_name(node.name().rpartition("::")[2])


def _call_in_anomaly_mode(function: Any) -> Call | None:
    """The call that torch's anomaly mode (`set_detect_anomaly(True)`) recorded for a node, or None."""
    frames = parse_stack("".join(autograd_nodes.anomaly_traceback(function)))
    stack = tuple(frame for frame in frames if is_users(frame.file))
    return Call("", stack) if stack else None


def _kind(function: Any) -> Kind:
    if autograd_nodes.leaf_of(function) is not None:
        return "accumulate"
    custom = autograd_nodes.custom_function(function)
    if custom is None:
        return "call"
    if custom.__name__ == "CompiledFunction":
        return "compiled"
    return "call" if custom.__module__.startswith("torch.") else "custom"


def _hooks(function: Any, number: int | None, recording: Recording | None) -> tuple[str, ...]:
    leaf = autograd_nodes.leaf_of(function)
    on_leaf = autograd_nodes.tensor_hooks(leaf) if leaf is not None else ()
    recorded = recording.hooks[number] if recording and number else []
    return (*on_leaf, *recorded, *autograd_nodes.node_hooks(function))
