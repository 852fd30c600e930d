"""The partition into forward and backward: saved values, recomputed values, and the reasons.

`decisions` describes the partition that torch made. `partition` partitions the same joint graph in another way: by
torch's `default_partition`, which saves every value that the backward uses, or by the min-cut under an
`activation_memory_budget` between 1 (fastest) and 0 (save only the inputs, as activation checkpointing does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from compiler.binary import formulas
from compiler.record import Decision
from compiler.torch_api import fx
from compiler.torch_api.partitioning import Halves, Joint, bytes_of, divide

#: The reasons of torch's partitioner for not recomputing a value, in plain words.
REASONS: dict[str, str] = {
    "primal input": "an input of the graph: there is nothing to compute it from",
    "forward RNG seed": "the seed of random numbers: another one would give other numbers",
    "random op": "random numbers: made again, they would be others",
    "compute intensive op": "costly to compute again (a matrix product, a convolution, attention)",
    "non-builtin op": "an operator that is not torch's own: what it costs is not known",
    "materialized in backward": "the backward reads it in an operation that can't be fused, so it has to be in memory",
    "reduction op": "a reduction: its result is less than a quarter of what goes in, so keeping it is cheap",
    "not in recomputable allowlist": "not among the operations that torch takes to be cheap to compute again",
    "too far from backward": "far from the backward: computing it again would take a long chain of operations",
    "marked MUST_SAVE": "the checkpoint policy says that it must be saved",
    "": "used near and far from here, or at the end of a long chain of fusible operations: computed again it would not "
    "be fused",
}
CHEAPEST = "keeping it is the cheapest cut: to compute it again, the forward would have to keep at least as many bytes"
RECOMPUTED = "recomputed in the backward, where it can be fused with what uses it; keeping it would cost more"


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A value that the forward saves for the backward. `bytes` is 0 if a size is symbolic."""

    name: str
    operation: str
    bytes: int
    is_input: bool
    why: str


@dataclass(frozen=True, slots=True)
class RecomputedNode:
    """A forward operation that the backward recomputes, with its bytes and FLOPs."""

    name: str
    operation: str
    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a joint graph. `budget` is None for `default_partition`.

    `activation_bytes` leaves out saved inputs of the graph: inputs and parameters are in memory anyway. `calls` counts
    the operations of the forward and of the backward.
    """

    budget: float | None
    saved: tuple[SavedValue, ...]
    recomputed: tuple[RecomputedNode, ...]
    calls: tuple[int, int]

    @property
    def saved_bytes(self) -> int:
        return sum(value.bytes for value in self.saved)

    @property
    def activation_bytes(self) -> int:
        return sum(value.bytes for value in self.saved if not value.is_input)

    @property
    def recomputed_flops(self) -> int:
        return sum(node.flops for node in self.recomputed)

    @property
    def recomputed_bytes(self) -> int:
        """Bytes that recomputed operations write."""
        return sum(node.bytes for node in self.recomputed)


def partition(joint: Joint, budget: float | None) -> Partition:
    """Partition a joint graph. Raises ValueError for a budget that is not between 0 and 1."""
    if budget is not None and not 0 <= budget <= 1:
        raise ValueError(f"a memory budget is between 0 and 1, or None to keep everything; got {budget!r}")
    return partition_of(divide(joint, budget), budget)


def partition_of(halves: Halves, budget: float | None = 1.0) -> Partition:
    """Describe a partition, with torch's reasons in words."""
    forward = {node.name: node for node in fx.calls(halves.forward)}
    again = tuple(
        RecomputedNode(node.name, fx.target_name(node), bytes_of(fx.value_of(node)), flops_of(node))
        for node in fx.calls(halves.backward)
        if node.name in forward
    )
    makers = {node.name: node for node in halves.forward.graph.nodes}
    kept = tuple(_kept_value(node, makers[node.name], halves) for node in saved_nodes(halves))
    return Partition(budget, kept, again, (len(forward), len(list(fx.calls(halves.backward)))))


def saved_nodes(halves: Halves) -> list[Node]:
    """The backward's inputs that are outputs of the forward: all but the tangents."""
    given = {node.name for node in halves.forward.graph.nodes}
    return [node for node in halves.backward.graph.nodes if node.op == "placeholder" and node.name in given]


def decisions(
    halves: Halves, frame: str, joint_names: Iterable[str], checkpointed: Callable[[Node], str]
) -> list[Decision]:
    """The partition as decisions about nodes of a capture's joint, forward and backward graphs.

    `checkpointed` returns the reason why a checkpoint recomputes a node, or "".
    """
    known, found = set(joint_names), partition_of(halves)
    reasons = {node.name: reason for node in fx.calls(halves.backward) if (reason := checkpointed(node))}

    def subjects(name: str) -> tuple[str, ...]:
        stages = ("joint", "forward", "backward") if name in known else ("forward", "backward")
        return tuple(f"{stage}[{frame}].{name}" for stage in stages)

    kept = [Decision("partition", frame, subjects(value.name), "saved", value.why, {"bytes": float(value.bytes)})
            for value in found.saved]  # fmt: skip
    again = [Decision("partition", frame, subjects(node.name), "recomputed", reasons.get(node.name, RECOMPUTED),
                      {"bytes": float(node.bytes), "flops": float(node.flops)})
             for node in found.recomputed]  # fmt: skip
    return kept + again


def _kept_value(node: Node, maker: Node, halves: Halves) -> SavedValue:
    is_input = maker.op == "placeholder"
    operation = "input" if is_input else fx.target_name(maker)
    return SavedValue(node.name, operation, bytes_of(fx.value_of(node)), is_input, _reason(node.name, is_input, halves))


def _reason(name: str, is_input: bool, halves: Halves) -> str:
    if is_input:
        return REASONS["primal input"]
    if not halves.banned:
        return "the backward uses it, and this partition keeps what it uses"
    reason = halves.banned.get(name)
    return CHEAPEST if reason is None else REASONS.get(reason, reason)


def flops_of(node: Node) -> int:
    """FLOPs of one call; 0 if a size is symbolic."""
    tensors = {source.name: facts for source in node.all_input_nodes for facts in _tensors(fx.value_of(source))[:1]}
    arguments = [*map(repr, node.args), *(f"{name}={value!r}" for name, value in node.kwargs.items())]
    code = f"{node.name} = call({', '.join(arguments)})"
    outputs = tuple(_tensors(fx.value_of(node)))
    return formulas.flops_of(formulas.Node(node.name, fx.target_name(node), outputs, tensors, code))


def _tensors(value: Any) -> list[formulas.TensorFacts]:
    if isinstance(value, tuple | list):
        return [facts for item in value for facts in _tensors(item)]
    attrs = fx.tensor_attrs(value)
    return [formulas.TensorFacts(attrs["dtype"], tuple(attrs["shape"]))] if attrs else []
