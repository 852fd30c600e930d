"""The health of gradients: norms, zeros, NaN and infinities, and the first node and line with NaN or infinities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from compiler.autograd.backward_run import BackwardRun, run_backward
from compiler.autograd.chain import known_values
from compiler.autograd.eager_graph import EagerGraph, GraphNode
from compiler.autograd.recording import Recording
from compiler.autograd.values import Value

NAMED = 5


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """Values at one node: the forward result, its gradient, and the gradients of the inputs.

    `made` lists which of "value" and "gradient" first become non-finite at this node.
    """

    node: str
    value: Value | None
    gradient: Value | None
    given: tuple[Value, ...]
    made: tuple[str, ...] = ()

    def attrs(self) -> dict[str, Any]:
        """Attributes for the node's entity, as JSON values."""
        found: dict[str, Any] = {}
        for name, value in (("value", self.value), ("gradient", self.gradient)):
            if value is not None:
                found |= {f"{name}_norm": _number(value.norm), f"{name}_zeros": value.zeros / max(value.count, 1)}
                found |= {f"{name}_nans": value.nans, f"{name}_infinite": value.infinite}
        if self.gradient is not None:
            found["gradient_health"] = _state(self.gradient)
        return found | ({"not_finite_from_here": ", ".join(self.made)} if self.made else {})


def _state(value: Value) -> str:
    if value.nans:
        return "NaN"
    if value.infinite:
        return "infinite"
    return "all zeros" if _all_zero(value) else "finite"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def measure_health(
    graph: EagerGraph, outputs: Sequence[torch.Tensor], recording: Recording | None = None
) -> tuple[NodeHealth, ...]:
    """Run one backward pass and measure every node, in backward order.

    Raises FreedGraphError, and any exception of the user's hooks and custom functions.
    """
    run = run_backward(graph, outputs, shown=0, checked=0)
    return health_of(graph, run, known_values(graph, outputs, recording, shown=0))


def health_of(graph: EagerGraph, run: BackwardRun, values: Mapping[tuple[str, int], Value]) -> tuple[NodeHealth, ...]:
    """The health of every node in a finished backward pass; `values` are forward results by (node, output)."""
    first = _first_value(graph, values)
    return tuple(_of_node(node, run, values, first) for node in graph.nodes)


def _of_node(node: GraphNode, run: BackwardRun, values: Mapping[tuple[str, int], Value], first: str) -> NodeHealth:
    given = tuple(value for value in run.outgoing.get(node.name, ()) if value is not None)
    incoming = run.leaves.get(node.name) if node.leaf is not None else _one(run.incoming.get(node.name, ()))
    value = next((values[node.name, slot] for slot in range(len(node.takes)) if (node.name, slot) in values), None)
    fresh = incoming is not None and incoming.is_finite and any(not each.is_finite for each in given)
    made = [name for name, here in (("value", node.name == first), ("gradient", fresh)) if here]
    return NodeHealth(node.name, value, incoming, given, tuple(made))


def _one(values: Iterable[Value | None]) -> Value | None:
    """The first non-finite value, else the first value; None if there is none."""
    there = [value for value in values if value is not None]
    return next((value for value in there if not value.is_finite), there[0] if there else None)


def _first_value(graph: EagerGraph, values: Mapping[tuple[str, int], Value]) -> str:
    """The first forward operation with a known non-finite result, "" if there is none."""
    order = sorted(graph.nodes, key=lambda node: -1 if node.number is None else node.number)
    for node in order:
        for slot in range(len(node.takes)):
            value = values.get((node.name, slot))
            if value is not None and not value.is_finite:
                return node.name
    return ""


def summary(
    health: Sequence[NodeHealth], graph: EagerGraph, places: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """A summary of all gradients' health in a few sentences."""
    ops = {node.name: node.op for node in graph.nodes}
    leaves = {node.name for node in graph.nodes if node.leaf is not None}
    lines = [*_norms([each for each in health if each.node in leaves])]
    lines += _not_finite(health, ops, places)
    dead = [each for each in health if each.node not in leaves and _all_zero(each.gradient)]
    if dead:
        nodes = "1 node" if len(dead) == 1 else f"{len(dead)} nodes"
        lines.append(f"The gradient is all zeros at {nodes}, first at {_place(dead[0].node, ops, places)}.")
    return tuple(lines)


def _all_zero(value: Value | None) -> bool:
    return value is not None and value.count > 0 and value.zeros == value.count


def _norms(leaves: Sequence[NodeHealth]) -> list[str]:
    norms = {each.node: each.gradient.norm for each in leaves if each.gradient is not None}
    finite = {name: norm for name, norm in norms.items() if math.isfinite(norm)}
    lines = []
    if finite:
        low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
        whole = math.hypot(*finite.values())
        lines.append(
            f"The gradient of {low}, the only leaf, has norm {whole:.3g}."
            if len(finite) == 1
            else f"Gradients of {len(finite)} leaves: norms {finite[low]:.3g} ({low}) to {finite[high]:.3g} ({high}), "
            f"median {median(finite.values()):.3g}, of all together {whole:.3g}."
        )
    zero = [each.node for each in leaves if _all_zero(each.gradient)]
    if zero:
        lines.append(f"Only zeros come to {_join_names(zero)}.")
    sick = [each.node for each in leaves if each.gradient is not None and not each.gradient.is_finite]
    if sick:
        lines.append(f"NaN or infinite numbers come to {_join_names(sick)}.")
    return lines


def _join_names(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest


def _not_finite(
    health: Sequence[NodeHealth], ops: Mapping[str, str], places: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    lines = []
    value = next((each for each in health if "value" in each.made), None)
    if value is not None and value.value is not None:
        where = _place(value.node, ops, places)
        is_leaf = ops[value.node] == "AccumulateGrad"
        first = f"the leaf {value.node}" if is_leaf else f"the result of {where}"
        lines.append(f"Forward, the first that is not finite is {first}: {_counts(value.value)}.")
    gradient = next((each for each in health if "gradient" in each.made), None)
    if gradient is not None:
        sick = next(each for each in gradient.given if not each.is_finite)
        where = _place(gradient.node, ops, places)
        lines.append(f"Backward, the first gradient that is not finite comes out of {where}: {_counts(sick)}.")
    if not lines and all(each.gradient is None or each.gradient.is_finite for each in health):
        lines.append("All gradients, and all results that are known, are finite.")
    return lines


def _counts(value: Value) -> str:
    words = [f"{value.nans:,} NaN"] if value.nans else []
    words += [f"{value.infinite:,} infinite"] if value.infinite else []
    return f"{' and '.join(words)} of {value.count:,} elements"


def _place(node: str, ops: Mapping[str, str], places: Mapping[str, Mapping[str, Any]]) -> str:
    place = places.get(node, {})
    line = f" at {place['file']}:{place['line']} ({place['code']})" if "line" in place else ""
    return f"{node} ({ops[node]}){line}"
