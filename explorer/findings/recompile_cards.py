"""What the view shows of each recompilation: what is to blame, old beside new for every guard that failed, advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.capture.function_names import function_name
from compiler.record import Guard, GuardFailure, Recompile, Record
from explorer.findings.breaks import Graphs
from explorer.findings.cards import limit_words
from explorer.findings.timeline import recompile_id
from explorer.reading.cause import closest_failure
from explorer.reading.source_lines import SourceLines
from explorer.reading.spots import line_spot, spot


class Known:
    """What cards are made with: the record's lines, graphs, and guards of the user's own by compilation and source."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.lines = SourceLines(record)
        self.graphs = Graphs(record)
        self._guards: dict[tuple[str, str], list[Guard]] = {}
        for guard in record.guards:
            if not guard.internal:
                self._guards.setdefault((guard.frame, guard.source), []).append(guard)

    def failed(self, failure: GuardFailure) -> list[Guard]:
        """The guards that a failure is of: of those on the same source, the ones that turned calls away."""
        same = self._guards.get((failure.entry, failure.source), []) if failure.source else []
        return [guard for guard in same if guard.failed] or same


def group_cards(number: int, total: int, group: Sequence[Recompile], known: Known) -> list[dict[str, Any]]:
    """The cards of the recompilations of one cause, number `number` of `total`."""
    title = f"Recompilation, cause {number} of {total}"
    titles = [title] if len(group) == 1 else [f"{title}: {nth} of {len(group)}" for nth, _ in enumerate(group, 1)]
    return [card_data(name, number, total, found, known) for name, found in zip(titles, group, strict=True)]


def card_data(title: str, number: int, total: int, found: Recompile, known: Known) -> dict[str, Any]:
    """All that a card says of a recompilation, in plain JSON values; it is for cause number `number` of `total`."""
    closest, lines = closest_failure(found), known.lines
    return {
        "ids": [recompile_id(found)],
        "title": title,
        "number": number,
        "total": total,
        "frame": found.frame,
        "function": function_name(found.function),
        "at": line_spot(found.file, found.line, lines),
        "call": spot(found.call, lines) if found.call else None,
        "call_number": found.call_number,
        "cause": found.cause,
        "blamed": failure_data(closest, known) if closest else None,
        "reasons": [] if found.failures else [line for reason in found.reasons for line in reason.splitlines()[:1]],
        "entries": entries_data(found, closest, known),
        "advice": found.advice,
        "applicability": found.applicability,
        "settings": list(found.settings),
        "limit": limit_words(found) if found.limit else "",
        "graphs": compared(found, known),
        "changed": found.graph_change,
        "torch": list(found.reasons),
    }


def entries_data(found: Recompile, closest: GuardFailure | None, known: Known) -> list[dict[str, Any]]:
    """Per cache entry all guards that failed, the entry that came closest first."""
    entries: dict[str, list[GuardFailure]] = {closest.entry: []} if closest else {}
    for failure in found.failures:
        entries.setdefault(failure.entry, []).append(failure)
    return [
        {"entry": entry, "failures": [failure_data(failure, known) for failure in failures]}
        for entry, failures in entries.items()
    ]


def failure_data(failure: GuardFailure, known: Known) -> dict[str, Any]:
    """A failed guard: was and is, and the line that asked for it."""
    asked = next((guard for guard in known.failed(failure) if guard.file), None)
    return {
        "about": about(failure),
        "cause": failure.cause,
        "old": failure.old,
        "new": failure.new,
        "words": failure.words,
        "code": failure.code,
        "at": line_spot(asked.file, asked.line, known.lines) if asked else None,
    }


def about(failure: GuardFailure) -> str:
    """What it was that differed: "size of `x` in dimension 0"."""
    suffix = f" was {failure.old}, is {failure.new}"
    return failure.words.removesuffix(suffix) if failure.words.endswith(suffix) else f"`{failure.argument}`"


def compared(found: Recompile, known: Known) -> list[dict[str, Any]] | None:
    """The graph of the compilation that came closest, and the new one; None where one of them is not there."""
    frames = {frame.id: frame for frame in known.record.frames if frame.id in (found.closest, found.frame)}
    pair = [frames.get(found.closest), frames.get(found.frame)]
    graphs = [known.graphs.graph(frame.graphs[0]) for frame in pair if frame and frame.graphs]
    both = [graph for graph in graphs if graph]
    return both if len(both) == 2 else None
