"""Graph breaks as cards to select: each is linked to the lines that led to it and to the graph that it ended.

What was left to Python without a break (functions that were skipped, compilations that failed, code that torch read
anew) is told below, apart from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.capture.function_names import function_name
from compiler.record import Entity, Frame, GraphBreak, Record, Suggestion
from explorer.findings.cards import advice_text, break_card, cost_words, first_call_words, outcome_words
from explorer.reading.cause import break_reason, culprit_code, users_place, users_span
from explorer.reading.plain_text import counted, one_line
from explorer.reading.provenance import place_text
from explorer.reading.shapes import size_text
from explorer.reading.sites import break_count, break_groups
from explorer.reading.source_lines import SourceLines
from explorer.reading.spots import line_spot, spot
from explorer.render.finding import Finding, LinkedText


def breaks_finding(record: Record) -> Finding | None:
    """The cards of a record's graph breaks, and what else was not compiled; None where everything was."""
    told = notes(record)
    if not record.breaks and not told:
        return None
    text, lines, graphs = LinkedText(), SourceLines(record), Graphs(record)
    groups = break_groups(record.breaks)
    for number, group in enumerate(groups, 1):
        entities = [break_entity(item, lines, graphs) for item in group]
        text.add(break_card(group[0], number, len(groups), group[1:]), *entities)
        text.add("")
    if told:
        text.add("\n".join([notes_title(record), *map(str, told)]))
    cards = [card(number, len(groups), group, lines, graphs) for number, group in enumerate(groups, 1)]
    data = {"cards": cards, "notes": [note.data(lines) for note in told], "title": notes_title(record)}
    artifact = text.artifact("breaks", "graph breaks", count=break_count(record.breaks, "break"))
    return Finding(artifact, "view", "breaks", data)


def break_id(found: GraphBreak) -> str:
    """The id of a break's entity."""
    return f"breaks.{found.id}"


def break_entity(found: GraphBreak, lines: SourceLines, graphs: Graphs) -> Entity:
    """A break as an entity; it comes from the lines of its chain, and from where its graph ended."""
    attrs = {"place": users_place(found), "code": culprit_code(found), "frame": found.frame}
    origins = (*lines.ids(found.chain), *graphs.end(found.ended))
    return Entity(break_id(found), "break", found.what or found.kind, attrs, (), origins)


class Graphs:
    """The captured graphs of a record, as a card names them."""

    def __init__(self, record: Record) -> None:
        self._graphs = {artifact.id: artifact for artifact in record.of_stage("captured")}
        self._frames = {frame.id: frame for frame in record.frames}

    def end(self, graph: str) -> tuple[str, ...]:
        """The id of a graph's output node."""
        artifact = self._graphs.get(graph)
        return tuple(entity.id for entity in artifact.entities if entity.kind == "output") if artifact else ()

    def graph(self, name: str) -> dict[str, Any] | None:
        """A graph to open: its artifact, and how many ops are in it. None where the record does not have it."""
        artifact = self._graphs.get(name)
        return None if artifact is None else {"id": name, "name": f"graph {artifact.graph}", "ops": self.ops(name)}

    def ops(self, name: str) -> int:
        return sum(entity.kind == "call" for entity in self._graphs[name].entities)

    def resumed(self, name: str) -> dict[str, Any]:
        """A frame that goes on after a break: what it is, and its graph if it has one."""
        frame = self._frames.get(name)
        graph = self.graph(frame.graphs[0]) if frame and frame.graphs else None
        words = f"the rest of {function_name(frame.function)}, from line {frame.line}" if frame else name
        return {"frame": name, "words": words, "graph": graph}


def card(number: int, total: int, group: Sequence[GraphBreak], lines: SourceLines, graphs: Graphs) -> dict[str, Any]:
    """All that a card says of breaks of one place and kind, in plain JSON values."""
    found, *others = group
    users = users_span(found)
    after = [graphs.resumed(name) for name in found.resumed_by]
    return {
        "ids": [break_id(item) for item in group],
        "number": number,
        "total": total,
        "what": break_reason(found),
        "at": spot(users, lines) if users else line_spot(found.file, found.line, lines) | {"code": [found.code]},
        "chain": [spot(span, lines) | {"main": span == users} for span in found.chain] if len(found.chain) > 1 else [],
        "outcome": found.outcome,
        "words": outcome_words(found, not after or any(item["graph"] for item in after)),
        "before": graphs.graph(found.ended),
        "crossing": _crossing(found),
        "after": after,
        "lost": f"{first_call_words(found)} {cost_words(found)}".strip(),
        "changes": [_change(suggestion, lines) for suggestion in found.suggestions],
        "again": [{"id": break_id(item), "frame": item.frame} for item in others],
        "torch": _torchs_words(found),
    }


def _crossing(found: GraphBreak) -> str:
    size = f", {size_text(found.crossing_bytes)}" if found.crossing_bytes else ""
    return f"{counted(found.crossing, 'tensor')}{size}" if found.ended else ""


def _torchs_words(found: GraphBreak) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "explanation": found.explanation,
        "hints": list(found.hints),
        "reason": found.reason,
        "consequence": found.consequence,
        "stack": list(found.stack),
        "id": found.gb_id,
        "link": found.link,
    }


def _change(suggestion: Suggestion, lines: SourceLines) -> dict[str, Any]:
    """A suggestion; a rewrite comes with the lines that it replaces."""
    first, last = suggestion.line, suggestion.end_line
    old = lines.code(suggestion.file, first, last) if suggestion.rewrite else ()
    return {
        "words": advice_text(suggestion),
        "applicability": suggestion.applicability,
        "at": line_spot(suggestion.file, first, lines) if suggestion.rewrite else None,
        "old": list(old),
        "new": suggestion.rewrite.splitlines(),
        "settings": list(suggestion.settings),
    }


@dataclass(frozen=True, slots=True)
class Note:
    """What was not compiled though no graph broke there, or was read more than once: which function, and why."""

    function: str
    words: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f" ({place_text(self.file, self.line)})" if self.file else ""
        return f"  {self.function}{place} {self.words}".rstrip()

    def data(self, lines: SourceLines) -> dict[str, Any]:
        at = line_spot(self.file, self.line, lines) if self.file else None
        return {"function": self.function, "at": at, "words": self.words}


def notes_title(record: Record) -> str:
    if record.breaks:
        return "Not compiled, without a break:"
    return "No graph broke." if record.of_stage("captured") else "Nothing was compiled:"


def notes(record: Record) -> list[Note]:
    """What a record has of them; where nothing was even looked at, why not."""
    broken = {found.frame for found in record.breaks}
    frames = [Note(function_name(frame.function), words, frame.file, frame.line)
              for frame in record.frames for words in _frame_words(frame, frame.id in broken)]  # fmt: skip
    none = () if record.breaks or record.of_stage("captured") else record.problems
    whole = [Note("", one_line(problem.reason)) for problem in none if problem.stage == "captured"]
    return list(dict.fromkeys(frames)) or whole


def _frame_words(frame: Frame, broke: bool) -> Iterator[str]:
    if frame.outcome == "skipped" and not broke and frame.reason:
        yield f"runs as plain Python: {one_line(frame.reason)}"
    if frame.outcome == "failed" and not broke:
        yield f"could not be compiled: {one_line(frame.reason)}"
    for why in frame.restarts:
        yield f"was read anew: {one_line(why)}"
