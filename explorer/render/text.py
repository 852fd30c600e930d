"""Render documents as text, for a terminal and for `print`; each line is linked to its entities."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatch

from compiler.record import Entity
from explorer.reading.plain_text import columns
from explorer.render.document import (
    VIEW,
    Card,
    Change,
    Chart,
    Code,
    Document,
    Flow,
    Fold,
    Items,
    Part,
    Parts,
    Section,
    Table,
    Text,
    Way,
    parts_for,
    payload,
    plain,
)
from explorer.render.finding import Finding, LinkedText

WIDTH, PAGE_WIDTH = 100, 110
INDENT, CODE_INDENT = "  ", "      "
CODE_LINES, CODE_WIDTH = 3, 60


def document_finding(
    stage: str,
    title: str,
    document: Document,
    entities: Mapping[str, Entity] | None,
    count: str = "",
    view: str = VIEW,
    is_open: bool = True,
) -> Finding:
    """Build the finding of a stage from a document, as text and for the view.

    Lines of a card or row are linked to its entities, or to none if `entities` is None. `count` is the finding's size
    in words; `is_open` unfolds it in the static view.
    """
    text = LinkedText()
    for part in parts_for(document, "text"):
        if text.blocks:
            text.add("")
        add_part(text, part, entities)
    artifact = text.artifact(stage, title, count=count)
    return Finding(artifact, "view", view, payload(document), tuple(document), is_open)


def document_text(document: Document) -> str:
    """Render a document as text."""
    return document_finding("", "", document, None).artifact.text.rstrip()


def add_part(text: LinkedText, part: Parts, entities: Mapping[str, Entity] | None, indent: str = "") -> None:
    """Append a part to a text. Parts under a heading are indented."""
    if isinstance(part, Section):
        if part.heading:
            text.add(indent + part.heading)
        for inside in parts_for(part.parts, "text"):
            add_part(text, inside, entities, indent + INDENT if part.heading else indent)
    elif isinstance(part, Chart):
        add_table(text, part.table, entities, indent)
    elif isinstance(part, Table):
        add_table(text, part, entities, indent)
    elif isinstance(part, Text):
        text.add("\n".join(paragraph(part, indent)))
    elif lines := list(text_of(part)):
        linked = [entities[name] for name in part.ids] if isinstance(part, Card) and entities is not None else []
        text.add("\n".join(lines), *linked)


def paragraph(text: Text, indent: str) -> list[str]:
    """Format a paragraph: a warning gets a mark, a lead or a line stays on one line, other text is wrapped."""
    words = plain(text.words)
    if text.style == "warning":
        return [f"! {words}"]
    if len(words) <= PAGE_WIDTH or text.style in ("lead", "line"):
        return [indent + words]
    return textwrap.wrap(words, PAGE_WIDTH, initial_indent=indent, subsequent_indent=indent)


def add_table(text: LinkedText, table: Table, entities: Mapping[str, Entity] | None, indent: str) -> None:
    """Append a table line by line, each linked to the entities of its row. Each entity is added once."""
    known = {entity.id for entity in text.entities}
    for row, line in zip((None, *table.rows) if table.head else table.rows, align_rows(table), strict=True):
        ids = row.ids if row and entities is not None else ()
        new = [entities[name] for name in ids if name not in known] if entities is not None else []
        text.add(indent + line, *new, within=[name for name in ids if name in known])
        known.update(ids)


def align_rows(table: Table) -> list[str]:
    """Align the cells of a table's rows, under its header if it has one."""
    rows = [tuple(map(plain, row.cells)) for row in table.rows]
    return columns([tuple(map(plain, table.head)), *rows] if table.head else rows, right=table.right)


def card_texts(document: Document) -> list[str]:
    """Text of each card in a document."""
    return ["\n".join(text_of(card)) for card in parts_for(document, "text") if isinstance(card, Card)]


@singledispatch
def text_of(part: Part) -> Iterator[str]:
    """Render a part inside a card as lines; a fold has none."""
    if not isinstance(part, Fold):
        raise TypeError(f"{type(part).__name__} has no text")
    yield from ()


@text_of.register
def _(card: Card) -> Iterator[str]:
    yield card.line or card.title
    parts = list(parts_for(card.parts, "text"))
    ways = [part for part in parts if isinstance(part, Way) or (isinstance(part, Text) and part.style == "again")]
    for place in ways:
        yield from text_of(place)
    yield from wrap_lines(plain(card.lead))
    for part in parts:
        if part not in ways:
            yield from text_of(part)
    if card.link and card.link.url:
        yield INDENT + card.link.url


@text_of.register
def _(text: Text) -> Iterator[str]:
    words = plain(text.words)
    yield from [INDENT + words] if text.style == "line" else wrap_lines(words, text.label)


@text_of.register
def _(code: Code) -> Iterator[str]:
    yield from (f"{CODE_INDENT}{line.strip()}" for line in code.lines[:CODE_LINES])


@text_of.register
def _(way: Way) -> Iterator[str]:
    for step in way.steps:
        if not step.how:
            yield f"{INDENT}{step.full}"
            yield from (f"{CODE_INDENT}{line.strip()}" for line in step.exact.splitlines()[:CODE_LINES])
    for step in way.steps:
        if step.how:
            yield f"{INDENT}{step.how} {step.full}  {' '.join(step.exact.split())[:CODE_WIDTH]}"


@text_of.register
def _(flow: Flow) -> Iterator[str]:
    yield from wrap_lines(plain(flow.words))


@text_of.register
def _(change: Change) -> Iterator[str]:
    tried = f" ({change.applicability})" if change.applicability else ""
    yield from wrap_lines(plain(change.words), f"{change.label}{tried}: ")
    if change.new:
        yield f"{CODE_INDENT}{change.where}:"
        yield from (f"{CODE_INDENT}+ {line}" for line in textwrap.dedent("\n".join(change.new)).splitlines())
    yield from (f"{CODE_INDENT}{setting}" for setting in change.settings)


@text_of.register
def _(items: Items) -> Iterator[str]:
    for words in items.items:
        yield from wrap_lines(plain(words), items.bullet) if items.bullet else [INDENT + plain(words)]


@text_of.register
def _(table: Table) -> Iterator[str]:
    """The caption, then the `words` of each row that has them."""
    if table.caption:
        yield f"{INDENT}{plain(table.caption)}:"
    yield from (f"{INDENT}{INDENT}{row.words}" for row in table.rows if row.words)


@text_of.register
def _(section: Section) -> Iterator[str]:
    if section.heading:
        yield section.heading
    for part in parts_for(section.parts, "text"):
        yield from text_of(part)


def wrap_lines(text: str, label: str = "") -> Sequence[str]:
    """Wrap a sentence into indented lines, with a label before the first."""
    if not text:
        return []
    return textwrap.wrap(
        text, WIDTH, initial_indent=INDENT + label, subsequent_indent=INDENT + " " * len(label), break_long_words=False
    )
