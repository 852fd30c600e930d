"""Graph breaks as cards to select: each is linked to the lines that led to it and to the graph that it ended."""

from __future__ import annotations

from compiler.record import Entity, GraphBreak, Record
from explorer.blame import culprit_code, users_place
from explorer.cards import break_card, break_groups
from explorer.findings.finding import Finding, LinkedText
from explorer.findings.lines import SourceLines


def breaks_finding(record: Record) -> Finding | None:
    """The cards of a record's graph breaks; None where nothing broke."""
    if not record.breaks:
        return None
    text, lines = LinkedText(), SourceLines(record)
    for group in break_groups(record.breaks):
        number, found = group[0]
        others = [other for _, other in group[1:]]
        entities = [break_entity(item, lines) for _, item in group]
        text.add(break_card(found, number, len(record.breaks), others), *entities)
        text.add("")
    return Finding(text.artifact("breaks", "graph breaks"))


def break_entity(found: GraphBreak, lines: SourceLines) -> Entity:
    """A break as an entity; it comes from the lines of its chain."""
    attrs = {"place": users_place(found), "code": culprit_code(found), "frame": found.frame}
    return Entity(f"breaks.{found.id}", "break", found.what or found.kind, attrs, (), lines.ids(found.chain))
