"""Render documents as HTML without scripts and style sheets, for saved notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import singledispatch
from typing import Any

from explorer.reading.plain_text import clip
from explorer.reading.shapes import number_text
from explorer.render.document import (
    Bar,
    Card,
    Change,
    Chart,
    Code,
    Document,
    Flow,
    Fold,
    Items,
    Part,
    Picture,
    Piece,
    Section,
    Table,
    Tag,
    Text,
    Values,
    Way,
    Words,
    parts_for,
    pieces,
    plain,
)
from explorer.render.html import (
    WARNING,
    cell,
    details,
    muted_html,
    note,
    picture,
    pre,
    prose,
    safe,
    table_of_cells,
    text_cell,
)
from explorer.render.text import text_of as lines_of

SIDE = 6
"""Maximum rows and columns of a matrix that is shown number by number."""
_NUMBERS = "font-size:12px;white-space:nowrap;display:inline-table;vertical-align:middle"
_BRACKET = "border-left:1px solid currentColor;border-right:1px solid currentColor;border-radius:4px"
_CELL = "border:0;padding:0 0.35em;text-align:right"
CODE_MOST, ROWS = 1_000, 30
"""Maximum characters of a line of code, and maximum rows of a table."""


def document_html(document: Document) -> str:
    """HTML of a document's parts, one below the other."""
    return "\n".join(piece for part in parts_for(document, "html") for piece in html_of(part))


@singledispatch
def html_of(part: Part) -> Iterator[str]:
    """Render a part as pieces of HTML."""
    raise TypeError(f"{type(part).__name__} has no HTML")


@html_of.register
def _(card: Card) -> Iterator[str]:
    times = f" ({card.count} times)" if card.count > 1 else ""
    title = f"<b>{safe(plain(card.about) or card.title)}</b> {words_html(card.summary or card.lead)}{times}"
    link = note(f"{card.link.words} {card.link.url}".strip()) if card.link and card.link.url else ""
    tag = f" {muted_html(card.tag.words)}" if card.tag else ""
    yield details(title + tag, document_html(card.parts) + link, card.is_open)


@html_of.register
def _(text: Text) -> Iterator[str]:
    if text.style == "warning":
        yield f'<div style="{WARNING}">{words_html(text.words)}</div>'
    elif text.words:
        label = f"<b>{safe(text.label.rstrip(': ').capitalize())}</b> " if text.label else ""
        words = f"<b>{words_html(text.words)}</b>" if text.style == "lead" else words_html(text.words)
        yield f'<div style="margin:0.4em 0">{label}{words}</div>'


@html_of.register
def _(code: Code) -> Iterator[str]:
    yield pre([safe(clip(line, CODE_MOST)) for line in code.lines])


@html_of.register
def _(way: Way) -> Iterator[str]:
    if way.steps:
        yield pre([safe(line.removeprefix("  ")) for line in lines_of(way)])


@html_of.register
def _(flow: Flow) -> Iterator[str]:
    yield f'<div style="margin:0.4em 0">{words_html(flow.words)}</div>'


@html_of.register
def _(change: Change) -> Iterator[str]:
    tried = f" ({change.applicability})" if change.applicability else ""
    yield f"<div><b>{change.label.capitalize()}</b>{tried}: {words_html(change.words)}</div>"
    if change.new:
        yield f"<div>{muted_html(change.where)}</div>"
    if code := [*(line.strip() if len(change.new) == 1 else line for line in change.new), *change.settings]:
        yield pre([safe(line) for line in code])


@html_of.register
def _(items: Items) -> Iterator[str]:
    yield from (f"<div>· {words_html(words)}</div>" for words in items.items)


@html_of.register
def _(table: Table) -> Iterator[str]:
    if table.caption:
        yield f"<div>{words_html(table.caption)}</div>"
    if any(row.words for row in table.rows):
        yield pre([safe(row.words) for row in table.rows if row.words])
    else:
        rows = ([text_cell(plain(words), words_html(words)) for words in row.cells] for row in table.rows[:ROWS])
        yield table_of_cells(map(plain, table.head), rows)
        yield note(f"… and {len(table.rows) - ROWS:,} more") if len(table.rows) > ROWS else ""


@html_of.register
def _(chart: Chart) -> Iterator[str]:
    yield from html_of(chart.table)


@html_of.register
def _(drawn: Picture) -> Iterator[str]:
    yield picture(drawn.alt, drawn.draw(drawn.of))


@html_of.register
def _(fold: Fold) -> Iterator[str]:
    yield details(words_html(fold.title), document_html(fold.parts), fold.is_open)


@html_of.register
def _(section: Section) -> Iterator[str]:
    heading = f"<b>{prose(section.heading)}</b>" if section.heading else ""
    yield f'<div style="margin:0.4em 0">{heading}{document_html(section.parts)}</div>'


def words_html(words: Words) -> str:
    """Escape a sentence for HTML. A link becomes plain words, because static HTML has no target for it."""
    return "".join(map(_piece_html, pieces(words)))


def _piece_html(piece: Piece) -> str:
    if isinstance(piece, Bar):
        return ""
    if isinstance(piece, Values):
        return values_html(piece.data) + (f" {muted_html(piece.name)}" if piece.name else "")
    if isinstance(piece, Tag) and piece.style in ("muted", "badge", "gain"):
        return muted_html(piece.words)
    if isinstance(piece, Tag) and piece.style == "strong":
        return f"<b>{safe(piece.words)}</b>"
    return prose(piece if isinstance(piece, str) else piece.words)


def values_html(data: Mapping[str, Any] | None) -> str:
    """A tensor's numbers in brackets, row by row; a large tensor's type, norm and bounds; "?" if unknown."""
    if data is None:
        return "?"
    numbers, shape = data["numbers"], data["shape"]
    if numbers is None or len(shape) > 2 or max((1, *shape)) > SIDE:
        ailing = [
            f"{data[name]:,} {words}" for name, words in (("nans", "NaN"), ("infinite", "infinite")) if data[name]
        ]
        low, high = number_text(data["low"]), number_text(data["high"])
        return safe(", ".join([data["type"], f"norm {number_text(data['norm'])}", f"{low} to {high}", *ailing]))
    if not shape:
        return f'<span style="{_NUMBERS}">{number_text(numbers)}</span>'
    rows = numbers if len(shape) == 2 else [numbers]
    body = "".join(f"<tr>{''.join(cell(number_text(number), _CELL) for number in row)}</tr>" for row in rows)
    return f'<table style="{_NUMBERS};{_BRACKET};border-collapse:collapse;margin:1px 0">{body}</table>'
