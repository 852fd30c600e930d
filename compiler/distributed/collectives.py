"""The collectives of one rank as facts of a record, read from its graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch.distributed as dist
from torch.fx import GraphModule

from compiler.distributed.group import SimulatedGroup
from compiler.record import Artifact, Collective, Entity, GraphHalf, Group, Place, Span
from compiler.record.builder import Builder
from compiler.torch_api.collectives import CollectiveCall, collective_calls, group_facts, is_initialized, is_simulated
from compiler.torch_api.shard_shapes import Sharding


def place_of_process(found: Sequence[Sharding] = ()) -> Place | None:
    """The rank of this process in the default process group; None without one.

    Its mesh is the last one that was made in a simulated job, or that of a call whose tensors are split as in `found`.
    """
    if SimulatedGroup.active is not None:
        return SimulatedGroup.active.place()
    if not is_initialized():
        return None
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = next((each for each in found if len(each.ranks) == world), None)
    if whole is None:
        return Place(rank, world)
    return Place(rank, world, tuple(zip(whole.names, whole.mesh, strict=True)), whole.coordinates(rank))


def graph_collectives(module: GraphModule, artifact: Artifact, half: GraphHalf) -> Iterator[tuple[Collective, Group]]:
    """The collectives of one half of a graph, each with its group. `artifact` is the graph's."""
    entities = {entity.id: entity for entity in artifact.entities}
    for order, call in enumerate(collective_calls(module)):
        identity = f"{artifact.id}.{call.name}"
        yield _collective(call, artifact, half, entities.get(identity), order), call.group


def _collective(
    call: CollectiveCall, artifact: Artifact, half: GraphHalf, entity: Entity | None, order: int
) -> Collective:
    place = f"{artifact.graph} {half}".strip()
    return Collective(
        id=f"collective[{place}].{call.name}",
        kind=call.kind,
        graph=artifact.graph,
        half=half,
        operator=call.operator,
        group=call.group.name,
        group_size=len(call.group.ranks),
        reduction=call.reduction,
        dtype=call.dtype,
        tensors=call.tensors,
        input_bytes=call.input_bytes,
        output_bytes=call.output_bytes,
        wait=f"{artifact.id}.{call.wait}" if call.wait else "",
        entities=(f"{artifact.id}.{call.name}",),
        lines=_lines_of(entity),
        cause=str(entity.attrs.get("cause", "")) if entity is not None else "",
        order=order,
    )


def _lines_of(entity: Entity | None) -> tuple[Span, ...]:
    attrs = entity.attrs if entity is not None else {}
    if "line" not in attrs:
        return ()
    return (Span(attrs.get("file", ""), attrs["line"], attrs["line"], code=attrs.get("code", "")),)


class CollectiveLog:
    """Collects the collectives of all graphs; later stages of a graph replace earlier ones."""

    def __init__(self) -> None:
        self._found: dict[str, dict[GraphHalf, list[Collective]]] = {}
        self._groups: dict[str, Group] = {}

    def add_graph(self, module: GraphModule, artifact: Artifact) -> None:
        """Read a graph: as captured, one half by AOTAutograd, or one half after Inductor's passes."""
        if artifact.stage not in _STAGES or not is_initialized():
            return
        found = list(graph_collectives(module, artifact, artifact.half))
        halves = self._found.setdefault(artifact.graph, {})
        if artifact.half:
            halves.pop("", None)
        halves[artifact.half] = [collective for collective, _ in found]
        self._groups |= {group.name: group for _, group in found}

    def copy_graph(self, graph: str, found: Sequence[Collective]) -> None:
        """Take the collectives of a graph that another rank has compiled; their groups are this rank's."""
        halves = self._found[graph] = {}
        for each in found:
            halves.setdefault(each.half, []).append(each)
            self._groups[each.group] = group_facts(each.group)

    def finish(self, builder: Builder) -> None:
        """Add the rank's place, and collectives and groups, to the record. The process group must still exist."""
        builder.place = builder.place or place_of_process()
        if is_simulated():
            builder.origin = "simulated"
        found = [each for halves in self._found.values() for calls in halves.values() for each in calls]
        builder.collectives.extend(in_order_of_execution(found))
        builder.groups |= self._groups


_STAGES = ("captured", "forward", "backward", "inference", "post_grad")


def in_order_of_execution(found: Sequence[Collective]) -> list[Collective]:
    """Number collectives over all graphs: forwards in the order of their capture, then backwards in the reverse."""
    graphs = list(dict.fromkeys(each.graph for each in found))

    def key(each: Collective) -> tuple[bool, int, int]:
        number, is_backward = graphs.index(each.graph), each.half == "backward"
        return is_backward, -number if is_backward else number, each.order

    return [replace(each, order=order) for order, each in enumerate(sorted(found, key=key))]
