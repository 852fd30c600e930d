"""Dividing the joint graph in other ways: bytes kept against work done again, as a table, a chart and a control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.autograd.eager_memory import saved_by_eager
from compiler.autograd.partition import RECOMPUTED, Partition, partition
from compiler.calls.kept_graphs import KeptFrame
from compiler.record.plain_text import size_text

if TYPE_CHECKING:
    import pandas as pd
    from ipywidgets import Widget
    from matplotlib.figure import Figure

#: torch's own is 1: as fast as it can be. 0 keeps the inputs alone, as activation checkpointing of all of it does.
BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)


class Partitions:
    """The joint graphs of a run, divided anew when asked for; what was divided once is kept."""

    def __init__(self, kept: Mapping[str, KeptFrame]) -> None:
        self.kept = kept
        self.frames = {graph: frame for graph, frame in kept.items() if frame.joint is not None}
        self._made: dict[tuple[str, float | None], Partition] = {}

    def of(self, graph: str, budget: float | None) -> Partition:
        """A graph under a budget (0 to 1), or for None as `default_partition` divides it.

        Raises KeyError for a graph that was not divided, ValueError for another budget.
        """
        if graph not in self.frames:
            raise KeyError(f"no joint graph {graph!r} in this run; it has: {', '.join(self.frames) or 'none'}")
        joint = self.frames[graph].joint
        assert joint is not None
        if (graph, budget) not in self._made:
            self._made[graph, budget] = partition(joint, budget)
        return self._made[graph, budget]

    def table(self, budgets: Sequence[float] = BUDGETS) -> pd.DataFrame:
        """One row a way to divide, for each graph: eager's, `default_partition`'s, the minimum cut's for each budget.

        `activation_bytes` leaves out parameters and inputs, which are in memory anyway. `recomputed` are operations
        that the backward computes again, with what they compute (`recomputed_flops`) and write (`recomputed_bytes`).
        Raises ValueError for a run without a backward, or one that was loaded: it has no graphs to divide.
        """
        from explorer.reading.data_frames import table_of

        self._need_graphs()
        return table_of("partitions", [row for graph in self.frames for row in self._rows(graph, budgets)])

    def decisions(self, graph: str | None = None, budget: float | None = 1.0) -> pd.DataFrame:
        """One row a value that is kept or computed again under a budget, and why."""
        from explorer.reading.data_frames import table_of

        self._need_graphs()
        found = self.of(graph or next(iter(self.frames)), budget)
        kept = [_row("saved", value.name, value.operation, value.bytes, None, value.why) for value in found.saved]
        again = [
            _row("recomputed", one.name, one.operation, one.bytes, one.flops, RECOMPUTED) for one in found.recomputed
        ]
        return table_of("kept", kept + again)

    def plot(self, budgets: Sequence[float] = BUDGETS) -> Figure:
        """Bytes kept against work done again, a line a graph; eager and `default_partition` as points."""
        from explorer.render.plots import partition_chart

        return partition_chart(self.table(budgets))

    def control(self) -> Widget:
        """A slider for the budget with what it keeps and computes again, for a notebook."""
        from explorer.run.partition_control import control

        self._need_graphs()
        return control(self)

    def _rows(self, graph: str, budgets: Sequence[float]) -> list[dict[str, Any]]:
        captured = self.frames[graph].captured
        assert captured is not None
        eager = saved_by_eager(captured)
        rows = [_empty(graph, "eager") | {"saved": eager.tensors, "saved_bytes": eager.saved_bytes,
                                          "activation_bytes": eager.activation_bytes}]  # fmt: skip
        rows.append(self._partition_row(graph, "default (keep all)", None))
        return rows + [self._partition_row(graph, "min-cut", budget) for budget in budgets]

    def _partition_row(self, graph: str, name: str, budget: float | None) -> dict[str, Any]:
        found = self.of(graph, budget)
        return {
            "graph": graph,
            "partition": name,
            "budget": budget,
            "saved": len(found.saved),
            "saved_bytes": found.saved_bytes,
            "activation_bytes": found.activation_bytes,
            "recomputed": len(found.recomputed),
            "recomputed_flops": found.recomputed_flops,
            "recomputed_bytes": found.recomputed_bytes,
            "forward_ops": found.calls[0],
            "backward_ops": found.calls[1],
        }

    def _need_graphs(self) -> None:
        if not self.frames:
            raise ValueError(
                "this run has no joint graph to divide: explore a call that needs gradients (a run that was loaded "
                "from a file holds texts and facts, not graphs)"
            )

    def __str__(self) -> str:
        lines = [f"{graph}: {_words(self.of(graph, 1.0))}" for graph in self.frames]
        return "\n".join(lines) or "no joint graph: nothing was divided into forward and backward"

    __repr__ = __str__


def _words(found: Partition) -> str:
    return (
        f"{len(found.saved)} values kept for the backward ({size_text(found.saved_bytes)}, of these "
        f"{size_text(found.activation_bytes)} activations), {len(found.recomputed)} operations computed again"
    )


def _row(verdict: str, name: str, op: str, size: int, flops: int | None, why: str) -> dict[str, Any]:
    return {"verdict": verdict, "name": name, "op": op, "bytes": size, "flops": flops, "why": why}


def _empty(graph: str, name: str) -> dict[str, Any]:
    columns = ("budget", "recomputed", "recomputed_flops", "recomputed_bytes", "forward_ops", "backward_ops")
    return {"graph": graph, "partition": name} | dict.fromkeys(columns)
