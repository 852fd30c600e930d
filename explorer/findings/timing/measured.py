"""Attach measured times to entities, for the graph view's colours and for the inspector.

Each kernel call has its own time. It is split equally among the nodes that the kernel computes, and each share again
among the origins of the node, back to the captured graph. So the nodes of a stage sum to the time of its kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from compiler.record import Artifact, Entity, Record
from explorer.findings.timing.heat import SIDES, heats, seconds_in_words

ATTRIBUTE = "measured_µs"
Attributes = Mapping[str, float | str]


def add_measured_times(record: Record) -> Record:
    """Add the attribute `measured_µs` to each entity with a known time; lines get one attribute per side, in words."""
    known: dict[str, Attributes] = {
        name: {ATTRIBUTE: float(f"{time:.3g}")} for name, time in measured_times(record).items()
    } | {
        heat.line: {f"{side}_time": seconds_in_words(heat, side) for side in SIDES if heat.seconds(side)}
        for heat in heats(record)
    }
    if not known:
        return record
    return record.with_fields(artifacts=tuple(_with_times(artifact, known) for artifact in record.artifacts))


def measured_times(record: Record) -> dict[str, float]:
    """Entity id -> microseconds in one compiled call, for kernel calls, kernels, and the nodes that they compute."""
    times = [time for time in record.kernel_times if time.kernel]
    entities = {entity.id: entity for entity in record.entities()} if times else {}
    found: dict[str, float] = defaultdict(float)
    for time in times:
        amount = 1e6 * time.seconds
        for identity in dict.fromkeys((time.call, time.kernel)):
            found[identity] += amount
        if time.call in entities:
            loops = _existing_ids(entities[time.call].origins, entities)
            _share(amount, [name for name in loops if entities[name].kind not in ("call", "kernel")], found)
        _share_back(amount, _existing_ids(time.nodes, entities), entities, found)
    return dict(found)


def _share(amount: float, ids: Iterable[str], found: dict[str, float]) -> None:
    shared = list(ids)
    for identity in shared:
        found[identity] += amount / len(shared)


def _share_back(amount: float, ids: list[str], entities: Mapping[str, Entity], found: dict[str, float]) -> None:
    """Split a time equally among nodes, then each node's share among its origins, back to the captured graph."""
    _share(amount, ids, found)
    for identity in ids:
        made_of = [
            each for each in _existing_ids(entities[identity].origins, entities) if entities[each].kind == "call"
        ]
        if made_of:
            _share_back(amount / len(ids), made_of, entities, found)


def _existing_ids(ids: Iterable[str], entities: Mapping[str, Entity]) -> list[str]:
    return [identity for identity in ids if identity in entities]


def _with_times(artifact: Artifact, known: Mapping[str, Attributes]) -> Artifact:
    if not any(entity.id in known for entity in artifact.entities):
        return artifact
    return replace(artifact, entities=tuple(_with_time(entity, known.get(entity.id)) for entity in artifact.entities))


def _with_time(entity: Entity, known: Attributes | None) -> Entity:
    return entity if known is None else replace(entity, attrs={**entity.attrs, **known})
