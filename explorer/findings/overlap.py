"""The schedule of a step beside the schedules under Inductor's passes on communication, as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.advise.facts import seconds as duration
from compiler.record import Record, Traffic
from compiler.record.plain_text import size_text
from compiler.timing.overlap import schedules
from explorer.findings.collectives import VIEW, schedule_section
from explorer.render.document import Document, Parts, Row, Table, Text
from explorer.render.finding import Finding
from explorer.render.text import document_finding

STAGE = "overlap"
DEFAULT = "as it is"


@dataclass(frozen=True, slots=True)
class Side:
    """The call under one pass: its record and what it sends, or the `problem` why there is none."""

    name: str
    options: Mapping[str, object]
    record: Record | None = None
    traffic: Traffic | None = None
    problem: str = ""


def overlap_finding(sides: tuple[Side, ...]) -> Finding:
    """Finding that compares the sides; the first is the run's own."""
    return document_finding(STAGE, "passes on communication", overlap_document(sides), {}, f"{len(sides)} sides", VIEW)


def overlap_document(sides: tuple[Side, ...]) -> Document:
    """A table of the sides, and both lanes of each half of each side."""
    words = (
        "The same call, explored with each of Inductor's passes on communication. Collectives and bytes are exact, "
        "times are estimates by torch's cost model, without gaps between launches."
    )
    parts: list[Parts] = [Text(words, "why"), sides_table(sides), *map(Text, untimed_words(sides))]
    for side in sides:
        if side.record is not None:  # the kernels of another exploration can't be selected here
            own = side is sides[0]
            parts += [schedule_section(each, side.record, side.name, has_links=own) for each in schedules(side.record)]
    return parts


def untimed_words(sides: tuple[Side, ...]) -> Iterator[str]:
    """Why there are no times of a side."""
    for side in sides:
        if side.record is None or side.traffic is None or side.traffic.whole is not None:
            continue
        untimed = {each.operator for each in side.record.collectives if each.seconds is None}
        unknown = dict.fromkeys((*sorted(untimed), *(name for each in schedules(side.record) for name in each.unknown)))
        if unknown:
            yield f"{side.name} has no times, as torch has no cost model of {', '.join(unknown)}."


def sides_table(sides: tuple[Side, ...]) -> Table:
    """One row per side: collectives, bytes, and estimated times."""
    rows = []
    for side in sides:
        options = ", ".join(f"{name}={value!r}" for name, value in side.options.items())
        rows.append(Row((side.name, *_facts(side)), title=options))
    head = ("pass", "collectives", "bytes", "communication", "exposed", "step")
    return Table(head, tuple(rows), right=(1, 2, 3, 4, 5), label="Passes on communication")


def _facts(side: Side) -> tuple[str, ...]:
    found = side.traffic
    if found is None:
        return "-", "-", side.problem, "", ""
    times = (duration(each) if each is not None else "-" for each in (found.seconds, found.exposed, found.whole))
    return f"{found.calls}", size_text(found.bytes), *times
