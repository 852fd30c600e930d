"""What TorchDynamo did, as text for a terminal: cards, the guards by argument, the way through the frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from compiler.capture.function_names import function_name
from compiler.record import Frame, GraphBreak, Guard, Record, Symbol
from explorer.blame import users_place
from explorer.cards import break_cards, recompile_cards
from explorer.provenance import place_text
from explorer.text import clip, columns, counted, one_line

WORDS_WIDTH = 72


def told(record: Record, name: str) -> str:
    """`breaks`, `recompiles`, `guards`, `frames` or `symbols` of a record. Raises KeyError for another name."""
    return FACTS[name](record)


def _breaks(record: Record) -> str:
    return "\n\n".join(break_cards(record.breaks)) or "no graph breaks"


def _recompiles(record: Record) -> str:
    return "\n\n".join(recompile_cards(record.recompiles)) or "no recompilations"


def _guards(record: Record) -> str:
    """For each compilation its guards; those about the insides of modules and of torch are only counted."""
    failed = Counter((failure.entry, failure.source) for found in record.recompiles for failure in found.failures)
    parts = []
    for frame in record.frames:
        guards = [guard for guard in record.guards if guard.frame == frame.id]
        if guards:
            parts.append("\n".join([_guards_head(frame, guards), *_guard_lines(guards, failed)]))
    return "\n\n".join(parts) or "no guards"


def _guards_head(frame: Frame, guards: Sequence[Guard]) -> str:
    inside = sum(guard.internal for guard in guards)
    counts = f"{counted(len(guards) - inside, 'guard')}, and {inside} on the insides of modules and of torch"
    return f"{frame.id}  {function_name(frame.function)} ({place_text(frame.file, frame.line)}): {counts}"


def _guard_lines(guards: Sequence[Guard], failed: Counter[tuple[str, str]]) -> list[str]:
    """Those on one argument stand together, in the order of their first."""
    own = [guard for guard in guards if not guard.internal]
    arguments = list(dict.fromkeys(guard.argument for guard in own))
    own.sort(key=lambda guard: arguments.index(guard.argument))
    rows = [_guard_cells(guard, failed[guard.frame, guard.source]) for guard in own]
    return [f"  {line}" for line in columns(rows)] if rows else []


def _guard_cells(guard: Guard, failed: int) -> tuple[str, str, str]:
    words = one_line(guard.words or " and ".join(guard.code))
    return clip(words, WORDS_WIDTH), place_text(guard.file, guard.line) if guard.file else "", _failed(failed)


def _failed(times: int) -> str:
    return f"failed {counted(times, 'time')}" if times else ""


def _frames(record: Record) -> str:
    """One line a compilation: the graph it gave, where that ended, and what goes on from there."""
    head = ("frame", "function", "at", "outcome", "ops", "ends at", "goes on in")
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
    rows = [(item.name, item.source, _number(item.hint), _range(item), item.frame) for item in record.symbols]
    return "\n".join(columns([("symbol", "stands for", "was", "range", "frame"), *rows])) if rows else "no symbols"


def _range(item: Symbol) -> str:
    low = "" if item.low is None else f"{item.low} <= "
    high = "" if item.high is None else f" <= {item.high}"
    return f"{low}{item.name}{high}" if low or high else "any"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


FACTS: Final[dict[str, Callable[[Record], str]]] = {
    "breaks": _breaks,
    "recompiles": _recompiles,
    "guards": _guards,
    "frames": _frames,
    "symbols": _symbols,
}
