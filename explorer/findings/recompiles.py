"""All compilations in the order of the calls that led to them, and a card for each that an earlier one had made
unnecessary, had its guards held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from compiler.capture.function_names import function_name
from compiler.record import Entity, Frame, GuardFailure, Recompile, Record
from explorer.blame import closest_failure
from explorer.cards import recompile_card
from explorer.findings.breaks import Graphs
from explorer.findings.finding import Finding, LinkedText
from explorer.findings.guards import guard_id
from explorer.findings.lines import SourceLines
from explorer.findings.spots import line_spot, spot
from explorer.provenance import place_text
from explorer.text import columns, recompile_reason

State = Literal["none", "compiled", "recompiled", "reused", "limit", "plain", "skipped", "failed"]
WORDS: Final[Mapping[State, str]] = {
    "none": "not met yet",
    "compiled": "compiled",
    "recompiled": "compiled again",
    "reused": "nothing was compiled: code that was there fits, or it was not called",
    "limit": "torch gave up: not compiled",
    "plain": "nothing is compiled any more: code that was there, where it fits, else plain Python",
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
    "skipped": "skipped",
    "failed": "failed",
}
_NOTHING: Final = ("none", "reused", "plain")


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of the explored function, from `first` to `last`, in all but one of which nothing was compiled."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Mark:
    """What happened to a code object in a call: once, or several times, then with a compilation each."""

    state: State
    frame: str = ""


def recompiles_finding(record: Record) -> Finding | None:
    """Every compilation of a record by call; None where the function was called once and nothing compiled again."""
    rows = code_objects(record)
    if not rows or (not record.recompiles and record.calls < 2):
        return None
    text, lines, graphs = LinkedText(), SourceLines(record), Graphs(record)
    calls = call_columns(record)
    text.add("\n".join(timeline_lines(rows, calls, record)))
    for number, found in enumerate(record.recompiles, 1):
        text.add("")
        card = recompile_card(found, number, len(record.recompiles))
        text.add(card, recompile_entity(found, record, lines))
    data = {
        "calls": [{"name": str(some), "at": _called_at(some, record, lines)} for some in calls],
        "rows": [row_data(frames, calls, record, lines) for frames in rows],
        "cards": [card_data(n, found, record, lines, graphs) for n, found in enumerate(record.recompiles, 1)],
    }
    return Finding(text.artifact("recompiles", "recompilations"), "view", "recompiles", data)


def recompile_id(found: Recompile) -> str:
    """The id of a recompilation's entity."""
    return f"recompiles.{found.id}"


def recompile_entity(found: Recompile, record: Record, lines: SourceLines) -> Entity:
    """A recompilation as an entity; it comes from the line of the call, and from the guards that failed."""
    call = (lines.id_of(found.call.file, found.call.line),) if found.call else ()
    origins = tuple(name for name in (*call, *failed_guards(found, record)) if name)
    attrs = {"frame": found.frame, "cause": found.cause, "argument": found.argument}
    return Entity(recompile_id(found), "recompile", recompile_reason(found), attrs, (), origins)


def failed_guards(found: Recompile, record: Record) -> tuple[str, ...]:
    """The ids of the guards that failed."""
    failed = {(failure.entry, failure.source) for failure in found.failures if failure.source}
    mine = (guard for guard in record.guards if (guard.frame, guard.source) in failed and not guard.internal)
    return tuple(guard_id(guard) for guard in mine)


def code_objects(record: Record) -> list[list[Frame]]:
    """The compilations of each code object, in their order."""
    found: dict[str, list[Frame]] = {}
    for frame in record.frames:
        number = frame.id.split("/")[0]
        if number.isdigit():
            found.setdefault(number, []).append(frame)
    return list(found.values())


def call_of(frame: Frame, record: Record) -> int:
    """In which call of the explored function, from 1, a frame was compiled."""
    again = (found.call_number for found in record.recompiles if found.frame == frame.id)
    return frame.call_number or next(again, 0) or 1


def call_columns(record: Record) -> list[Calls]:
    """Each call in which something was compiled; calls between in which nothing was stand together."""
    compiled = sorted({call_of(frame, record) for frames in code_objects(record) for frame in frames})
    ends = [*compiled, max(record.calls, compiled[-1]) + 1]
    found = []
    for call, following in zip(compiled, ends[1:], strict=True):
        found.append(Calls(call, call))
        if following > call + 1:
            found.append(Calls(call + 1, following - 1))
    return found


def marks_of(frames: Sequence[Frame], calls: Calls, record: Record) -> list[Mark]:
    """What happened to a code object in some calls."""
    here = [Mark(state_of(frame, record), frame.id) for frame in frames if call_of(frame, record) == calls.first]
    if here:
        return here
    before = [frame for frame in frames if call_of(frame, record) < calls.first]
    if not before:
        return [Mark("none")]
    return [Mark("plain" if any(gave_up(frame, record) for frame in before) else "reused")]


def gave_up(frame: Frame, record: Record) -> bool:
    return any(found.limit for found in record.recompiles if found.frame == frame.id)


def state_of(frame: Frame, record: Record) -> State:
    """What a compilation came to."""
    if gave_up(frame, record):
        return "limit"
    if frame.outcome != "compiled":
        return frame.outcome
    return "compiled" if frame.id.endswith("/0") else "recompiled"


def timeline_lines(rows: Sequence[Sequence[Frame]], calls: Sequence[Calls], record: Record) -> list[str]:
    """The timeline as a table: a line for each code object, a column for each call."""
    head = ["call", *map(str, calls)]
    body = [[code_name(frames[0]), *(_signs(marks_of(frames, some, record)) for some in calls)] for frames in rows]
    return columns([head, *body])


def _signs(marks: Iterable[Mark]) -> str:
    return ", ".join(SIGNS[mark.state] for mark in marks)


def code_name(frame: Frame) -> str:
    """A code object as the user knows it."""
    rest = "the rest of " if frame.resumes else ""
    return f"{rest}{function_name(frame.function)} ({place_text(frame.file, frame.line)})"


def _called_at(calls: Calls, record: Record, lines: SourceLines) -> dict[str, Any] | None:
    """The line of a call, as far as a recompilation tells it."""
    spans = (found.call for found in record.recompiles if found.call_number == calls.first and found.call)
    span = next(spans, None)
    return line_spot(span.file, span.line, lines) if span else None


def row_data(frames: Sequence[Frame], calls: Sequence[Calls], record: Record, lines: SourceLines) -> dict[str, Any]:
    """A code object, and what happened to it in each column."""
    return {
        "name": ("the rest of " if frames[0].resumes else "") + function_name(frames[0].function),
        "at": line_spot(frames[0].file, frames[0].line, lines),
        "cells": [[mark_data(mark, record) for mark in marks_of(frames, some, record)] for some in calls],
    }


def mark_data(mark: Mark, record: Record) -> dict[str, Any]:
    """A mark in a cell: what it says, the card that it leads to, or the graph."""
    found = next((item for item in record.recompiles if item.frame == mark.frame and mark.frame), None)
    frame = next((item for item in record.frames if item.id == mark.frame), None)
    why = recompile_reason(found) if found else frame.reason if frame else ""
    return {
        "state": mark.state,
        "frame": mark.frame,
        "words": f"{WORDS[mark.state]}: {why}" if why else WORDS[mark.state],
        "blamed": found.argument if found else "",
        "id": recompile_id(found) if found else "",
        "graph": next(iter(frame.graphs), "") if frame else "",
    }


def card_data(number: int, found: Recompile, record: Record, lines: SourceLines, graphs: Graphs) -> dict[str, Any]:
    """All that a card says of a recompilation, in plain JSON values."""
    closest = closest_failure(found)
    return {
        "ids": [recompile_id(found)],
        "number": number,
        "total": len(record.recompiles),
        "frame": found.frame,
        "function": function_name(found.function),
        "at": line_spot(found.file, found.line, lines),
        "call": spot(found.call, lines) if found.call else None,
        "call_number": found.call_number,
        "cause": found.cause,
        "blamed": failure_data(closest, record, lines) if closest else None,
        "reasons": [] if found.failures else [line for reason in found.reasons for line in reason.splitlines()[:1]],
        "entries": entries_data(found, closest, record, lines),
        "advice": found.advice,
        "settings": list(found.settings),
        "limit": found.limit,
        "graphs": compared(found, record, graphs),
        "changed": found.graph_change,
        "torch": list(found.reasons),
    }


def entries_data(
    found: Recompile, closest: GuardFailure | None, record: Record, lines: SourceLines
) -> list[dict[str, Any]]:
    """Per cache entry all guards that failed, the entry that came closest first."""
    entries: dict[str, list[GuardFailure]] = {closest.entry: []} if closest else {}
    for failure in found.failures:
        entries.setdefault(failure.entry, []).append(failure)
    return [
        {"entry": entry, "failures": [failure_data(failure, record, lines) for failure in failures]}
        for entry, failures in entries.items()
    ]


def failure_data(failure: GuardFailure, record: Record, lines: SourceLines) -> dict[str, Any]:
    """A failed guard: was and is, and the line that asked for it."""
    same = [guard for guard in record.guards if (guard.frame, guard.source) == (failure.entry, failure.source)]
    asked = next((guard for guard in same if guard.file and not guard.internal), None)
    return {
        "about": about(failure),
        "cause": failure.cause,
        "old": failure.old,
        "new": failure.new,
        "words": failure.words,
        "code": failure.code,
        "at": line_spot(asked.file, asked.line, lines) if asked else None,
    }


def about(failure: GuardFailure) -> str:
    """What it was that differed: "size of `x` in dimension 0"."""
    suffix = f" was {failure.old}, is {failure.new}"
    return failure.words.removesuffix(suffix) if failure.words.endswith(suffix) else f"`{failure.argument}`"


def compared(found: Recompile, record: Record, graphs: Graphs) -> list[dict[str, Any]] | None:
    """The graph of the compilation that came closest, and the new one; None where one of them is not there."""
    frames = {frame.id: frame for frame in record.frames}
    pair = [frames.get(found.closest), frames.get(found.frame)]
    known = [graphs.graph(frame.graphs[0]) for frame in pair if frame and frame.graphs]
    both = [graph for graph in known if graph]
    return both if len(both) == 2 else None
