"""A finding as a document: an immutable tree of parts.

Three modules render it: `render.text` to text, `render.static` to HTML without scripts, and `payload` here to the plain
JSON that `static/document_view.js` shows. A part holds content; each renderer decides its appearance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec


class Part(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="part", tag=str.lower):
    """Base class of the parts of a document."""


class Link(Part, frozen=True):
    """A link to an artifact, one of its rows, an entity, a comparison of two graphs, or a web page.

    `detail` follows the words if there is room for it.
    """

    words: str
    row: tuple[str, int] | None = None
    open: str = ""
    id: str = ""
    compare: tuple[str, str] | None = None
    url: str = ""
    title: str = ""
    style: str = ""
    detail: str = ""


class Tag(Part, frozen=True):
    """Styled words. `style` is "muted", "strong", "badge", "gain", "was", "now" or "code"."""

    words: str
    style: str
    title: str = ""


class Bar(Part, frozen=True):
    """Horizontal bars, one below the other: amounts with the names of their colours.

    `mark` is the amount at which a line crosses the bars. Bars with the same `scale` are drawn to one scale, also
    across the two sides of a comparison.
    """

    amounts: tuple[tuple[float, str], ...]
    scale: str
    mark: float | None = None
    title: str = ""


class Values(Part, frozen=True):
    """The numbers of a tensor. `data` has its type, norm, bounds and numbers. `flat` shows one row of numbers."""

    data: dict[str, Any] | None
    name: str = ""
    flat: bool = False


Piece: TypeAlias = "str | Link | Tag | Bar | Values"
Words: TypeAlias = "Piece | tuple[Piece, ...]"
"""A sentence: text (code in backticks), links, tags, bars and values. Plain text leaves out bars and values."""


class Text(Part, frozen=True):
    """A sentence or a paragraph. `style` is "", "lead", "why", "warning", "line" (not wrapped) or "again"."""

    words: Words
    style: str = ""
    label: str = ""


class Code(Part, frozen=True):
    """Lines of code. `marks` are a column range in each line; `copy` is the text that a click copies.

    `source` is set in place of `lines`: an artifact, and its first and last line, which the view loads when it needs
    them.
    """

    lines: tuple[str, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    copy: str = ""
    language: str = "python"
    source: tuple[str, int, int] | None = None
    label: str = ""


class Step(Part, frozen=True):
    """A step of a call chain: location, function and code.

    `how` is "through" for code in packages, "called in" for user code, and "" for the target of the chain. `full` is
    the full location and `exact` the exact expression, both for text.
    """

    place: Link
    function: str
    code: Code
    full: str
    exact: str = ""
    how: str = ""


class Way(Part, frozen=True):
    """The chain of calls that leads to a place, outermost first."""

    steps: tuple[Step, ...]


class Flow(Part, frozen=True):
    """A graph break: the code before and after it, the values that cross it, and a sentence that describes it."""

    before: Words
    across: str
    after: tuple[Words, ...]
    words: Words
    plain: bool = False


class Change(Part, frozen=True):
    """A suggested change: a sentence, its applicability, the old and new lines, or settings to run."""

    label: str
    words: Words
    applicability: str = ""
    place: Link | None = None
    where: str = ""
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


class Items(Part, frozen=True):
    """A list of sentences; `bullet` precedes each in text."""

    items: tuple[Words, ...]
    label: str = ""
    bullet: str = ""


class Row(Part, frozen=True):
    """A table row, linked to the entities `ids`. `words` replace its cells in text; `title` is its tooltip.

    `parts` are shown below the first cell in the view. `keys` are sort keys, `group` is the index of its filter group.
    """

    cells: tuple[Words, ...]
    ids: tuple[str, ...] = ()
    words: str = ""
    title: str = ""
    parts: tuple[Parts, ...] = ()
    keys: tuple[float, ...] = ()
    group: int = 0


class Table(Part, frozen=True):
    """A table with a header row; the columns in `right` are right-aligned.

    In the view the reader may sort by one of `orders` and filter by one of `groups`. The first order is that of the
    rows; the others sort by the rows' `keys`, largest first. The first group is all rows.
    """

    head: tuple[Words, ...]
    rows: tuple[Row, ...]
    caption: Words = ""
    right: tuple[int, ...] = ()
    style: str = ""
    label: str = ""
    orders: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class Chart(Part, frozen=True):
    """A chart in the view: `kind` names the drawing function, `data` is its input. Other renderers show `table`."""

    kind: str
    data: dict[str, Any]
    table: Table


class Picture(Part, frozen=True):
    """A drawing for HTML. `draw(of)` returns its SVG, and is called when the drawing is shown."""

    alt: str
    draw: Callable[[Any], str]
    of: Any


class Fold(Part, frozen=True):
    """A collapsible section; text leaves it out."""

    title: Words
    parts: tuple[Parts, ...]
    is_open: bool = False
    style: str = ""


class Choice(Part, frozen=True):
    """Named options: the view shows one at a time, text and HTML show all."""

    label: str
    options: tuple[tuple[str, tuple[Parts, ...]], ...]
    style: Literal["buttons", "menu"] = "buttons"


class Make(Part, frozen=True):
    """A button in the view that makes a stage. A saved page shows `words` instead: how to get the stage."""

    stage: str
    button: str
    words: str


class Only(Part, frozen=True):
    """Parts for some media only: `media` has some of "text", "html" and "view"."""

    media: tuple[Literal["text", "html", "view"], ...]
    parts: tuple[Parts, ...]


class Section(Part, frozen=True):
    """A group of parts, with an optional heading."""

    parts: tuple[Parts, ...]
    heading: str = ""
    style: str = ""


class Card(Part, frozen=True):
    """A card for the entities `ids`: a title, a lead sentence, and parts.

    `about` names the subject, and `aside` adds to it. `line` is the whole heading in text. `summary` replaces `lead` if
    the card is folded. `count` is the number of occurrences.
    """

    title: str
    ids: tuple[str, ...]
    lead: Words
    parts: tuple[Parts, ...]
    kind: str = ""
    about: Words = ""
    aside: Words = ""
    line: str = ""
    summary: Words = ""
    count: int = 1
    link: Link | None = None
    tag: Tag | None = None
    warns: bool = True
    is_open: bool = False


Parts: TypeAlias = (
    "Text | Code | Way | Flow | Change | Items | Table | Chart | Picture | Fold | Choice | Make | Only | Section | Card"
)
Document: TypeAlias = Sequence[Parts]

VIEW: Final = "document"
"""Name of the front end's view of documents."""


def payload(document: Document) -> dict[str, Any]:
    """Convert a document to plain JSON for the front end: its parts, and the largest amount of each bar scale."""
    parts = tuple(_in_view(document))
    return {"parts": msgspec.to_builtins(parts, str_keys=True), "most": _largest_amounts(parts)}


def _in_view(document: Document) -> Iterator[Parts]:
    """Yield the parts that the view shows, with the nested parts that it shows."""
    for part in parts_for(document, "view"):
        if isinstance(part, Card | Fold | Section):
            yield msgspec.structs.replace(part, parts=tuple(_in_view(part.parts)))
        elif isinstance(part, Choice):
            options = tuple((name, tuple(_in_view(inside))) for name, inside in part.options)
            yield msgspec.structs.replace(part, options=options)
        else:
            yield part


def _largest_amounts(value: object) -> dict[str, float]:
    """Largest amount of each bar scale, in a value and in all nested parts."""
    if isinstance(value, Bar):
        return {value.scale: max(amount for amount, _ in value.amounts)}
    inside = value if isinstance(value, tuple) else msgspec.structs.astuple(value) if isinstance(value, Part) else ()
    found: dict[str, float] = {}
    for each in inside:
        for scale, amount in _largest_amounts(each).items():
            found[scale] = max(amount, found.get(scale, 0.0))
    return found


def parts_for(document: Document, medium: Literal["text", "html", "view"]) -> Iterator[Parts]:
    """Parts of a document for a medium. `Only` is replaced by its parts, and `Choice` too except in the view."""
    for part in document:
        if isinstance(part, Choice) and medium != "view":
            for _, inside in part.options:
                yield from parts_for(inside, medium)
        elif not isinstance(part, Only):
            yield part
        elif medium in part.media:
            yield from parts_for(part.parts, medium)


def pieces(words: Words) -> tuple[Piece, ...]:
    """The pieces of a sentence."""
    return words if isinstance(words, tuple) else (words,)


def plain(words: Words) -> str:
    """Convert a sentence to plain text."""
    return "".join(map(_plain_piece, pieces(words)))


def _plain_piece(piece: Piece) -> str:
    if isinstance(piece, Tag) and piece.style == "badge":
        return f"({piece.words})"
    return piece if isinstance(piece, str) else "" if isinstance(piece, Bar | Values) else piece.words
