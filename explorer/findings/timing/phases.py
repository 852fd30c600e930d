"""`run.timing.phases`: torch's compile time by phase."""

from __future__ import annotations

import pandas as pd

from compiler.advise.compile_time import PARTS
from compiler.record import Record
from compiler.record.measure_facts import Phase
from explorer.reading.data_frames import table_of


def phases(record: Record) -> pd.DataFrame:
    """One row per compile phase, longest own time first; own time excludes the phases inside."""
    rows = [_row(phase, record) for phase in record.phases]
    return table_of("phases", sorted(rows, key=lambda row: -row["own_seconds"]))


def _row(phase: Phase, record: Record) -> dict[str, object]:
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
