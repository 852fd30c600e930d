"""Tables of memory: all steps, and the tensors at the peak."""

from __future__ import annotations

from typing import Any

import pandas as pd

from compiler.record import Record
from explorer.findings.memory.finding import Known, role_of
from explorer.findings.memory.memory import Line, Timeline, rank_timeline, timelines
from explorer.reading.columns import columns
from explorer.reading.provenance import place

STEPS = columns(
    ("category", "side"),
    ("string", "graph"),
    ("category", "half"),
    ("Int64", "step"),
    ("category", "what"),
    ("string", "buffer"),
    ("Int64", "bytes in_use"),
    ("string", "of"),
    ("Int64", "wrapper_line"),
    ("string", "entity"),
)
RANK = columns(("category", "kind"), ("Int64", "before at_peak after_forward at_end"))
PEAK = columns(
    ("category", "side"),
    ("Int64", "bytes"),
    ("string", "buffer"),
    ("category", "half"),
    ("string", "kept_as made_by where code graph"),
    ("Int64", "first_step last_step"),
)


def memory(record: Record) -> pd.DataFrame:
    """One row per side and step of the whole call: the event and its buffer.

    `in_use` is the bytes in use after the step, on top of parameters and inputs. `side` is "compiled", "eager" or
    "measured".
    """
    rows = [row for line in _lines(record) for row in _steps(line)]
    return pd.DataFrame(rows, columns=list(STEPS)).astype(STEPS)


def peak_memory(record: Record) -> pd.DataFrame:
    """One row per tensor in memory at the peak of its side, largest first.

    Columns are the tensor's bytes, first and last step, maker, and line of Python, among others. Parameters and inputs
    are left out.
    """
    known = Known(record)
    rows = [row for line in _lines(record) if line.side != "measured" for row in _at_peak(line, known)]
    return pd.DataFrame(rows, columns=list(PEAK)).astype(PEAK)


def whole(record: Record) -> Timeline | None:
    """Timeline of the whole call; None without memory events."""
    return next(iter(timelines(record)), None) if record.memory else None


def _lines(record: Record) -> list[Line]:
    found = (whole(record), rank_timeline(record))
    return [line for timeline in found if timeline is not None for line in timeline.lines.values()]


def rank_memory(record: Record) -> pd.DataFrame:
    """One row per kind of memory that a rank keeps: bytes before the step, at the peak, after the forward, at the end.

    Raises ValueError if the record is not of a rank, or if no code was generated.
    """
    found = rank_timeline(record)
    if found is None:
        why = "this record is not of a rank: there was no process group when the model was called"
        raise ValueError("nothing is known of the rank's memory: no code was generated" if record.place else why)
    line = found.lines["rank"]
    before = max((number for number, step in enumerate(line.steps) if step.event.what == "input"), default=0)
    places = (before, line.peak, max(line.turn - 1, 0), len(line.steps) - 1)
    rows = [(kind, *(sizes[place] for place in places)) for kind, sizes in line.layers.items()]
    return pd.DataFrame(rows, columns=list(RANK)).astype(RANK)


def _steps(line: Line) -> list[dict[str, Any]]:
    return [
        {
            "side": line.side, "graph": step.event.graph or None, "half": step.event.half, "step": number,
            "what": step.event.what, "buffer": step.event.buffer or None, "bytes": step.event.bytes,
            "in_use": step.above, "of": step.event.of or None, "wrapper_line": step.event.at or None,
            "entity": step.event.entity or None,
        }
        for number, step in enumerate(line.steps, start=1)
    ]  # fmt: skip


def _at_peak(line: Line, known: Known) -> list[dict[str, Any]]:
    return [
        {
            "side": line.side, "bytes": each.event.bytes, "buffer": known.name(each.event), "half": each.event.half,
            "kept_as": role_of(each) or None, "made_by": known.maker(each.event) or None,
            "where": place(known.line(each.event)) or None,
            "code": known.code(each.event) or known.source_inputs(each.event) or None, "graph": each.event.graph,
            "first_step": each.first + 1, "last_step": each.end,
        }
        for each in line.alive(line.peak)
    ]  # fmt: skip
