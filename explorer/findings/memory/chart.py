"""Chart of the memory in use over a call."""

from __future__ import annotations

from matplotlib.figure import Figure

from compiler.record import Record
from explorer.findings.memory.finding import SIDES
from explorer.findings.memory.memory import Line, Timeline
from explorer.findings.memory.table import whole
from explorer.render.plots import COLOURS, Chart

_MIB = 2**20
_COLOURS = {"compiled": COLOURS[0], "eager": COLOURS[1], "measured": COLOURS[2]}


def memory_chart(record: Record) -> Figure:
    """Plot the generated code's memory as an area, and eager's and the measured memory as lines.

    Raises ValueError if no code was generated.
    """
    timeline = whole(record)
    if timeline is None or "compiled" not in timeline.lines:
        raise ValueError("there is no memory to draw: the record has no generated code")
    figure = Chart(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for side in ("compiled", "eager", "measured"):
        if (line := timeline.lines.get(side)) is not None and line.steps:
            xs, ys = _places(line, timeline), [step.above / _MIB for step in line.steps]
            dashes = "--" if side == "eager" else "-"
            peak = f"{SIDES[side]}: {line.peak_bytes / _MIB:.1f} MiB at most"
            axes.step(xs, ys, where="post", color=_COLOURS[side], linestyle=dashes, linewidth=1.4, label=peak)
            if side == "compiled":
                axes.fill_between(xs, ys, step="post", color=_COLOURS[side], alpha=0.15)
                axes.plot(xs[line.peak], ys[line.peak], marker="o", color=COLOURS[4], zorder=3)
    compiled = timeline.lines["compiled"]
    if compiled.turn < len(compiled.steps):
        axes.axvline(compiled.turn, color="0.5", linestyle=":", linewidth=1)
        axes.set_xticks([0, compiled.turn], ["forward", "backward"], ha="left")
    else:
        axes.set_xticks([0], ["forward"], ha="left")
    axes.set_ylabel("in use beside parameters and inputs (MiB)")
    axes.set_title(f"Memory in use: {record.title}")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, axis="y")
    axes.legend(frameon=False, fontsize=9)
    return figure


def _places(line: Line, timeline: Timeline) -> list[float]:
    """Horizontal position of each step. The other sides are scaled to the width of the generated code; eager's forward
    and backward are scaled separately.
    """
    first = timeline.lines["compiled"]
    count = len(line.steps)
    if line.side == "measured":
        return [len(first.steps) * number / count for number in range(count)]
    back = (len(first.steps) - first.turn) / max(count - line.turn, 1)
    forth = first.turn / max(line.turn, 1)
    return [
        number * forth if number < line.turn else first.turn + (number - line.turn) * back for number in range(count)
    ]
