"""`run.timing.sweep(...)`: time the run's call at other sizes and dtypes, and find where compiling starts to pay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compiler.record import Record
from compiler.record.plain_text import one_line, pluralize
from explorer.findings.sweep.words import pays_from
from explorer.findings.timing.compared import EAGER, Ratio, Timed, beside_eager
from explorer.findings.timing.tables import candidate_row
from explorer.findings.timing.text import HEAD, cells, failure_reason
from explorer.findings.timing.words import cpu_text, device_text, shared_unit
from explorer.reading.columns import COLUMNS
from explorer.reading.data_frames import table_of
from explorer.reading.shapes import dtype_name
from explorer.render.document import Document, Fold, Only, Parts, Picture, Row, Section, Table, Text
from explorer.render.static import document_html
from explorer.render.text import document_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from compiler.calls.call import Call
    from compiler.timing.candidate_times import Plan
    from compiler.timing.sweep import Axes, Point

FEW_ROUNDS = 4
NUMBERS = tuple(range(2, 7))
SHOWN = (0, 1, 3, 4, 5)
"""Columns of `HEAD` in a row of a sweep."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One point of a sweep: a size (None: unchanged), a dtype ("": unchanged), and the measurements.

    `noise` are notes on noisy times. `problem` is the reason if the point failed. `interrupted` is true if the user
    stopped the sweep before the point was complete.
    """

    size: int | None
    dtype: str
    timed: tuple[Timed, ...] = ()
    noise: tuple[str, ...] = ()
    problem: str = ""
    interrupted: bool = False

    @property
    def name(self) -> str:
        """Name of the point: `batch 8, bfloat16`."""
        size = "" if self.size is None else f"batch {self.size}"
        return ", ".join(filter(None, [size, self.dtype]))


@dataclass(frozen=True, slots=True)
class Curve:
    """Speed-up of one candidate and dtype by size, in ascending order."""

    name: str
    points: tuple[tuple[int | None, Ratio], ...]

    @property
    def pays(self) -> str:
        """Size from which the candidate is faster than eager, in words; "" if no sizes were swept."""
        sized = [(size, ratio) for size, ratio in self.points if size is not None]
        return pays_from(sized) if sized or not self.points else ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Result of `run.timing.sweep`. Prints conclusions and times; `table` has all numbers, `plot()` draws the speed-up.

    `where` is the device of the measurement. `elsewhere` is a warning if the run's code targets another device.
    `spots` are the points in the order of measurement, `total` is the number of requested points.
    """

    title: str
    where: str = ""
    elsewhere: str = ""
    method: str = ""
    spots: tuple[Spot, ...] = ()
    total: int = 0

    @property
    def table(self) -> pd.DataFrame:
        """One row per candidate and point: size, dtype, columns of `run.timing.candidates`, the point's `noise`."""
        return sweep_table(self.spots)

    @property
    def curves(self) -> tuple[Curve, ...]:
        """Speed-up by size, for each candidate and dtype."""
        found: dict[str, list[tuple[int | None, Ratio]]] = {}
        for spot in sorted(self.spots, key=lambda spot: spot.size or 0):
            for item in spot.timed:
                if item.candidate.name != EAGER:
                    points = found.setdefault(", ".join(filter(None, [item.candidate.name, spot.dtype])), [])
                    points += [(spot.size, item.ratio)] if item.ratio is not None else []
        return tuple(Curve(name, tuple(points)) for name, points in found.items())

    def plot(self) -> Figure:
        """Plot the speed-up by size, with quartiles as error bars and eager as the line at 1.

        Raises ValueError if no point could be compared with eager.
        """
        from explorer.findings.sweep.chart import sweep_chart

        return sweep_chart(self)

    def sentences(self) -> list[str]:
        """Conclusion for each candidate: the size from which it pays."""
        return [f"{curve.name}: compiling pays {told}." for curve in self.curves if (told := curve.pays)]

    def notes(self) -> list[str]:
        """Caveats to show above the numbers."""
        done = sum(not spot.interrupted for spot in self.spots)
        return [
            *filter(None, [self.elsewhere]),
            *([f"It was stopped after {done} of {self.total} points."] if done < self.total else []),
            *self._few_rounds(),
            *self._noise(),
        ]

    def _few_rounds(self) -> list[str]:
        rounds = [len(item.candidate.rounds) for spot in self.spots for item in spot.timed if item.candidate.rounds]
        if not rounds or min(rounds) >= FEW_ROUNDS:
            return []
        return [f"{pluralize(min(rounds), 'round')} of each: how far the times vary is hardly known."]

    def _noise(self) -> list[str]:
        """Notes on noise: for a single point all its notes, for several points only the number of noisy points."""
        noisy = [spot for spot in self.spots if spot.noise]
        if len(self.spots) == 1:
            return [note for spot in noisy for note in spot.noise]
        told = f"{len(noisy)} of {len(self.spots)} points are noisy: go by the ranges (`sweep.table.noise` has more)."
        return [told] if noisy else []

    @property
    def heading(self) -> str:
        """Heading of the sweep: the call, and the device that it was timed on."""
        what = next((item.candidate.what for spot in self.spots for item in spot.timed), "")
        call = f" ({what})" if what else ""
        return f"{self.title or 'the call'}: time of one call{call}" + (f" on {self.where}" if self.where else "")

    def __str__(self) -> str:
        return document_text(self.document())

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        html = document_html(self.document())
        return {"text/plain": str(self), "text/html": f'<div style="max-width:100%;overflow:auto">{html}</div>'}

    def document(self) -> Document:
        """Caveats, conclusions and all times as a document; in HTML also a chart."""
        told: tuple[Parts, ...] = (
            Text(self.heading, "line"),
            *(Text(note, "warning") for note in self.notes()),
            *(Text(sentence, "lead") for sentence in self.sentences()),
        )
        head, *body = rows(self.spots)
        table = Table(head, tuple(map(Row, body)), right=NUMBERS)
        failed = tuple(Text(f"{spot.name}: {spot.problem}", "line") for spot in self.spots if spot.problem)
        compared = any(curve.points for curve in self.curves)
        charts = (Picture("Speed-up over eager by size", draw_sweep, self),) if compared else ()
        numbers = Fold("All times", (table, Text(self.method)), is_open=not compared)
        return [
            Section(told),
            Only(("text",), (Section((table, *failed)),)),
            Only(("html",), (*charts, *failed, numbers)),
        ]


def draw_sweep(found: Sweep) -> str:
    """Chart of the speed-up by size as SVG."""
    # Imported late: matplotlib is slow to import.
    from explorer.findings.timing.chart import svg

    return svg(found.plot())


def rows(spots: Iterable[Spot]) -> list[tuple[str, ...]]:
    """Header row, then a row for each candidate at each point."""
    head = ("batch", "dtype", *(HEAD[column] for column in SHOWN))
    return [head, *(row for spot in spots for row in _rows(spot))]


def _rows(spot: Spot) -> Iterator[tuple[str, ...]]:
    unit = shared_unit(spot.timed)
    where = ("" if spot.size is None else str(spot.size), spot.dtype)
    for item in spot.timed:
        shown = cells(item, unit)
        failed = item.candidate.seconds is None
        yield (
            *where,
            *((shown[0], failure_reason(item.candidate), "", "", "") if failed else (shown[at] for at in SHOWN)),
        )


def sweep(record: Record, call: Call | None, plan: Plan, axes: Axes) -> Sweep:
    """Measure the points one by one, with a progress line. An interrupt ends the sweep and keeps the finished points.

    Raises ValueError for a run without a call, OptionError for invalid axes.
    """
    from compiler.timing.sweep import sweep_call
    from explorer.findings.timing.again import NO_CALL, progress_line

    if call is None:
        raise ValueError(NO_CALL)
    with progress_line() as line:
        found = list(sweep_call(call, record.options, plan, axes, line))
    known = next((point.found.measurement for point in found if point.found is not None), None)
    return Sweep(
        record.title,
        device_text(known),
        cpu_text(record.target),
        known.method if known is not None else "",
        tuple(map(_spot, found)),
        len(axes.points()),
    )


def _spot(point: Point) -> Spot:
    dtype = dtype_name(point.dtype)
    if point.found is None:
        return Spot(point.size, dtype, problem=one_line(point.problem))
    known = point.found.measurement
    compared = tuple(beside_eager(point.found.candidates))
    return Spot(point.size, dtype, compared, known.noise, interrupted=known.interrupted)


def sweep_table(spots: Iterable[Spot]) -> pd.DataFrame:
    """One row per candidate and point, with the columns of `timings`; a failed point has one row with its `problem`."""
    rows = []
    for spot in spots:
        where = {"batch": spot.size, "dtype": spot.dtype or None, "noise": "; ".join(spot.noise) or None}
        rows += [where | candidate_row(item) for item in spot.timed]
        rows += [where | _no_candidate(spot.problem)] if spot.problem else []
    return table_of("sweep", rows)


def _no_candidate(problem: str) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS["timings"]) | {"problem": problem}
