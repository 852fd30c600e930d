"""Time of a call by line of Python: for the marks next to the source, for text, and for the static view.

`LineTime` says how a kernel's time is split among lines. All times are measured. No time was attributed to a line
without a `LineTime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compiler.record import LineTime, Record
from explorer.reading.shapes import seconds_text
from explorer.reading.source_lines import Place
from explorer.reading.source_marks import rows_of_lines

SIDES = ("eager", "compiled")
HALVES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Heat:
    """Time of one source line in seconds, by side and half. `total` includes called functions, `own` does not."""

    line: str
    total: Mapping[tuple[str, str], float]
    own: Mapping[tuple[str, str], float]

    def seconds(self, side: str, half: str = "") -> float:
        """Total seconds of a side, calls included; `half` selects one half, "" is all of them."""
        return sum(seconds for key, seconds in self.total.items() if key[0] == side and half in ("", key[1]))

    def own_seconds(self, side: str) -> float:
        return sum(seconds for key, seconds in self.own.items() if key[0] == side)


def seconds_in_words(heat: Heat, side: str) -> str:
    """Format a line's total time by half: `4.1 ms: 1.1 ms forward, 3.0 ms backward`."""
    halves = [(half, heat.seconds(side, half)) for half in HALVES if heat.seconds(side, half)]
    parts = ", ".join(f"{seconds_text(seconds)} {half}" for half, seconds in halves)
    return f"{seconds_text(heat.seconds(side))}: {parts}" if len(halves) > 1 else parts


def heats(record: Record) -> list[Heat]:
    """Time of each source line of a record; unattributed time has the line id ""."""
    lines: dict[str, list[LineTime]] = {}
    for time in record.line_times:
        lines.setdefault(time.line, []).append(time)
    return [
        Heat(
            line,
            {(time.side, time.half): time.total for time in times},
            {(time.side, time.half): time.seconds for time in times},
        )
        for line, times in lines.items()
    ]


def device_of(record: Record) -> str:
    """Device that the line times were measured on: "GPU" or "CPU"."""
    return "GPU" if any(time.device == "cuda" for time in record.line_times) else "CPU"


def source_heat(record: Record) -> dict[str, Any]:
    """Line times for the front end: the device, the halves, and source artifact -> row (from 1) -> microseconds.

    A row has eager's times, then compiled's; each is `[total, own]` with one number per half.
    """
    halves = [half for half in HALVES if any(time.half == half and time.line for time in record.line_times)]
    rows: dict[str, Place] = _places(record)
    found: dict[str, dict[str, Any]] = {}
    for heat in heats(record):
        if heat.line in rows:
            artifact, row = rows[heat.line]
            found.setdefault(artifact, {})[str(row)] = [
                [[_micro(table.get((side, half), 0)) for half in halves] for table in (heat.total, heat.own)]
                for side in SIDES
            ]
    return {"device": device_of(record), "halves": halves, "rows": found} if found else {}


def _places(record: Record) -> dict[str, Place]:
    """Line id -> artifact and row, for each shown line and each line entity."""
    shown = {
        f"{artifact.id}.L{number}": (artifact.id, row)
        for artifact in record.of_stage("source")
        for row, number in enumerate(artifact.attrs.get("numbers") or (), 1)
        if number
    }
    return shown | rows_of_lines(record)


def _micro(seconds: float) -> float:
    return float(f"{1e6 * seconds:.4g}")
