"""Chart of a sweep: speed-up by size, a line for each candidate, and eager as the line at 1."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.ticker import FixedLocator, NullLocator

from explorer.reading.plain_text import clip
from explorer.render.plots import COLOURS, Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from explorer.findings.sweep.sweep import Curve, Sweep

_MARKERS = "osD^vP"
_TITLE_CHARACTERS = 85
_ROOM, _NARROW = 1.25, 3.5
_APART = 0.035
"""Horizontal spread of the lines, as a fraction of the axis, so that error bars at one size do not overlap."""


def sweep_chart(sweep: Sweep) -> Figure:
    """Plot the speed-up by size, or by candidate and dtype if no sizes were swept.

    Raises ValueError if no point could be compared with eager.
    """
    curves = [curve for curve in sweep.curves if curve.points]
    if not curves:
        raise ValueError("no point of this sweep could be compared with eager")
    figure = Chart(figsize=(8, 4.6), layout="constrained")
    axes = figure.add_subplot()
    sizes = sorted({size for curve in curves for size, _ in curve.points if size is not None})
    if sizes:
        _by_size(axes, curves, sizes)
    else:
        _by_name(axes, curves)
    axes.axhline(1, color="#5f6873", linestyle="--", linewidth=1.2, zorder=1)
    axes.annotate("eager", (1, 1), xycoords=("axes fraction", "data"), xytext=(-2, 3), textcoords="offset points",
                  ha="right", fontsize=8.5, color="#5f6873")  # fmt: skip
    _speed_up_axis(axes, [ratio.value for curve in curves for _, ratio in curve.points])
    first = clip(f"{sweep.title or 'The call'}: speed-up over eager, with its quartiles", _TITLE_CHARACTERS)
    title = [first, *textwrap.wrap(sweep.elsewhere, _TITLE_CHARACTERS)]
    axes.set_title("\n".join(title), loc="left", fontsize=10.5, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure


def _speed_up_axis(axes: Axes, values: Sequence[float]) -> None:
    """Set a log scale for the speed-up, so that 2 × and 0.5 × are equally far from 1. Long error bars are clipped."""
    low, high = min(0.9, *values) / _ROOM, max(1.1, *values) * _ROOM
    fine = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2)
    ticks = fine if high / low < _NARROW else [2.0**power for power in range(-10, 11)]
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g} ×")
    axes.set_ylabel("times as fast as eager")


def _by_size(axes: Axes, curves: Sequence[Curve], sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    width = max(sizes[-1] / sizes[0], 1.5)
    for number, curve in enumerate(curves):
        apart = width ** (_APART * (number - (len(curves) - 1) / 2) / max(len(curves) - 1, 1))
        x = [size * apart for size, _ in curve.points if size is not None]
        _line(axes, number, curve, x, "-")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    axes.set_xlim(sizes[0] / width**0.06, sizes[-1] * width**0.06)
    axes.set_xlabel("batch")
    axes.legend(frameon=False)


def _by_name(axes: Axes, curves: Sequence[Curve]) -> None:
    for number, curve in enumerate(curves):
        _line(axes, number, curve, [number], "")
    axes.set_xticks(range(len(curves)), [curve.name for curve in curves], parse_math=False)
    axes.set_xlim(-0.6, len(curves) - 0.4)


def _line(axes: Axes, number: int, curve: Curve, x: Sequence[float], line: str) -> None:
    ratios = [ratio for _, ratio in curve.points]
    y = [ratio.value for ratio in ratios]
    spread = [[ratio.value - ratio.low for ratio in ratios], [ratio.high - ratio.value for ratio in ratios]]
    axes.errorbar(x, y, yerr=spread, color=COLOURS[number % len(COLOURS)], marker=_MARKERS[number % len(_MARKERS)],
                  linestyle=line, capsize=3, linewidth=1.5, markersize=6, label=curve.name, zorder=3)  # fmt: skip
