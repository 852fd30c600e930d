"""A control to divide a joint graph anew: choose a graph and a budget, see what is kept and what is computed again."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from compiler.autograd.partition import Partition
from compiler.record.plain_text import size_text
from explorer.run.partitions import Partitions

MOST_ROWS = 40


def control(partitions: Partitions) -> widgets.Widget:
    """The control as a widget; `value` of its slider is the budget."""
    graph = widgets.Dropdown(options=list(partitions.frames), description="graph")
    method = widgets.ToggleButtons(
        options=["minimum cut", "keep all"], tooltips=["torch's partitioner", "default_partition"]
    )
    budget = widgets.FloatSlider(value=1.0, min=0.0, max=1.0, step=0.05, description="budget", continuous_update=False)
    shown = widgets.HTML()

    def show(_: object = None) -> None:
        budget.disabled = method.value == "keep all"
        found = partitions.of(graph.value, None if budget.disabled else budget.value)
        shown.value = summary(found, partitions.of(graph.value, 1.0))

    for widget in (graph, method, budget):
        widget.observe(show, "value")
    show()
    return widgets.VBox([widgets.HBox([graph, method, budget]), shown])


def summary(found: Partition, usual: Partition) -> str:
    """What a partition keeps and computes again, as HTML, beside torch's usual one."""
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
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[:MOST_ROWS])
    left = f"<p>and {len(rows) - MOST_ROWS} more</p>" if len(rows) > MOST_ROWS else ""
    return f"<details open><summary>{title}: {len(rows)}</summary><table>{cells}</table>{left}</details>"
