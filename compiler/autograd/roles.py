"""Roles of nodes in AOTAutograd's graphs: derivative, accumulation, tangent, saved value, random numbers.

A backward node is part of the derivative of the forward nodes with the same sequence number: autograd gives an
operation and its `grad_fn` the same number (torch._functorch._aot_autograd.utils: `copy_fwd_metadata_to_bw_nodes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compiler.record import Artifact, Decision
from compiler.torch_api import fx
from compiler.torch_api.aot import AotFacts

Attrs = dict[str, dict[str, Any]]
"""Attributes to add to a node's entity, by node name."""

_RANDOM = ("inductor_random", "inductor_randint", "inductor_seed", "inductor_seeds", "philox_rand", "rand_like")
PASS = "functionalization"
_MUTATED = {
    "in": "the function changes this input in place; the graph is free of mutation but for one copy_ at its end",
    "after": "the function changes this input in place; the graph returns the new value, and it is copied over the "
    "input after the graph has run",
}
_VIEWS = {
    "alias_of_input": "output {output} is a view of input {base}: it is made anew from that after the graph has run",
    "is_input": "output {output} is input {base} itself: the input is given back",
    "alias_of_intermediate": "output {output} is a view of an intermediate value that is an output too",
    "alias_of_intermediate_save_as_output": "output {output} is a view of an intermediate value: the graph returns "
    "that value, and the view is made anew from it",
    "alias_of_intermediate_base_is_user_output": "output {output} is a view of output {base}",
    "unsafe_view_alias": "output {output} is an unsafe view: nothing else sees the memory, so it is returned as it is",
    "custom_function_view": "output {output} is a view that a custom autograd Function made: it is returned as it is",
}


@dataclass(frozen=True, slots=True)
class Forward:
    """Forward operations. `names` are the names in the forward graph.

    `by_sequence` has ids by sequence number: in the forward graph, or else in the joint graph.
    """

    names: frozenset[str] = frozenset()
    by_sequence: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of_graphs(
        cls, forward: GraphModule, forward_id: str, joint: GraphModule | None = None, joint_id: str = ""
    ) -> Forward:
        """Collect the operations of both graphs; `forward_id` and `joint_id` are the ids of their artifacts."""
        found = _by_sequence(fx.calls(forward), forward_id)
        before = (node for node in fx.calls(joint) if not fx.is_backward(node)) if joint else ()
        return cls(frozenset(node.name for node in fx.calls(forward)), _by_sequence(before, joint_id) | found)


def forward_roles(module: GraphModule) -> Attrs:
    """Roles in a forward or inference graph: the nodes that draw random numbers."""
    return {node.name: {"role": "random numbers"} for node in fx.calls(module) if is_random(node)}


def backward_roles(module: GraphModule, forward: Forward, forward_id: str) -> Attrs:
    """A role for every input and operation of a backward graph, with the forward nodes that it differentiates."""
    found = {node.name: _input_role(node, forward_id) for node in module.graph.find_nodes(op="placeholder")}
    calls = list(fx.calls(module))
    own = {node.name: role for node in calls if (role := _role(node, forward, forward_id))}
    for node in reversed(calls):
        own.setdefault(node.name, _of_neighbours(node.users, own))
    for node in calls:
        own[node.name] = own[node.name] or _of_neighbours(node.all_input_nodes, own) or {"role": "made by a pass"}
    return found | own


def _input_role(node: Node, forward_id: str) -> dict[str, Any]:
    if str(node.target).startswith("tangents"):
        return {"role": "tangent: the gradient of an output"}
    return {"role": "saved by the forward", "forward": [f"{forward_id}.{node.name}"]}


def _role(node: Node, forward: Forward, forward_id: str) -> dict[str, Any]:
    if node.name in forward.names:
        return {"role": "recomputed", "forward": [f"{forward_id}.{node.name}"]}
    if node.meta.get("is_gradient_acc"):
        return {"role": "accumulation: gradients of several uses added up"}
    if origins := forward.by_sequence.get(node.meta.get("seq_nr", -1), ()):
        return {"role": "derivative", "derivative_of": list(origins)}
    return {"role": "random numbers"} if is_random(node) else {}


def _of_neighbours(neighbours: Iterable[Node], known: Attrs) -> dict[str, Any]:
    """The role of a node that a pass made: part of its neighbours' derivatives; {} if they have none."""
    found = (known.get(node.name, {}) for node in neighbours)
    origins = [origin for role in found for origin in role.get("derivative_of", ())]
    return {"role": "derivative", "derivative_of": list(dict.fromkeys(origins))} if origins else {}


def with_attrs(artifact: Artifact, attrs: Attrs) -> Artifact:
    """The artifact with these attributes, given by node name, added to its entities."""
    if not attrs:
        return artifact
    entities = (replace(entity, attrs=entity.attrs | attrs.get(entity.label, {})) for entity in artifact.entities)
    return replace(artifact, entities=tuple(entities))


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers."""
    tags = getattr(node.target, "tags", ())
    name = getattr(node.target, "__name__", "").partition(".")[0]
    return torch.Tag.nondeterministic_seeded in tags or name in _RANDOM


def _by_sequence(nodes: Iterable[Node], artifact: str) -> dict[int, tuple[str, ...]]:
    groups: dict[int, list[str]] = {}
    for node in nodes:
        if (number := node.meta.get("seq_nr")) is not None:
            groups.setdefault(number, []).append(f"{artifact}.{node.name}")
    return {number: tuple(names) for number, names in groups.items()}


def alias_decisions(facts: AotFacts, module: GraphModule, artifact: str, frame: str) -> list[Decision]:
    """Decisions about mutated and aliased values in the forward or inference graph `artifact`."""
    if facts.subclasses:
        kinds = ", ".join(facts.subclasses)
        why = f"tensors of {kinds} are taken apart: the graph works on the plain tensors inside of them"
        return [Decision(PASS, frame, (), "subclass", why)]
    return [*_mutations(facts, module, artifact, frame), *_views(facts, module, artifact, frame)]


def requires_grad(facts: AotFacts, module: GraphModule) -> dict[str, dict[str, bool]]:
    """Whether each input of the graph requires grad, by name."""
    if facts.subclasses:
        return {}
    inputs = zip(module.graph.find_nodes(op="placeholder"), facts.inputs, strict=False)
    return {node.name: {"requires_grad": fact.requires_grad} for node, fact in inputs}


def _mutations(facts: AotFacts, module: GraphModule, artifact: str, frame: str) -> Iterator[Decision]:
    for node, fact in zip(module.graph.find_nodes(op="placeholder"), facts.inputs, strict=False):
        subjects = (f"{artifact}.{node.name}",)
        if fact.mutated:
            yield Decision(PASS, frame, subjects, "mutated input", _MUTATED[fact.mutated])
        if fact.metadata_mutated:
            why = "the function changes the shape or strides of this input: that is done again after the graph has run"
            yield Decision(PASS, frame, subjects, "mutated layout", why)


def _views(facts: AotFacts, module: GraphModule, artifact: str, frame: str) -> Iterator[Decision]:
    returned = module.graph.output_node().args[0]
    for number, fact in enumerate(facts.outputs):
        why = _VIEWS.get(fact.kind, "").format(output=number, base=fact.base)
        place = facts.first_output + number
        source = returned[place] if isinstance(returned, tuple | list) and place < len(returned) else None
        if why:
            subjects = (f"{artifact}.{source.name}",) if isinstance(source, Node) else ()
            yield Decision(PASS, frame, subjects, "aliased output", why)
