"""The measured candidates as a document: time of one call, eager and compiled, and whether compiling pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compiler.record import Entity, Record
from compiler.record.plain_text import one_line
from explorer.findings.timing.compared import Timed, by_call, timed_candidates
from explorer.findings.timing.estimates import estimate_parts
from explorer.findings.timing.heat_text import heat_parts
from explorer.findings.timing.text import (
    COUNT_HEAD,
    HEAD,
    PARTS,
    cells,
    count_cells,
    counted_parts,
    failure_reason,
    heading,
    method_lines,
    part_words,
    parts_of,
)
from explorer.findings.timing.words import (
    lead_sentences,
    memory_text,
    pays_text,
    range_text,
    ratio_text,
    shared_unit,
    spread_text,
    time_text,
    warnings,
)
from explorer.render.document import (
    Chart,
    Document,
    Fold,
    Only,
    Parts,
    Picture,
    Row,
    Section,
    Table,
    Tag,
    Text,
)
from explorer.render.finding import Finding
from explorer.render.text import document_finding

STAGE = "timing"
WARNINGS = 3
"""Maximum number of warnings shown unfolded above the numbers."""
NUMBERS = tuple(range(1, len(HEAD)))


def timing_finding(record: Record) -> Finding | None:
    """Finding with all candidates of a record and the time by line; None if nothing was timed."""
    if not record.candidates and not record.line_times:
        return None
    entities = {item.id: entity(item) for item in timed_candidates(record)}
    return document_finding(STAGE, "times, eager and compiled", timing_document(record), entities, view="times")


def timing_document(record: Record) -> Document:
    """Warnings, the candidates grouped by call, the time by line, and a separate section of estimates."""
    warned: tuple[Parts, ...] = tuple(Text(words, "warning") for words in warnings(record))
    if len(warned) > WARNINGS:
        some, rest = warned[: WARNINGS - 1], warned[WARNINGS - 1 :]
        warned = (*some, Only(("text", "html"), rest), Only(("view",), (Fold(f"{len(rest)} more notes", rest),)))
    groups = by_call(timed_candidates(record))
    parts: list[Parts] = [Section(warned, style="time-warnings")] if warned else []
    if any(item.candidate.seconds for item in timed_candidates(record)):
        parts.append(Only(("html",), (Picture("Times of a call as bars", draw_times, record),)))
    for group in groups:
        parts += group_parts(group, record)
    return [*parts, *heat_parts(record), *estimate_parts(record)]


def draw_times(record: Record) -> str:
    """Chart of the candidates as SVG."""
    # Imported late: matplotlib is slow to import.
    from explorer.findings.timing.chart import svg, timing_chart

    return svg(timing_chart(record))


def group_parts(group: Sequence[Timed], record: Record) -> Iterator[Parts]:
    """Parts about the candidates of one call: heading, times, host time, counts, method, notes."""
    first, *rest = lead_sentences(group, record)
    more = tuple(Text(words, "line") for words in rest)
    yield Section((Text(heading(group, record), "line"), Text(first, "lead"), *more), style="time-group")
    yield Section((times(group), *failures(group)), style="time-table")
    if any(item.candidate.host is not None for item in group):
        yield Section((host(group),), "where the time of a call goes", "time-host")
    if counts := tuple(cells for item in group if (cells := count_cells(item.candidate))):
        table = Table(COUNT_HEAD, tuple(map(Row, counts)), right=(1, 2, 3))
        yield Section((table,), "what was compiled", "time-counts")
    method = tuple(Text(line) for line in method_lines(record.measurement, group))
    notes = tuple(
        Row(((Tag(item.candidate.name, "strong"), f": {one_line(note)}"),), (item.id,))
        for item in group
        for note in item.candidate.notes
    )
    noted: tuple[Parts, ...] = (Table((), notes, style="notes"),) if notes else ()
    yield Only(("text", "html"), (Section((*method, *noted)),))
    yield Only(("view",), (*noted, Fold("How it was measured", method)))


def times(group: Sequence[Timed]) -> Chart:
    """Times of the candidates as a table; the view draws a bar for each."""
    unit = shared_unit(group)
    measured = [item for item in group if item.candidate.seconds is not None]
    rows = tuple(
        Row(cells(item, unit), (item.id,), title="; ".join(counted_parts(item.candidate))) for item in measured
    )
    data = {
        "unit": {"name": unit.name, "seconds": unit.seconds} if unit else None,
        "rows": [_bar_data(item) for item in measured],
    }
    table = Table(HEAD, rows, right=NUMBERS, style="times", label="Time of a call by candidate")
    return Chart("times", data, table if measured else Table((), ()))


def failures(group: Sequence[Timed]) -> tuple[Parts, ...]:
    """Table of the candidates without a time, each with the reason."""
    failed = [item for item in group if item.candidate.seconds is None]
    rows = tuple(Row((f"{item.candidate.name}: {failure_reason(item.candidate)}",), (item.id,)) for item in failed)
    return (Table((), rows),) if rows else ()


def host(group: Sequence[Timed]) -> Chart:
    """Host time of one call by part, for the candidates that have it."""
    known = [item.candidate for item in group if item.candidate.host is not None]
    rows = tuple(Row((found.name, ", ".join(part_words(found)))) for found in known)
    drawn = [{"seconds": found.seconds, "host": parts_of(found)} for found in known]
    table = Table((), rows, style="host", label="Where the time of a call goes")
    return Chart("host", {"parts": PARTS, "rows": drawn}, table)


def entity(item: Timed) -> Entity:
    """Entity of a candidate, with its results as text."""
    candidate = item.candidate
    ratio = item.ratio
    facts = {
        "a_call": time_text(candidate.seconds) if candidate.seconds is not None else "",
        "quartiles": spread_text(candidate),
        "speed_up": f"{ratio_text(ratio)} ({range_text(ratio)})" if ratio else "",
        "compiling": time_text(candidate.compile_seconds) if candidate.compile_seconds is not None else "",
        "pays_off": pays_text(item),
        "peak_memory": memory_text(candidate),
        "backend": candidate.backend,
        "mode": candidate.mode,
        "call": candidate.what,
        "not_measured": candidate.problem,
    }
    return Entity(item.id, "candidate", candidate.name, {name: fact for name, fact in facts.items() if fact})


def _bar_data(item: Timed) -> dict[str, Any]:
    """Times of a candidate's bar, and its verdict against eager."""
    found = item.candidate
    tone = item.ratio.verdict if item.ratio else "eager"
    return {"tone": tone, "seconds": found.seconds, "low": found.low, "high": found.high, "rounds": found.rounds}
