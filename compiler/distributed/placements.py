"""Placements of the local tensors in AOTAutograd's graphs, and the causes of redistributions.

A captured graph holds DTensors, so its values have placements. AOTAutograd's graphs hold the local tensors of one
rank. A node there has the placements of the captured value that it computes; a node of a redistribution, those that
DTensor moved it to.

A DTensor's entity has `placements` ("Shard(1)"), one for each dimension of its `mesh` (name and size), and
`local_shape`; a local tensor has `placements` and `mesh` where they are known. A redistribution has `from_placements`
and `cause`; a call that a ParallelStyle makes has its name as `parallel_style`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch.fx import GraphModule

from compiler.capture.guard_words import input_name
from compiler.record import Artifact, Entity
from compiler.record.printed_code import short_name
from compiler.torch_api import fx
from compiler.torch_api.dtensor import Redistribution, Redistributions

Attrs = dict[str, dict[str, Any]]
"""Attributes to add to a node's entity, by node name."""


def explicit_causes(captured: Artifact) -> Attrs:
    """Causes of the calls of `redistribute` in a captured graph that change placements, by name."""
    known = {entity.id: entity for entity in captured.entities}
    attrs: Attrs = {}
    for entity in captured.entities:
        value = next(iter(_placed_inputs(entity, known)), None)
        if value is None or _operation(entity) not in ("redistribute", "full_tensor"):
            continue
        source, target = value.attrs["placements"], entity.attrs.get("placements", [])
        if source != target:
            asks = f"{_who_asks(entity)} asks for {_words(target)}" if target else "the code asks for the whole tensor"
            cause = f"{_how_it_was_made(value, known)}; {asks}"
            attrs[entity.label] = {"cause": cause, "from_placements": source}
    return attrs


def local_placements(module: GraphModule, artifact: Artifact, parent: Artifact, found: Redistributions) -> Attrs:
    """Placements and causes for the nodes of a graph of AOTAutograd, by name.

    `parent` is the graph before it, with DTensors as values.
    """
    before = {entity.id: entity for entity in parent.entities}
    attrs: Attrs = {}
    for label, whole in _parts(artifact, before).items():
        attrs[label] = {name: whole.attrs[name] for name in ("placements", "mesh")}
    entities = {entity.label: entity for entity in artifact.entities}
    causes = explicit_causes(parent)
    for graph, path in fx.graph_paths(module).items():
        for each in found.of_graph(graph):
            names = [fx.qualified_name(path, name) for name in each.nodes]
            nodes = [entities[name] for name in names if name in entities]
            origin = next(filter(None, (_origin(node, before) for node in nodes)), None)
            asked = causes.get(origin.label, {}).get("cause", "") if origin is not None else ""
            attrs |= _of_redistribution(each, nodes, origin, asked, before)
    for entity in artifact.entities:
        is_unexplained = is_collective(entity) and "cause" not in attrs.get(entity.label, {})
        if is_unexplained and (cause := _cause_of_call(entity, _origin(entity, before), before)):
            attrs[entity.label] = attrs.get(entity.label, {}) | {"cause": cause}
    return attrs


def _origin(entity: Entity, before: Mapping[str, Entity]) -> Entity | None:
    return next((before[name] for name in entity.origins if name in before), None)


def is_collective(entity: Entity) -> bool:
    """Whether a node calls a functional collective; waiting for one is none."""
    target = str(entity.attrs.get("target"))
    return "_c10d_functional" in target and "wait_tensor" not in target


def _cause_of_call(entity: Entity, origin: Entity | None, before: Mapping[str, Entity]) -> str:
    """Why a collective is there that changes no placements: the code calls it, or an operation computes on parts."""
    if origin is None:
        return ""
    name, is_backward = _operation(origin), bool(entity.attrs.get("backward"))
    if "_c10d_functional" in str(origin.attrs.get("target")):
        return f"the backward of the code's `{name}`" if is_backward else f"the code calls `{name}`"
    placed = _placed_inputs(origin, before)
    if not placed:
        return ""
    where = f"the backward of `{name}`" if is_backward else f"`{name}`"
    return f"{where} computes on each rank's part of {_join_words(map(_operand, placed))}, and combines the results"


def _parts(artifact: Artifact, before: Mapping[str, Entity]) -> dict[str, Entity]:
    """The forward's nodes that hold this rank's part of a captured DTensor, with that DTensor, by name.

    The last node that came from a DTensor, with the shape and dtype of the rank's part, is that part.
    """
    last: dict[str, str] = {}
    for entity in artifact.entities:
        for name in entity.origins:
            origin = before.get(name)
            if origin is not None and "placements" in origin.attrs and not entity.attrs.get("backward"):
                same = entity.attrs.get("shape") == origin.attrs["local_shape"]
                if same and entity.attrs.get("dtype") == origin.attrs.get("dtype"):
                    last[origin.id] = entity.label
    return {label: before[name] for name, label in last.items()}


def _of_redistribution(
    each: Redistribution, nodes: list[Entity], origin: Entity | None, known: str, before: Mapping[str, Entity]
) -> Attrs:
    """Attributes of a redistribution's collectives, of the nodes that wait for them, and of its result."""
    if not nodes:
        return {}
    source, target = list(each.source), list(each.target)
    is_backward = bool(nodes[0].attrs.get("backward"))
    cause = (not is_backward and not each.operator and known) or _cause(each, origin, before, is_backward=is_backward)
    common = {"cause": cause, "from_placements": source}
    result = common | {"placements": target, "mesh": [list(size) for size in each.mesh]}
    sent = [node for node in nodes[:-1] if is_collective(node) or "wait_tensor" in node.label]
    return {node.label: common for node in sent} | {nodes[-1].label: result}


def _cause(each: Redistribution, origin: Entity | None, before: Mapping[str, Entity], *, is_backward: bool) -> str:
    """Why DTensor changed the placements; `origin` is the captured call that led to it."""
    change = f"{_words(each.source)} becomes {_words(each.target)}"
    if origin is None:
        return f"DTensor redistributes: {change}"
    operation = f"`{_operation(origin)}`"
    if each.operator:
        operands = _join_words(map(_words, each.operands))
        where = f"in the backward of {operation}, " if is_backward else ""
        return f"{where}`{short_name(each.operator)}` can't take {operands} as they are: {change}"
    if not is_backward:
        return f"{_who_asks(origin)} asks for other placements: {change}"
    style = f"{_who_asks(origin)}: " if origin.attrs.get("parallel_style") else ""
    value = next((before[name] for name in origin.inputs if name in before), origin)
    subject = f"the result of `{_operation(value)}`" if value.kind == "call" else _path(value)
    return f"{style}gradient of {subject}, {change}"


def _who_asks(entity: Entity) -> str:
    """`RowwiseParallel of "down"`, or the code for a redistribution that no ParallelStyle makes."""
    style, module = str(entity.attrs.get("parallel_style", "")), entity.attrs.get("module", "")
    return f"{style} of `{module}`" if style and module else style or "the code"


def _how_it_was_made(value: Entity, known: Mapping[str, Entity]) -> str:
    """The operation that gave a DTensor, with the placements of its operands."""
    placed = _placed_inputs(value, known)
    if value.kind != "call" or not placed:
        return f"{_path(value)} is {_words(value.attrs['placements'])}"
    return f"`{_operation(value)}` of {_join_words(map(_operand, placed))} gives {_words(value.attrs['placements'])}"


def _placed_inputs(entity: Entity, known: Mapping[str, Entity]) -> list[Entity]:
    """The inputs of a captured operation that are DTensors."""
    return [known[name] for name in entity.inputs if name in known and "placements" in known[name].attrs]


def _operand(entity: Entity) -> str:
    return f"{_name(entity)} {_words(entity.attrs['placements'])}"


def _name(entity: Entity) -> str:
    """`weight` for a parameter or an argument; a computed value has no name in the user's code."""
    return _path(entity).strip("`").rpartition(".")[2]


def _path(entity: Entity) -> str:
    """`blocks.0.up.weight` for a parameter, `x` for an argument."""
    name = input_name(str(entity.attrs.get("source", "")))
    return f"`{name}`" if name else "the input"


def _operation(entity: Entity) -> str:
    return short_name(str(entity.attrs["target"]))


def _words(placements: Iterable[str]) -> str:
    """`Shard(1)`; on a mesh of more dimensions, `(Shard(0), Replicate())`."""
    names = list(placements)
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _join_words(words: Iterable[str]) -> str:
    *others, last = [*words] or [""]
    return f"{', '.join(others)} and {last}" if others else last
