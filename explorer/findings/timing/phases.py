"""`run.timing.phases`: torch's compile time by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.advise.compile_time import PARTS
from compiler.record import Record
from compiler.record.measure_facts import Phase
from compiler.record.plain_text import pluralize
from explorer.reading.shapes import seconds_text
from explorer.render.document import Document, Row, Table, Text

if TYPE_CHECKING:
    import pandas as pd

_SHORTEST, _MOST_ROWS = 0.0005, 40


def phases(record: Record) -> pd.DataFrame:
    """One row per compile phase, longest own time first; own time excludes the phases inside."""
    from explorer.reading.data_frames import table_of

    return table_of("phases", _rows(record))


def phases_document(record: Record) -> Document:
    """The phases that took longest; empty if no phase was timed."""
    rows = _rows(record)
    if not rows:
        return ()
    shown = [row for row in rows if row["own_seconds"] >= _SHORTEST][:_MOST_ROWS]
    cells = [_cells(row) for row in shown]
    whole = sum(row["own_seconds"] for row in rows)
    left = len(rows) - len(shown)
    rest = (Text(f"and {pluralize(left, 'shorter phase')}", "muted"),) if left else ()
    head = ("phase", "what it does", "own time", "with its parts", "times", "inside", "graph")
    return (
        Text(f"torch.compile took {seconds_text(whole)}.", "lead"),
        Table(head, tuple(cells), right=(2, 3, 4)),
        *rest,
    )


def _cells(row: dict[str, Any]) -> Row:
    own, seconds = seconds_text(row["own_seconds"]), seconds_text(row["seconds"])
    return Row(
        (row["name"], row["part"] or "", own, seconds, str(row["count"]), row["parent"] or "", row["graph"] or "")
    )


def _rows(record: Record) -> list[dict[str, Any]]:
    return sorted((_row(phase, record) for phase in record.phases), key=lambda row: -row["own_seconds"])


def _row(phase: Phase, record: Record) -> dict[str, Any]:
    return {
        "name": phase.name,
        "part": PARTS.get(phase.name),
        "seconds": phase.seconds,
        "own_seconds": _own_seconds(phase, record),
        "graph": phase.graph or None,
        "parent": phase.parent or None,
        "count": phase.count,
    }


def _own_seconds(phase: Phase, record: Record) -> float:
    """Seconds of a phase without its subphases. If the phase has several parents, the subphases are split in proportion
    to its time in each parent.
    """
    same = [each for each in record.phases if (each.name, each.graph) == (phase.name, phase.graph)]
    parts = [each for each in record.phases if (each.parent, each.graph) == (phase.name, phase.graph)]
    whole = sum(each.seconds for each in same)
    return max(phase.seconds * (1 - sum(each.seconds for each in parts) / whole), 0.0) if whole else 0.0
