"""The collectives of one rank as facts of a record, read from its graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch.distributed as dist
from torch.fx import GraphModule

from compiler.distributed.graph_collectives import STAGES_WITH_COLLECTIVES, GraphCollectives
from compiler.distributed.group import SimulatedGroup
from compiler.record import Artifact, Collective, Group, RankPlace
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


def place_of_process(found: Sequence[Sharding] = ()) -> RankPlace | None:
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
        return RankPlace(rank, world)
    return RankPlace(rank, world, tuple(zip(whole.names, whole.mesh, strict=True)), whole.coordinates(rank))


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
        self._found = GraphCollectives()

    def add_graph(self, module: GraphModule, artifact: Artifact) -> None:
        """Read a graph: as captured, one half by AOTAutograd, or one half after Inductor's passes."""
        if artifact.stage in STAGES_WITH_COLLECTIVES and is_initialized():
            self._found.add(artifact, list(graph_collectives(module, artifact)))

    def copy_graph(self, graph: str, found: Sequence[Collective]) -> None:
        """Take the collectives of a graph that another rank has compiled; their groups are this rank's."""
        halves = self._found.by_graph[graph] = {}
        for each in found:
            halves.setdefault(each.half, []).append(each)
            self._found.groups[each.group] = group_facts(each.group)

    def finish(self, builder: Builder) -> None:
        """Add the rank's place, and collectives and groups, to the record. The process group must still exist."""
        builder.place = builder.place or place_of_process()
        if is_simulated():
            builder.origin = "simulated"
        builder.groups |= self._found.groups
        builder.collectives.extend(self._found.collectives_in_order(builder.artifacts.values()))


def add_estimates(builder: Builder) -> None:
    """Add estimated times to the collectives of graphs and hooks, for GPUs of the target."""
    builder.collectives[:] = [
        with_estimate(each, builder.groups.get(each.group), builder.place, builder.target)
        for each in builder.collectives
    ]


def with_estimate(found: Collective, group: Group | None, place: RankPlace | None, target: str) -> Collective:
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
