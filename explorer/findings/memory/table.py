"""Tables of memory: all steps, and the tensors at the peak."""

from __future__ import annotations

from typing import Any

import pandas as pd

from compiler.record import Record
from explorer.findings.memory.finding import ROLES, Known
from explorer.findings.memory.memory import Line, Timeline, timelines
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
    found = whole(record)
    return list(found.lines.values()) if found is not None else []


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
            "side": line.side, "bytes": each.event.bytes, "buffer": each.event.buffer, "half": each.event.half,
            "kept_as": ROLES.get(each.role), "made_by": known.maker(each.event) or None,
            "where": place(known.line(each.event)) or None,
            "code": known.code(each.event) or known.source_inputs(each.event) or None, "graph": each.event.graph,
            "first_step": each.first + 1, "last_step": each.end,
        }
        for each in line.alive(line.peak)
    ]  # fmt: skip
