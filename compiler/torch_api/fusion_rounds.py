"""The steps by which Inductor's scheduler fuses two nodes: the round, and the score.

The scheduler goes over all pairs in rounds until nothing changes, and once more with loops reordered
(`Scheduler.fuse_nodes` of torch._inductor.scheduler). A step is read when it is made; nothing is formatted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._inductor.scheduler import BaseSchedulerNode, Scheduler, WhyNoFuse

from compiler.torch_api.patching import Original, around


@dataclass(frozen=True, slots=True)
class MergeFacts:
    """Nodes `first` and `second` became `name`, and `saved` bytes, by `score_fusion_memory`."""

    round: int
    first: str
    second: str
    name: str
    saved: int
    reordered: bool


class FusionRounds:
    """Tells `merged` of each fused pair, and `refused` of each pair not fused, with the round."""

    def __init__(self, merged: Callable[[MergeFacts], None], refused: Callable[[str, str, str, int], None]) -> None:
        self.merged = merged
        self.refused = refused
        self.round = 0
        self.reordered = False

    def wrappers(self) -> list[tuple[Any, str, Callable[[Any], Any]]]:
        return [
            (Scheduler, "fuse_nodes", around(self.observe_fuse_nodes)),
            (Scheduler, "fuse_nodes_once", around(self.observe_fuse_nodes_once)),
            (Scheduler, "fuse_two_nodes", around(self.observe_fuse_two_nodes)),
            (WhyNoFuse, "__call__", around(self.observe_why_no_fuse)),
        ]

    def observe_fuse_nodes(self, fuse: Original, scheduler: Scheduler, nodes: Any) -> Any:
        self.round = 0
        return fuse(scheduler, nodes)

    def observe_fuse_nodes_once(self, fuse: Original, scheduler: Scheduler, nodes: Any, is_reorder_round: bool) -> Any:
        self.round += 1
        self.reordered = is_reorder_round
        return fuse(scheduler, nodes, is_reorder_round)

    def observe_fuse_two_nodes(
        self,
        fuse: Original,
        scheduler: Scheduler,
        first: BaseSchedulerNode,
        second: BaseSchedulerNode,
        *args: Any,
    ) -> Any:
        saved = int(scheduler.score_fusion_memory(first, second))
        names = first.get_name(), second.get_name()
        fused = fuse(scheduler, first, second, *args)
        self.merged(MergeFacts(self.round, *names, fused.get_name(), saved, self.reordered))
        return fused

    def observe_why_no_fuse(self, call: Original, why: WhyNoFuse, reason: str, *args: Any) -> Any:
        self.refused(why.name1, why.name2, reason % args if args else reason, self.round)
        return call(why, reason, *args)
