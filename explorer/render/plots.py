"""Charts with matplotlib. They are made without pyplot, so that the user's figures stay unchanged."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Okabe and Ito's palette, distinguishable with any colour vision (jfly.uni-koeln.de/color).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MIB = 2**20


class Chart(Figure):
    """A figure that notebooks display without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def partition_chart(table: pd.DataFrame) -> Figure:
    """Plot saved activation bytes against recomputed bytes, one curve for each graph of `Partitions.table`."""
    figure = Chart(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (graph, rows) in enumerate(table.groupby("graph", sort=False)):
        _curve(axes, f"graph {graph}", rows, COLOURS[number % len(COLOURS)])
    axes.set_xlabel("activations kept for the backward (MiB)")
    axes.set_ylabel("written again in the backward (MiB)")
    axes.set_title("What is kept, and what is computed again")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return figure


def _curve(axes: Axes, name: str, rows: pd.DataFrame, colour: str) -> None:
    cut = rows[rows["partition"] == "min-cut"]
    kept, again = cut["activation_bytes"] / _MIB, cut["recomputed_bytes"] / _MIB
    axes.plot(kept, again, marker="o", color=colour, label=f"{name}: minimum cut, by budget")
    budgets: dict[tuple[float, float], list[str]] = {}
    for x, y, budget in zip(kept, again, cut["budget"], strict=True):
        budgets.setdefault((x, y), []).append(f"{budget:g}")
    for place, labels in budgets.items():
        axes.annotate(", ".join(labels), place, textcoords="offset points", xytext=(6, 5), fontsize=8, color=colour)
    for partition, marker in (("default (keep all)", "s"), ("eager", "D")):
        [row] = rows[rows["partition"] == partition].to_dict("records")
        height = row["recomputed_bytes"] if partition != "eager" else 0
        axes.scatter(row["activation_bytes"] / _MIB, height / _MIB, marker=marker, s=50, facecolors="none",
                     edgecolors=colour, label=f"{name}: {partition}", zorder=3)  # fmt: skip
