"""Buffers of generated code that hold gathered weights: results of an all-gather of a parameter's shard."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from compiler.record import Artifact, Collective, Entity

_LONGEST_CHAIN = 12
"""Maximum number of nodes between a parameter and its all-gather: casts, views, padding."""


def gathered_weights(
    artifacts: Iterable[Artifact], collectives: Iterable[Collective], shard_bytes: Collection[int]
) -> set[str]:
    """Ids of the nodes and loops that gather a weight.

    A graph's input counts as a shard if it has the size of one: AOTAutograd replaces a DTensor by its parts, which
    have no link to the captured graph.
    """
    entities = {entity.id: entity for artifact in artifacts for entity in artifact.entities}
    calls = (each for each in collectives if each.kind == "all_gather" and each.origin == "graph")
    found = {
        node
        for call in calls
        for identity in call.entities
        if _reads_shard(entities, identity, shard_bytes)
        for node in (identity, call.wait)
    }
    for entity in entities.values():  # in order of the pipeline: origins come first
        if entity.origins and entity.kind != "line" and found.issuperset(entity.origins):
            found.add(entity.id)
    return found


def _reads_shard(entities: dict[str, Entity], identity: str, shard_bytes: Collection[int]) -> bool:
    """Whether a chain of first inputs leads from a node to an input of the graph that has the size of a shard."""
    for _ in range(_LONGEST_CHAIN):
        entity = entities.get(identity)
        if entity is None:
            return False
        if not entity.inputs:
            return entity.kind == "placeholder" and entity.attrs.get("bytes") in shard_bytes
        identity = entity.inputs[0]
    return False
