"""Bar chart of the measured candidates, with their quartiles, and eager as the reference line."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl

from compiler.record import Record
from explorer.findings.timing.compared import Timed, by_call, median_of, timed_candidates
from explorer.findings.timing.words import (
    Unit,
    elsewhere_text,
    range_text,
    ratio_text,
    shared_unit,
    spread_text,
    time_text,
)
from explorer.reading.plain_text import clip
from explorer.render.plots import COLOURS, Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TONES = {"faster": COLOURS[0], "slower": COLOURS[1], "equal": "#b9c1ca"}
_EAGER = "#8b95a1"
_ROW_INCHES, _AROUND_INCHES = 0.52, 1.35
_TITLE_CHARACTERS, _NAME_CHARACTERS = 75, 40


def timing_chart(record: Record) -> Figure:
    """Plot the median time of each candidate with its quartiles, one panel for each call and device.

    Raises ValueError if nothing was timed.
    """
    groups = [measured for group in by_call(timed_candidates(record)) if (measured := _drop_failed(group))]
    if not groups:
        raise ValueError("nothing was timed in this run: explore with --time (time=True)")
    heights = [_AROUND_INCHES + _ROW_INCHES * len(group) for group in groups]
    figure = Chart(figsize=(8, sum(heights)), layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, group in zip(panels[:, 0], groups, strict=True):
        _panel(axes, group, record)
    return figure


def svg(figure: Figure) -> str:
    """Convert a figure to SVG with selectable text. The output is deterministic."""
    written = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tcompile"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def _drop_failed(group: Sequence[Timed]) -> list[Timed]:
    return [item for item in group if item.candidate.seconds]


def _panel(axes: Axes, group: Sequence[Timed], record: Record) -> None:
    unit = shared_unit(group) or Unit("s", 1.0)
    for row, item in enumerate(group):
        _bar(axes, row, item, unit)
    eager = next((item for item in group if item.candidate.name == "eager"), None)
    if eager is not None:
        axes.axvline(median_of(eager.candidate) / unit.seconds, color=_EAGER, linestyle="--", linewidth=1.2, zorder=2)
    axes.set_yticks(
        range(len(group)), [clip(item.candidate.name, _NAME_CHARACTERS) for item in group], parse_math=False
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.42 * max((item.candidate.high or median_of(item.candidate)) for item in group) / unit.seconds)
    axes.set_xlabel(f"{unit.name} a call: median and quartiles")
    axes.set_title(_title(group, record), loc="left", fontsize=10.5, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)


def _title(group: Sequence[Timed], record: Record) -> str:
    measured = record.measurement
    device = group[0].candidate.device or (measured.device if measured else "")
    name = f", {measured.device_name}" if measured is not None and measured.device_name else ""
    first = clip(f"One call: {group[0].candidate.what} ({device.upper()}{name})", _TITLE_CHARACTERS)
    return "\n".join([first, *_note_lines(record)])


def _note_lines(record: Record) -> list[str]:
    told = elsewhere_text(record)
    return textwrap.wrap(told, _TITLE_CHARACTERS) if told else []


def _bar(axes: Axes, row: int, item: Timed, unit: Unit) -> None:
    found = item.candidate
    middle = median_of(found) / unit.seconds
    low, high = ((value or median_of(found)) / unit.seconds for value in (found.low, found.high))
    colour = _TONES[item.ratio.verdict] if item.ratio else _EAGER
    axes.barh(row, middle, height=0.56, color=colour, zorder=1)
    axes.errorbar(
        middle, row, xerr=[[middle - low], [high - middle]], color="#1c2128", capsize=3, linewidth=1.3, zorder=3
    )
    beside = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    axes.annotate(_label(item, unit), (high, row), textcoords="offset points", xytext=(7, 0), va="center",
                  fontsize=8.5, bbox=beside, zorder=4)  # fmt: skip


def _label(item: Timed, unit: Unit) -> str:
    took = f"{time_text(median_of(item.candidate), unit)} ({spread_text(item.candidate, unit)})"
    return f"{took}\n{ratio_text(item.ratio)} as fast ({range_text(item.ratio)})" if item.ratio else took
