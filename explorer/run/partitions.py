"""Other partitions of the joint graph: bytes saved against FLOPs recomputed, as a table, chart and control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.autograd.eager_memory import saved_by_eager
from compiler.autograd.partition import RECOMPUTED, Partition, partition
from compiler.calls.kept_graphs import KeptFrame
from compiler.record.plain_text import size_text
from explorer.render.html import details, left_out_note, table_html

if TYPE_CHECKING:
    import pandas as pd
    from ipywidgets import Widget
    from matplotlib.figure import Figure

MOST_ROWS = 40
#: torch's default is 1, the fastest. 0 saves only the inputs, like activation checkpointing of the whole graph.
BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)


class Partitions:
    """The joint graphs of a run, partitioned on request; partitions are cached."""

    def __init__(self, kept: Mapping[str, KeptFrame]) -> None:
        self.kept = kept
        self.frames = {graph: frame for graph, frame in kept.items() if frame.joint is not None}
        self._made: dict[tuple[str, float | None], Partition] = {}

    def divide(self, graph: str, budget: float | None) -> Partition:
        """Partition a graph under a budget (0 to 1), or by `default_partition` (None).

        Raises KeyError for a graph without a joint graph, ValueError for a budget out of range.
        """
        if graph not in self.frames:
            raise KeyError(f"no joint graph {graph!r} in this run; it has: {', '.join(self.frames) or 'none'}")
        joint = self.frames[graph].joint
        assert joint is not None
        if (graph, budget) not in self._made:
            self._made[graph, budget] = partition(joint, budget)
        return self._made[graph, budget]

    def table(self, budgets: Sequence[float] = BUDGETS) -> pd.DataFrame:
        """One row per partition of each graph: eager's, `default_partition`'s, and the min-cut's for each budget.

        `activation_bytes` leaves out parameters and inputs, which are in memory anyway. `recomputed` counts operations
        that the backward recomputes, with their FLOPs (`recomputed_flops`) and bytes written (`recomputed_bytes`).
        Raises ValueError for a run without a backward, or a loaded run, which has no graphs to partition.
        """
        from explorer.reading.data_frames import table_of

        self._need_graphs()
        return table_of("partitions", [row for graph in self.frames for row in self._rows(graph, budgets)])

    def decisions(self, graph: str | None = None, budget: float | None = 1.0) -> pd.DataFrame:
        """One row per value saved or recomputed under a budget, with the reason. `budget` is that of `divide`."""
        from explorer.reading.data_frames import table_of

        self._need_graphs()
        found = self.divide(graph or next(iter(self.frames)), budget)
        kept = [_row("saved", value.name, value.operation, value.bytes, None, value.why) for value in found.saved]
        again = [
            _row("recomputed", one.name, one.operation, one.bytes, one.flops, RECOMPUTED) for one in found.recomputed
        ]
        return table_of("kept", kept + again)

    def plot(self, budgets: Sequence[float] = BUDGETS) -> Figure:
        """Plot recomputed against saved bytes: one line per graph, and points for eager and `default_partition`."""
        from explorer.render.plots import partition_chart

        return partition_chart(self.table(budgets))

    def control(self) -> Widget:
        """Notebook controls for graph, method and budget, above the values that the partition saves and recomputes."""
        import ipywidgets as widgets

        self._need_graphs()
        graph = widgets.Dropdown(options=list(self.frames), description="graph")
        method = widgets.ToggleButtons(
            options=["minimum cut", "keep all"], tooltips=["torch's partitioner", "default_partition"]
        )
        budget = widgets.FloatSlider(
            value=1.0, min=0.0, max=1.0, step=0.05, description="budget", continuous_update=False
        )
        shown = widgets.HTML()

        def show(_: object = None) -> None:
            budget.disabled = method.value == "keep all"
            found = self.divide(graph.value, None if budget.disabled else budget.value)
            shown.value = partition_html(found, self.divide(graph.value, 1.0))

        for widget in (graph, method, budget):
            widget.observe(show, "value")
        show()
        return widgets.VBox([widgets.HBox([graph, method, budget]), shown])

    def _rows(self, graph: str, budgets: Sequence[float]) -> list[dict[str, Any]]:
        captured = self.frames[graph].captured
        assert captured is not None
        eager = saved_by_eager(captured)
        return [
            {"graph": graph, "partition": "eager", "saved": eager.tensors, "saved_bytes": eager.saved_bytes,
             "activation_bytes": eager.activation_bytes},
            self._partition_row(graph, "default (keep all)", None),
            *(self._partition_row(graph, "min-cut", budget) for budget in budgets),
        ]  # fmt: skip

    def _partition_row(self, graph: str, name: str, budget: float | None) -> dict[str, Any]:
        found = self.divide(graph, budget)
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
        lines = [f"{graph}: {_words(self.divide(graph, 1.0))}" for graph in self.frames]
        return "\n".join(lines) or "no joint graph: nothing was divided into forward and backward"

    __repr__ = __str__


def _words(found: Partition) -> str:
    return (
        f"{len(found.saved)} values kept for the backward ({size_text(found.saved_bytes)}, of these "
        f"{size_text(found.activation_bytes)} activations), {len(found.recomputed)} operations computed again"
    )


def _row(verdict: str, name: str, op: str, size: int, flops: int | None, why: str) -> dict[str, Any]:
    return {"verdict": verdict, "name": name, "op": op, "bytes": size, "flops": flops, "why": why}


def partition_html(found: Partition, usual: Partition) -> str:
    """HTML of the values that a partition saves and recomputes, compared with `usual`, the min-cut for budget 1."""
    more = found.activation_bytes - usual.activation_bytes
    against = "" if not more else f" ({size_text(abs(more))} {'more' if more > 0 else 'less'} than usual)"
    head = (
        f"<p><b>{size_text(found.activation_bytes)}</b> of activations kept{against}; <b>{len(found.recomputed)}</b> "
        f"operations computed again, which write {size_text(found.recomputed_bytes)} and compute "
        f"{found.recomputed_flops / 1e6:,.1f} Mflop.</p>"
    )
    kept = sorted((value for value in found.saved if not value.is_input), key=lambda value: -value.bytes)
    rows = [(value.name, value.operation, size_text(value.bytes), value.why) for value in kept]
    again = [(node.name, node.operation, size_text(node.bytes), f"{node.flops:,} flop") for node in found.recomputed]
    return head + _table("Kept", rows) + _table("Computed again", again)


def _table(title: str, rows: list[tuple[str, str, str, str]]) -> str:
    if not rows:
        return ""
    head = ("value", "operation", "bytes", "why" if title == "Kept" else "work")
    more = left_out_note(len(rows), MOST_ROWS, "values", "run.partitions.decisions()")
    return details(f"{title}: {len(rows)}", table_html(head, rows[:MOST_ROWS]) + more, is_open=True)
