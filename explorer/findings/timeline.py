"""Timeline of all compilations of a record, in call order.

A row is a code object. A column is a call in which something was compiled, or a range of calls without compilations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from compiler.capture.function_names import function_name
from compiler.record import Frame, Recompile, Record
from explorer.reading.cause import recompile_reason
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Link, Row, Table, Tag, Words
from explorer.render.places import line_link

State = Literal["none", "compiled", "recompiled", "reused", "limit", "plain", "closed", "skipped", "failed"]
WORDS: Final[Mapping[State, str]] = {
    "none": "not met yet",
    "compiled": "compiled",
    "recompiled": "compiled again",
    "reused": "nothing was compiled: code that was there fits, or it was not called",
    "limit": "torch gave up: not compiled",
    "plain": "ran as plain Python",
    "closed": "nothing is compiled any more: code that was there, where it fits, else plain Python",
    "skipped": "left to Python",
    "failed": "could not be compiled",
}
SIGNS: Final[Mapping[State, str]] = {
    "none": "",
    "compiled": "compiled",
    "recompiled": "again",
    "reused": "-",
    "limit": "gave up",
    "plain": "plain",
    "closed": "no more",
    "skipped": "skipped",
    "failed": "failed",
}


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of the explored function, `first` to `last`: a single call, or a range of calls without compilations."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Mark:
    """State of a code object in a call or a range of calls. `frame` is the compilation, "" if there was none.

    `which` names the affected calls of a range, "" for all.
    """

    state: State
    frame: str = ""
    which: str = ""


def recompile_id(found: Recompile) -> str:
    """Id of a recompilation's entity."""
    return f"recompiles.{found.id}"


def code_objects(record: Record) -> list[list[Frame]]:
    """Compilations of each code object, in order."""
    found: dict[int, list[Frame]] = {}
    for frame in record.frames:
        if frame.code >= 0:
            found.setdefault(frame.code, []).append(frame)
    return list(found.values())


def call_of(frame: Frame, record: Record) -> int:
    """Number (from 1) of the call of the explored function in which a frame was compiled."""
    again = (found.call_number for found in record.recompiles if found.frame == frame.id)
    return frame.call_number or next(again, 0) or 1


def call_columns(record: Record) -> list[Calls]:
    """Columns of the timeline: each call with compilations, and the ranges of calls between them."""
    compiled = sorted({call_of(frame, record) for frames in code_objects(record) for frame in frames})
    ends = [*compiled, max(record.calls, compiled[-1]) + 1]
    found = []
    for call, following in zip(compiled, ends[1:], strict=True):
        found.append(Calls(call, call))
        if following > call + 1:
            found.append(Calls(call + 1, following - 1))
    return found


def marks_of(frames: Sequence[Frame], calls: Calls, record: Record) -> list[Mark]:
    """Marks of a code object in one column of the timeline."""
    here = [Mark(state_of(frame, record), frame.id) for frame in frames if call_of(frame, record) == calls.first]
    if here:
        return here
    before = [frame for frame in frames if call_of(frame, record) < calls.first]
    if not before:
        return [Mark("none")]
    limit = next((found for frame in before if (found := gave_up(frame, record))), None)
    return [Mark("reused") if limit is None else after_limit(limit, calls)]


def gave_up(frame: Frame, record: Record) -> Recompile | None:
    """The recompilation of a frame that a recompile limit prevented; None if no limit was reached."""
    return next((found for found in record.recompiles if found.limit and found.frame == frame.id), None)


def after_limit(found: Recompile, calls: Calls) -> Mark:
    """Mark of calls after the recompile limit: "plain", "reused", or "closed" if the plain calls are not known."""
    if not found.plain_calls:
        return Mark("closed")
    plain = [number for number in range(calls.first, calls.last + 1) if number in found.plain_calls]
    some = runs_of("call", plain) if 0 < len(plain) <= calls.last - calls.first else ""
    return Mark("plain", which=some) if plain else Mark("reused")


def state_of(frame: Frame, record: Record) -> State:
    """Outcome of a compilation."""
    if gave_up(frame, record):
        return "limit"
    if frame.outcome != "compiled":
        return frame.outcome
    return "recompiled" if frame.compilation else "compiled"


def timeline(rows: Sequence[Sequence[Frame]], record: Record, lines: SourceLines) -> Table:
    """Table of compilations: a row for each code object, a column for each call."""
    calls = call_columns(record)
    head: tuple[Words, ...] = ("call", *(call_words(some, record, lines) for some in calls))
    body = [
        Row((code_words(frames[0], lines), *(mark_words(marks_of(frames, some, record), record) for some in calls)))
        for frames in rows
    ]
    return Table(head, tuple(body), style="timeline", label="Compilations by call")


def call_words(calls: Calls, record: Record, lines: SourceLines) -> Words:
    """Column title: the call number, linked to the calling line if a recompilation recorded it."""
    spans = (found.call for found in record.recompiles if found.call_number == calls.first and found.call)
    span = next(spans, None)
    if span is None:
        return str(calls)
    place = line_link(span.file, span.line, lines)
    return Link(str(calls), row=place.row, title=f"Call {calls}, in {place.words}")


def code_words(frame: Frame, lines: SourceLines) -> Words:
    """Name and location of a code object."""
    rest = "the rest of " if frame.resumes else ""
    name = Tag(f"{rest}{function_name(frame.function)}", "strong")
    return name, " (", line_link(frame.file, frame.line, lines), ")"


def mark_words(marks: Sequence[Mark], record: Record) -> Words:
    """Content of a cell: each mark links to the card of its recompilation, else to its graph."""
    found: list[str | Link | Tag] = []
    for mark in marks:
        found += [", "] if found else []
        found.append(mark_link(mark, record))
    return tuple(found)


def mark_link(mark: Mark, record: Record) -> Link:
    found = next((item for item in record.recompiles if item.frame == mark.frame and mark.frame), None)
    frame = next((item for item in record.frames if item.id == mark.frame), None)
    why = recompile_reason(found) if found else frame.reason if frame else mark.which
    words = f"{WORDS[mark.state]}: {why}" if why else WORDS[mark.state]
    return Link(
        SIGNS[mark.state],
        open="" if found else next(iter(frame.graphs), "") if frame else "",
        id=recompile_id(found) if found else "",
        title=f"{mark.frame}: {words}" if mark.frame else words,
        style=mark.state,
        detail=found.argument if found else "",
    )


def runs_of(name: str, numbers: Sequence[int]) -> str:
    """Format numbers as ranges: `calls 9 to 12 and 14`, `call 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    told = [" to ".join(map(str, run)) for run in runs]
    listed = " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)
    return f"{name if len(numbers) == 1 else name + 's'} {listed}"
