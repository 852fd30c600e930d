"""What TorchDynamo did, as text for a terminal: cards, the guards by argument, the way through the frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from compiler.capture.function_names import function_name
from compiler.record import Frame, GraphBreak, Record, Symbol
from compiler.record.plain_text import one_line
from explorer.findings.cards import break_texts, recompile_texts
from explorer.findings.guards import WORDS_WIDTH, frame_section, guards_by_frame, range_text
from explorer.reading.cause import condition_text, place_and_code, users_place
from explorer.reading.plain_text import clip, columns
from explorer.reading.provenance import place_text
from explorer.render.text import document_text


def fact_text(record: Record, name: str) -> str:
    """`breaks`, `recompiles`, `guards`, `frames` or `symbols` of a record. Raises KeyError for another name."""
    return FACTS[name](record)


def _breaks(record: Record) -> str:
    return "\n\n".join(break_texts(record)) or "no graph breaks"


def _recompiles(record: Record) -> str:
    return "\n\n".join(recompile_texts(record)) or "no recompilations"


def _guards(record: Record) -> str:
    """For each compilation its guards; those about the insides of modules and of torch are only counted."""
    of_frame = guards_by_frame(record)
    found = [frame_section(frame, of_frame[frame.id], insides=False) for frame in record.frames if frame.id in of_frame]
    return document_text(found) or "no guards"


def _frames(record: Record) -> str:
    """One line a compilation: the graph it gave, where that ended, and what goes on from there."""
    head = ("frame", "function", "at", "outcome", "ops", "ends at", "resumes in")
    rows = [_frame_cells(frame, record) for frame in record.frames]
    why = [f"{frame.id}: {one_line(frame.reason)}" for frame in record.frames if frame.reason]
    return "\n".join([*columns([head, *rows], right=(4,)), *why]) if rows else "nothing was compiled"


def _frame_cells(frame: Frame, record: Record) -> tuple[str, ...]:
    breaks = [found for found in record.breaks if found.frame == frame.id]
    name = function_name(frame.function)
    title = name if name == frame.function else f"the rest of {name}"
    place = place_text(frame.file, frame.line)
    return (frame.id, title, place, frame.outcome, _ops(frame, record), _ends(breaks), _goes_on(breaks))


def _ops(frame: Frame, record: Record) -> str:
    graphs = [artifact for artifact in record.artifacts if artifact.id in frame.graphs]
    return str(sum(entity.kind == "call" for graph in graphs for entity in graph.entities)) if graphs else ""


def _ends(breaks: Sequence[GraphBreak]) -> str:
    return ", ".join(users_place(found) for found in breaks)


def _goes_on(breaks: Sequence[GraphBreak]) -> str:
    plain = "plain Python"
    words = {"resumed": "", "plain": plain, "skipped": plain, "error": "an error"}
    return ", ".join(", ".join(found.resumed_by) or words[found.outcome] for found in breaks)


def _symbols(record: Record) -> str:
    """Each with its range, then what it was assumed to be, and the line that made a constant of it."""
    head = ("symbol", "stands for", "was", "range", "frame")
    rows = [_symbol_cells(item) for item in record.symbols]
    table = columns([head, *rows]) if rows else ["no symbols"]
    parts = [table[0]]
    for line, item in zip(table[1:], record.symbols, strict=False):
        parts += [line, *(f"  {why}" for why in symbol_whys(item))]
    return "\n".join(parts)


def _symbol_cells(item: Symbol) -> tuple[str, ...]:
    source = ", ".join((item.source, *item.also))
    return item.name, clip(source, WORDS_WIDTH), _number(item.hint), item.became or range_text(item), item.frame


def symbol_whys(item: Symbol) -> list[str]:
    """Which line made a constant of a symbol, and what was assumed of it by which line."""
    whys = []
    if item.became and item.specialized_by:
        whys.append(f"became {item.became} because of {place_and_code(item.specialized_by)}")
    return whys + [condition_text(condition) for condition in item.conditions]


def _number(value: float | None) -> str:
    return "" if value is None else str(value)


FACTS: Final[dict[str, Callable[[Record], str]]] = {
    "breaks": _breaks,
    "recompiles": _recompiles,
    "guards": _guards,
    "frames": _frames,
    "symbols": _symbols,
}
