"""The collectives of one rank as facts of a record, read from its graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch.distributed as dist
from torch.fx import GraphModule

from compiler.distributed.group import SimulatedGroup
from compiler.record import Artifact, Collective, Entity, GraphHalf, Group, Place, Span
from compiler.record.builder import Builder
from compiler.record.distributed_facts import GPUS_A_NODE
from compiler.targets import known_target
from compiler.torch_api.collective_times import collective_time
from compiler.torch_api.collectives import (
    CollectiveCall,
    collective_calls,
    group_facts,
    is_initialized,
    is_simulated,
)
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


def graph_collectives(module: GraphModule, artifact: Artifact) -> Iterator[tuple[Collective, Group]]:
    """The collectives of one half of a graph, each with its group. `artifact` is the graph's."""
    causes = {entity.id: str(entity.attrs.get("cause", "")) for entity in artifact.entities}
    for order, call in enumerate(collective_calls(module)):
        yield _collective(call, artifact, causes.get(f"{artifact.id}.{call.name}", ""), order), call.group


def _collective(call: CollectiveCall, artifact: Artifact, cause: str, order: int) -> Collective:
    place = f"{artifact.graph} {artifact.half}".strip()
    return call.collective(
        id=f"collective[{place}].{call.name}",
        graph=artifact.graph,
        half=artifact.half,
        wait=f"{artifact.id}.{call.wait}" if call.wait else "",
        entities=(f"{artifact.id}.{call.name}",),
        cause=cause,
        order=order,
    )


class CollectiveLog:
    """Collects the collectives of all graphs; later stages of a graph replace earlier ones."""

    def __init__(self) -> None:
        self._found: dict[str, dict[GraphHalf, list[Collective]]] = {}
        self._groups: dict[str, Group] = {}

    def add_graph(self, module: GraphModule, artifact: Artifact) -> None:
        """Read a graph: as captured, one half by AOTAutograd, or one half after Inductor's passes."""
        if artifact.stage not in _STAGES or not is_initialized():
            return
        found = list(graph_collectives(module, artifact))
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
        builder.groups |= self._groups
        if found:
            links = _Links(builder.artifacts.values())
            builder.collectives.extend(map(links.link, in_order_of_execution(found)))


def add_estimates(builder: Builder) -> None:
    """Add estimated times to the collectives of graphs and hooks, for GPUs of the target."""
    builder.collectives[:] = [
        with_estimate(each, builder.groups.get(each.group), builder.place, builder.target)
        for each in builder.collectives
    ]


def with_estimate(found: Collective, group: Group | None, place: Place | None, target: str) -> Collective:
    """The collective with its estimated time on GPUs of the target; unchanged if torch has no model for it."""
    gpu = known_target(target)
    is_fused = found.operator.startswith("symm_mem.")  # async TP: a matmul in pieces, with its collective
    if gpu is None or gpu.vendor != "nvidia" or group is None or not group.ranks or is_fused:
        return found
    node = (place.node_size if place is not None else 0) or GPUS_A_NODE
    on_node = max(Counter(rank // node for rank in group.ranks).values())
    time = collective_time(
        found.kind, found.bytes, group_size=len(group.ranks), ranks_on_node=on_node, capability=gpu.capability
    )
    return found if time is None else replace(found, seconds=time.seconds, algorithm=time.algorithm)


class _Links:
    """Finds the user's lines that a call in a graph comes from, and the call in the generated code."""

    def __init__(self, artifacts: Iterable[Artifact]) -> None:
        self._up: dict[str, tuple[str, ...]] = {}
        self._lines: dict[str, Span] = {}
        self._code: dict[str, list[str]] = {}
        for artifact in artifacts:
            for entity in artifact.entities:
                self._up[entity.id] = entity.origins
                if artifact.stage == "source" and "line" in entity.attrs:
                    self._lines[entity.id] = _span(entity, installed=bool(artifact.attrs.get("installed")))
                elif artifact.stage == "kernels" and entity.kind == "extern":
                    for node in self._nodes_of(entity):
                        self._code.setdefault(node, []).append(entity.id)

    def _nodes_of(self, entity: Entity) -> Iterator[str]:
        """The nodes of the last graph that a call of the generated code comes from, through the loops."""
        for loops in entity.origins:
            for unfused in self._up.get(loops, ()):
                yield from self._up.get(unfused, ())

    def link(self, found: Collective) -> Collective:
        """Add the calls in the generated code, and the lines."""
        code = [call for node in found.entities for call in self._code.get(node, ())]
        entities = tuple(dict.fromkeys((*found.entities, *code)))
        return replace(found, entities=entities, lines=self._lines_of(found.entities[0]))

    def _lines_of(self, node: str) -> tuple[Span, ...]:
        """Lines of the first node that was traced from lines, innermost first; of installed code only if alone."""
        todo, seen = [node], {node}
        while todo:
            origins = self._up.get(todo.pop(0), ())
            lines = [self._lines[origin] for origin in reversed(origins) if origin in self._lines]
            if lines:
                return tuple(line for line in lines if not line.installed) or tuple(lines)
            fresh = [origin for origin in origins if origin not in seen]
            seen.update(fresh)
            todo += fresh
        return ()


def _span(entity: Entity, *, installed: bool) -> Span:
    attrs = entity.attrs
    return Span(attrs["file"], attrs["line"], attrs["line"], code=attrs.get("code", ""), installed=installed)


_STAGES = ("captured", "forward", "backward", "inference", "post_grad")


def in_order_of_execution(found: Sequence[Collective]) -> list[Collective]:
    """Number collectives over all graphs: forwards in the order of their capture, then backwards in the reverse."""
    graphs = list(dict.fromkeys(each.graph for each in found))

    def key(each: Collective) -> tuple[bool, int, int]:
        number, is_backward = graphs.index(each.graph), each.half == "backward"
        return is_backward, -number if is_backward else number, each.order

    return [replace(each, order=order) for order, each in enumerate(sorted(found, key=key))]
