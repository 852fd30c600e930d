"""What TorchDynamo did, as text for a terminal: cards, the guards by argument, the way through the frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from compiler.capture.function_names import function_name
from compiler.record import Frame, GraphBreak, Guard, Record, Symbol
from compiler.record.plain_text import one_line, pluralize
from explorer.findings.cards import break_texts, recompile_texts
from explorer.reading.cause import condition_text, place_and_code, users_place
from explorer.reading.plain_text import clip, columns
from explorer.reading.provenance import place_text
from explorer.reading.shapes import seconds_text

WORDS_WIDTH = 72


def told(record: Record, name: str) -> str:
    """`breaks`, `recompiles`, `guards`, `frames` or `symbols` of a record. Raises KeyError for another name."""
    return FACTS[name](record)


def _breaks(record: Record) -> str:
    return "\n\n".join(break_texts(record)) or "no graph breaks"


def _recompiles(record: Record) -> str:
    return "\n\n".join(recompile_texts(record)) or "no recompilations"


def _guards(record: Record) -> str:
    """For each compilation its guards; those about the insides of modules and of torch are only counted."""
    parts = []
    for frame in record.frames:
        guards = [guard for guard in record.guards if guard.frame == frame.id]
        if guards:
            parts.append("\n".join([guards_head(frame, guards), *_guard_lines(guards)]))
    return "\n\n".join(parts) or "no guards"


def guards_head(frame: Frame, guards: Sequence[Guard]) -> str:
    inside = sum(guard.internal for guard in guards)
    counts = f"{pluralize(len(guards) - inside, 'guard')}, and {inside} on the insides of modules and of torch"
    took = frame.guard_seconds
    time = "" if took is None else f"; one check of all takes {seconds_text(took)} with cold caches; each alone, warm:"
    return f"{frame.id}  {function_name(frame.function)} ({place_text(frame.file, frame.line)}): {counts}{time}"


def _guard_lines(guards: Sequence[Guard]) -> list[str]:
    """Those on one argument stand together, in the order of their first."""
    own = [guard for guard in guards if not guard.internal]
    arguments = list(dict.fromkeys(guard.argument for guard in own))
    own.sort(key=lambda guard: arguments.index(guard.argument))
    rows = [guard_cells(guard) for guard in own]
    return [f"  {line}" for line in columns(rows, right=(2,))] if rows else []


def guard_cells(guard: Guard) -> tuple[str, str, str, str]:
    words = one_line(guard.words or " and ".join(guard.code))
    place = place_text(guard.file, guard.line) if guard.file else ""
    return clip(words, WORDS_WIDTH), place, _cost(guard), _failed(guard.failed)


def _cost(guard: Guard) -> str:
    return "" if guard.seconds is None else seconds_text(guard.seconds)


def _failed(times: int) -> str:
    return f"failed {pluralize(times, 'time')}" if times else ""


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


def range_text(item: Symbol) -> str:
    low = "" if item.low is None else f"{item.low} <= "
    high = "" if item.high is None else f" <= {item.high}"
    return f"{low}{item.name}{high}" if low or high else "any"


def _number(value: float | None) -> str:
    return "" if value is None else str(value)


FACTS: Final[dict[str, Callable[[Record], str]]] = {
    "breaks": _breaks,
    "recompiles": _recompiles,
    "guards": _guards,
    "frames": _frames,
    "symbols": _symbols,
}
