"""The measured candidates as a stage to look at: how long one call takes, eager and compiled, and if that pays."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from compiler.record import Entity, Record
from explorer.findings.timing.compared import Timed, by_call, timed
from explorer.findings.timing.estimate_words import estimate_lines, estimate_words
from explorer.findings.timing.text import (
    PARTS,
    count_lines,
    counted_parts,
    heading,
    host_lines,
    method_lines,
    note_lines,
    part_words,
    parts_of,
    table_lines,
    why_not,
)
from explorer.findings.timing.words import (
    Unit,
    device_text,
    lead_sentences,
    memory_text,
    pays_text,
    range_text,
    ratio_text,
    shared_unit,
    spread_text,
    time_text,
    unbroken,
    warnings,
)
from explorer.render.finding import Finding, LinkedText

STAGE, WIDTH = "timing", 110


def timing_finding(record: Record) -> Finding | None:
    """Every candidate of a record; None where nothing was timed."""
    if not record.candidates:
        return None
    groups = by_call(timed(record))
    told = LinkedText()
    for warning in warnings(record):
        told.add(f"! {warning}")
    for group in groups:
        _tell(told, group, record)
    words = estimate_words(record)
    if words is not None:
        told.add("\n" + "\n".join(row for line in estimate_lines(words) for row in _rows(line)))
    data = {
        "warnings": warnings(record),
        "groups": [_group_data(group, record) for group in groups],
        "estimate": None if words is None else asdict(words),
    }
    return Finding(told.artifact(STAGE, "times, eager and compiled"), "view", "timing", data)


def _tell(told: LinkedText, group: Sequence[Timed], record: Record) -> None:
    """A group in words, each line of the table with its candidate."""
    if told.count:
        told.add("")
    told.add(heading(group, record))
    told.add("\n".join(lead_sentences(group, record)))
    told.add("")
    measured = [item for item in group if item.candidate.seconds is not None]
    failed = [item for item in group if item.candidate.seconds is None]
    lines = table_lines(group)
    if measured:
        told.add(lines.pop(0))
    for line, item in zip(lines, [*measured, *failed], strict=True):
        told.add(line, entity(item))
    method = [row for line in method_lines(record.measurement, group) for row in _rows(line)]
    for block in (host_lines(group), count_lines(group), method):
        if block:
            told.add("\n" + "\n".join(block))
    for item in group:
        for note in note_lines(item.candidate):
            told.add(note, within=(item.id,))


def _rows(line: str) -> list[str]:
    """A long line as several."""
    indent = "  " if line.startswith("  ") else ""
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent) if len(line) > WIDTH else [line]


def entity(item: Timed) -> Entity:
    """A candidate as an entity: what is known of it, in words."""
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


# For the view


def _group_data(group: Sequence[Timed], record: Record) -> dict[str, Any]:
    unit = shared_unit(group)
    return {
        "what": group[0].candidate.what,
        "where": device_text(record.measurement) or group[0].candidate.device,
        "lead": [unbroken(sentence) for sentence in lead_sentences(group, record)],
        "method": method_lines(record.measurement, group),
        "unit": {"name": unit.name, "seconds": unit.seconds} if unit else None,
        "parts": PARTS,
        "rows": [_row_data(item, unit) for item in group],
    }


def _row_data(item: Timed, unit: Unit | None) -> dict[str, Any]:
    """Numbers to be drawn, and all in words."""
    found = item.candidate
    return {
        "id": item.id,
        "name": found.name,
        "tone": item.ratio.verdict if item.ratio else "eager" if found.seconds is not None else "failed",
        "seconds": found.seconds,
        "low": found.low,
        "high": found.high,
        "rounds": found.rounds,
        "time": time_text(found.seconds, unit) if found.seconds is not None else "",
        "spread": spread_text(found, unit),
        "ratio": ratio_text(item.ratio) if item.ratio else "",
        "range": range_text(item.ratio) if item.ratio else "",
        "compiling": time_text(found.compile_seconds) if found.compile_seconds is not None else "",
        "pays": pays_text(item),
        "peak": found.peak_bytes,
        "memory": memory_text(found),
        "host": parts_of(found) if found.host is not None else None,
        "parts": [unbroken(part) for part in part_words(found)] if found.host is not None else [],
        "counts": counted_parts(found),
        "notes": found.notes,
        "problem": why_not(found) if found.seconds is None else "",
    }
