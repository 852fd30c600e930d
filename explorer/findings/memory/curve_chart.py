"""Chart of the peak memory of a rank against the number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from explorer.findings.memory.memory import KINDS
from explorer.render.plots import Chart

if TYPE_CHECKING:
    from explorer.findings.memory.curve import MemoryCurve

_MIB = 2**20
_COLOURS = {
    "parameters": "#4477aa", "shards": "#5b9bd5", "optimizer states": "#8877c4", "buckets": "#7f8c94",
    "inputs": "#b3a86f", "gathered weights": "#e0a030", "activations": "#44996f", "gradients": "#cc5c54",
}  # fmt: skip
"""The colours of the live memory view (memory.css)."""


def curve_chart(curve: MemoryCurve) -> Figure:
    """Plot the formula as layers over the number of ranks, and the simulated peaks as points."""
    ranks = [2**power for power in range(13)]
    kinds = [kind for kind in KINDS if kind in curve.formula]
    layers = [[(curve.formula[kind][0] + curve.formula[kind][1] / each) / _MIB for each in ranks] for kind in kinds]
    figure = Chart(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.stackplot(ranks, layers, labels=kinds, colors=[_COLOURS[kind] for kind in kinds], alpha=0.85)
    for number, sizes in curve.points.items():
        label = f"left out of the fit: {100 * curve.error:+.1f} %" if number == curve.checked else None
        marker = "D" if number == curve.checked else "o"
        axes.plot(number, sum(sizes.values()) / _MIB, marker, color="black", markerfacecolor="white", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks[::2], [f"{each:,}" for each in ranks[::2]])
    axes.set_xlabel("ranks")
    axes.set_ylabel("peak of one rank (MiB)")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, reverse=True)
    return figure
