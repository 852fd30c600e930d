"""Breaks, recompilations, guards and compile times as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from compiler.record import Record
from explorer.findings.cards import break_texts, recompile_texts
from explorer.findings.guards import frame_section, guards_by_frame
from explorer.findings.timing.phases import phases_document
from explorer.render.text import document_text


def fact_text(record: Record, name: str) -> str:
    """Text of a record's `breaks`, `recompiles`, `guards` or `phases`. Raises KeyError for another name."""
    return FACTS[name](record)


def _breaks(record: Record) -> str:
    return "\n\n".join(break_texts(record)) or "no graph breaks"


def _recompiles(record: Record) -> str:
    return "\n\n".join(recompile_texts(record)) or "no recompilations"


def _guards(record: Record) -> str:
    """Guards of each compilation; guards on the insides of modules and of torch are only counted."""
    of_frame = guards_by_frame(record)
    found = [frame_section(frame, of_frame[frame.id], insides=False) for frame in record.frames if frame.id in of_frame]
    return document_text(found) or "no guards"


def _phases(record: Record) -> str:
    return document_text(phases_document(record)) or "no compile times"


FACTS: Final[dict[str, Callable[[Record], str]]] = {
    "breaks": _breaks,
    "recompiles": _recompiles,
    "guards": _guards,
    "phases": _phases,
}
