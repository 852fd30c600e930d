"""Map each entity of a record to its source lines, each with the lines that called it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from compiler.binary.formulas import Node
from compiler.record import Entity, Record

Chain = tuple[str, ...]
"""Ids of source lines, outermost first."""


def line_chains(record: Record) -> dict[str, tuple[Chain, ...]]:
    """Chains of source lines by entity id; entities without lines are left out."""
    origins = {entity.id: entity.origins for entity in record.entities()}
    lines = {entity.id for artifact in record.of_stage("source") for entity in artifact.entities}
    known: dict[str, tuple[Chain, ...]] = {}
    for identity in origins:
        _follow(identity, origins, lines, known)
    return {identity: chains for identity, chains in known.items() if chains}


def _follow(
    identity: str, origins: Mapping[str, tuple[str, ...]], lines: Set[str], known: dict[str, tuple[Chain, ...]]
) -> None:
    """Add an entity's chains to `known`. The recursion depth is the number of stages."""
    if identity in known:
        return
    known[identity] = ()
    parents = origins.get(identity, ())
    own = tuple(parent for parent in parents if parent in lines)
    found = [own] if own else []
    for parent in parents:
        if parent not in own:
            _follow(parent, origins, lines, known)
            found.extend(known[parent])
    known[identity] = tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Works:
    """The work of a kernel call: nodes of the last graph, and their chains of source lines."""

    nodes: tuple[str, ...] = ()
    chains: tuple[Chain, ...] = ()


def works(record: Record) -> dict[str, Works]:
    """The work of each kernel call, by call id.

    A call's work is the operations that it computes, without views and constants, which take no time. For an extern
    matmul, convolution or attention, only that operation counts: other operations made its arguments. A call that only
    copies a tensor into another layout gets the lines that made the tensor, or for an input of the graph the lines that
    read the copy.
    """
    known = line_chains(record)
    nodes = {entity.id: entity for artifact in record.last_graphs() for entity in artifact.entities}
    entities = {entity.id: entity for entity in record.entities()}
    readers = _readers(entities.values())

    def work(of: Entity) -> Works:
        working = _nodes_that_compute([*_computed_nodes(of, nodes, entities)], extern=of.kind == "extern")
        sources = _products(working, entities) if of.kind == "extern" else working
        chains = tuple(dict.fromkeys(chain for node in sources for chain in known.get(node.id, ())))
        return Works(tuple(node.id for node in working), chains or known.get(of.id, ()))

    def chains_of_neighbours(call: Entity) -> tuple[Chain, ...]:
        parts = [entities[name] for name in call.origins if name in entities]
        makers = [entities[name] for part in parts for name in part.inputs if name in entities]
        reading = [reader for part in parts for reader in readers.get(part.id, ())]
        return _chains(map(work, makers)) or _chains(map(work, reading))

    calls = (entity for artifact in record.of_stage("kernels") for entity in artifact.entities)
    found = {call.id: (call, work(call)) for call in calls if call.kind in ("call", "extern")}
    return {
        name: done if done.chains else replace(done, chains=chains_of_neighbours(call))
        for name, (call, done) in found.items()
    }


def _chains(works: Iterable[Works]) -> tuple[Chain, ...]:
    return tuple(dict.fromkeys(chain for work in works for chain in work.chains))


def _readers(entities: Iterable[Entity]) -> Mapping[str, Sequence[Entity]]:
    """For each entity, by id: the entities of the same artifact that read it."""
    found: dict[str, list[Entity]] = {}
    for entity in entities:
        for name in entity.inputs:
            found.setdefault(name, []).append(entity)
    return found


def _computed_nodes(call: Entity, nodes: Mapping[str, Entity], entities: Mapping[str, Entity]) -> Iterator[Entity]:
    """Origins of a call among the nodes of the last graph, each once."""
    todo, seen = list(call.origins), set(call.origins)
    while todo:
        name = todo.pop(0)
        if name in nodes:
            yield nodes[name]
        elif name in entities:
            more = [origin for origin in entities[name].origins if origin not in seen]
            seen.update(more)
            todo.extend(more)


def _nodes_that_compute(nodes: Sequence[Entity], *, extern: bool) -> Sequence[Entity]:
    products = [node for node in nodes if _fact(node).is_matmul]
    if extern and products:
        return products
    return [node for node in nodes if node.inputs and not _fact(node).is_view] or nodes


def _products(nodes: Sequence[Entity], entities: Mapping[str, Entity]) -> Sequence[Entity]:
    """The matmuls among the nodes' origins (a pass may have moved an addition into a matmul), else the nodes."""
    before = [entities[origin] for node in nodes for origin in node.origins if origin in entities]
    return [node for node in before if _fact(node).is_matmul] or nodes


def _fact(node: Entity) -> Node:
    return Node(node.label, str(node.attrs.get("target", "")), (), {})
