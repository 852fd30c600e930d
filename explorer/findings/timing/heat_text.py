"""Time of a call by line of Python, as text and as document parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.record import Record
from compiler.record.plain_text import pluralize
from explorer.findings.timing.heat import HALVES, SIDES, Heat, device_of, heats
from explorer.reading.plain_text import columns
from explorer.reading.provenance import place
from explorer.reading.shapes import seconds_text
from explorer.render.document import Only, Parts, Row, Section, Table, Text

SHOWN = 10
CODE_WIDTH = 44
UNMATCHED = "unmatched: in no line"
OPTIMIZER = "the optimizer"
LEAST_SHARE = 0.0005
RULE = "Without what a line calls. What computes several lines (a fused kernel) counts for each by an equal share."


def hottest(record: Record) -> list[Heat]:
    """Lines sorted by their own time (without calls) on their slower side, longest first."""
    lines = [heat for heat in heats(record) if heat.line]
    return sorted(lines, key=lambda heat: -max(map(heat.own_seconds, SIDES)))


def rows_of_heat(record: Record) -> list[tuple[str, ...]]:
    """Table rows of the hottest lines: location, code, own time in eager and compiled; then the remaining
    lines together, the unmatched time, and the optimizer.
    """
    code = {entity.id: entity.label for entity in record.entities() if entity.kind == "line"}
    found = [heat for heat in hottest(record) if max(map(heat.own_seconds, SIDES)) > 0]
    rows = [
        (place(heat.line), code.get(heat.line, ""), *(_time(heat.own_seconds(side)) for side in SIDES))
        for heat in found[:SHOWN]
    ]
    rest = found[SHOWN:]
    if rest:
        rows.append((f"{pluralize(len(rest), 'more line')}", "", *(_sum(rest, side) for side in SIDES)))
    left = [heat for heat in heats(record) if not heat.line]
    times = [(UNMATCHED, _shares(record), HALVES[:2]), (OPTIMIZER, "", HALVES[2:])]
    others = [(name, about, *(_unmatched_time(left, side, halves) for side in SIDES)) for name, about, halves in times]
    return rows + [row for row in others if any(row[2:])]


def _shares(record: Record) -> str:
    """Share of each side's time that belongs to no line, optimizer excluded: "1.3 % of compiled"."""
    shares = []
    for side in SIDES:
        times = [time for time in record.line_times if time.side == side and time.half in HALVES[:2]]
        whole = sum(time.seconds for time in times)
        share = sum(time.seconds for time in times if not time.line) / whole if whole else 0.0
        shares += [f"{100 * share:.3g} % of {side}"] if share >= LEAST_SHARE else []
    return ", ".join(shares)


def _unmatched_time(left: Iterable[Heat], side: str, halves: Iterable[str]) -> str:
    return _time(sum(heat.own.get((side, half), 0.0) for heat in left for half in halves))


def _sum(found: Iterable[Heat], side: str) -> str:
    return _time(sum(heat.own_seconds(side) for heat in found))


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds else ""


def heat_text(record: Record) -> str:
    """Table of the hottest lines for a terminal; "" without line times."""
    if not record.line_times:
        return ""
    head = (f"time by line ({device_of(record)})", "", "eager", "compiled")
    lines = columns(
        [head, *((where, code[:CODE_WIDTH], *times) for where, code, *times in rows_of_heat(record))], right=(2, 3)
    )
    return "\n".join(lines)


def heat_parts(record: Record) -> Iterator[Parts]:
    """Table of the hottest lines as document parts, for HTML and the view only."""
    if record.line_times:
        head = ("line", "code", *(f"{side}, {device_of(record)}" for side in SIDES))
        rows = tuple(Row((where, f"`{code}`" if code else "", *times)) for where, code, *times in rows_of_heat(record))
        table = Table(head, rows, right=(2, 3))
        yield Only(("html", "view"), (Section((table, Text(RULE, "why")), "Time by line", "time-lines"),))
