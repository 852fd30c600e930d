"""The schedule of a step beside the schedules under Inductor's passes on communication, as a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.record import Record, Traffic
from compiler.record.plain_text import size_text
from compiler.timing.overlap import schedules
from explorer.findings.collectives import VIEW, lanes_data, schedule_words
from explorer.findings.lanes_chart import draw_lanes
from explorer.reading.shapes import seconds_text
from explorer.render.document import Chart, Document, Only, Parts, Picture, Row, Section, Table, Text
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
    parts: list[Parts] = [Text(words, "why"), sides_table(sides)]
    for side in sides:
        if side.record is not None:
            parts += _lanes(side.name, side.record, is_own=side is sides[0])
    return parts


def sides_table(sides: tuple[Side, ...]) -> Table:
    """One row per side: collectives, bytes, and estimated times."""
    rows = []
    for side in sides:
        options = ", ".join(f"{name}={value!r}" for name, value in side.options.items())
        rows.append(Row((side.name, *_facts(side)), title=options))
    head = ("pass", "collectives", "bytes", "communication", "exposed", "step")
    return Table(head, tuple(rows), right=(1, 2), label="Passes on communication")


def _facts(side: Side) -> tuple[str, ...]:
    found = side.traffic
    if found is None:
        return "-", "-", side.problem, "", ""
    times = (seconds_text(each) if each is not None else "-" for each in (found.seconds, found.exposed, found.whole))
    return f"{found.calls}", size_text(found.bytes), *times


def _lanes(name: str, record: Record, *, is_own: bool) -> list[Section]:
    found = []
    for schedule in schedules(record):
        data = lanes_data(schedule, record)
        if not is_own:  # the kernels of another exploration can't be selected here
            data["spans"] = [[*span[:5], "", span[6]] for span in data["spans"]]
        chart = Chart("lanes", data, Table((), (), label=f"{name}, {schedule.title}"))
        drawn = Picture(f"{name}, {schedule.title}: compute and communication", draw_lanes, schedule)
        parts: tuple[Parts, ...] = (
            Text(schedule_words(schedule), "line"), Only(("view",), (chart,)), Only(("html",), (drawn,)),
        )  # fmt: skip
        found.append(Section(parts, f"{name}: {schedule.title}"))
    return found
