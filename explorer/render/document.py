"""A finding as a document: a tree of frozen parts, made once.

Three modules lower it: `render.text` to text, `render.static` to HTML without scripts, and `payload` here to the plain
JSON that `static/document_view.js` shows. A part says what there is to know, and each lowering how that looks there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec


class Part(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="part", tag=str.lower):
    """What a document is made of."""


class Link(Part, frozen=True):
    """Words that lead somewhere: to a row of an artifact, an artifact, an entity, two graphs to compare, a web page.

    `detail` stands behind them where there is room for it.
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
    """Words that look unlike those around them: "muted", "strong", "badge", "gain", "was", "now", "code"."""

    words: str
    style: str
    title: str = ""


class Bar(Part, frozen=True):
    """Amounts as bars, one below the other, each with the name of its colour; `mark` is a line across them.

    Bars of the same `scale` are drawn to one scale, those of the other side of a record of two as well.
    """

    amounts: tuple[tuple[float, str], ...]
    scale: str
    mark: float | None = None
    title: str = ""


class Values(Part, frozen=True):
    """The numbers of a tensor under a name, `flat` as one row; `data` has its type, norm, bounds and numbers."""

    data: dict[str, Any] | None
    name: str = ""
    flat: bool = False


Piece: TypeAlias = "str | Link | Tag | Bar | Values"
Words: TypeAlias = "Piece | tuple[Piece, ...]"
"""A sentence: text, in which code stands in backticks, links, tags and bars. A text leaves bars out."""


class Text(Part, frozen=True):
    """A sentence or a paragraph. `style` is "", "lead", "why", "warning", "line" (not wrapped) or "again"."""

    words: Words
    style: str = ""
    label: str = ""


class Code(Part, frozen=True):
    """Lines of code, in each of which columns may be marked; `copy` says what a click copies.

    `source` are an artifact and its first and last line, in place of `lines`: the view loads them when they are shown.
    """

    lines: tuple[str, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    copy: str = ""
    language: str = "python"
    source: tuple[str, int, int] | None = None
    label: str = ""


class Step(Part, frozen=True):
    """A place on the way to another: its line, the function, its code, how it leads on ("", "through", "called in").

    `full` is the place in full and `exact` the piece of code, for texts; the place that is meant has no `how`.
    """

    place: Link
    function: str
    code: Code
    full: str
    exact: str = ""
    how: str = ""


class Way(Part, frozen=True):
    """The calls that lead to a place, the outermost first."""

    steps: tuple[Step, ...]


class Flow(Part, frozen=True):
    """What comes before and after a cut, what crosses it, and the sentence that says so."""

    before: Words
    across: str
    after: tuple[Words, ...]
    words: Words
    plain: bool = False


class Change(Part, frozen=True):
    """Something to do: a sentence, how far it was tried, the lines that it replaces by others, or settings to run."""

    label: str
    words: Words
    applicability: str = ""
    place: Link | None = None
    where: str = ""
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


class Items(Part, frozen=True):
    """A list of sentences; `bullet` stands before each in a text."""

    items: tuple[Words, ...]
    label: str = ""
    bullet: str = ""


class Row(Part, frozen=True):
    """A row of a table, for entities if it has ids. `words` say it in a text; `title` is shown beside the pointer.

    `parts` stand below its first cell in the view. `keys` are numbers to sort by, `group` is what to filter by.
    """

    cells: tuple[Words, ...]
    ids: tuple[str, ...] = ()
    words: str = ""
    title: str = ""
    parts: tuple[Parts, ...] = ()
    keys: tuple[float, ...] = ()
    group: int = 0


class Table(Part, frozen=True):
    """Rows of cells under their names; the columns in `right` are numbers.

    In the view the reader may choose one of `orders`: that of the rows, then by their `keys`, the largest first; and
    one of `groups`, of which the first is all rows.
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
    """Numbers that the view draws: `kind` names its drawing, `data` is what that takes. Elsewhere they are a table."""

    kind: str
    data: dict[str, Any]
    table: Table


class Picture(Part, frozen=True):
    """A drawing for HTML, which `draw` makes of `of` as SVG when it is shown."""

    alt: str
    draw: Callable[[Any], str]
    of: Any


class Fold(Part, frozen=True):
    """What is shown when it is asked for; a text leaves it out."""

    title: Words
    parts: tuple[Parts, ...]
    is_open: bool = False
    style: str = ""


class Choice(Part, frozen=True):
    """Parts of which the view shows one option at a time, by name; a text and HTML show all of them."""

    label: str
    options: tuple[tuple[str, tuple[Parts, ...]], ...]
    style: Literal["buttons", "menu"] = "buttons"


class Only(Part, frozen=True):
    """Parts that some lowerings alone show: `media` has some of "text", "html" and "view"."""

    media: tuple[Literal["text", "html", "view"], ...]
    parts: tuple[Parts, ...]


class Section(Part, frozen=True):
    """Parts that belong together, under a heading if there is one."""

    parts: tuple[Parts, ...]
    heading: str = ""
    style: str = ""


class Card(Part, frozen=True):
    """One of several things of a kind, for the entities `ids`: a title, where it is, what it is, and the rest.

    `about` says which one, `aside` more of it; `line` is all of its head in a text, `summary` stands for `lead` where
    the card is folded. `count` says how often it happened.
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
    "Text | Code | Way | Flow | Change | Items | Table | Chart | Picture | Fold | Choice | Only | Section | Card"
)
Document: TypeAlias = Sequence[Parts]

VIEW: Final = "document"
"""The view of the front end that shows documents."""


def payload(document: Document) -> dict[str, Any]:
    """A document as plain JSON values for the front end: its parts, and the largest amount of each scale of bars."""
    parts = tuple(_in_view(document))
    return {"parts": msgspec.to_builtins(parts, str_keys=True), "most": _largest_amounts(parts)}


def _in_view(document: Document) -> Iterator[Parts]:
    """The parts that the view shows, those inside of others too."""
    for part in parts_for(document, "view"):
        if isinstance(part, Card | Fold | Section):
            yield msgspec.structs.replace(part, parts=tuple(_in_view(part.parts)))
        elif isinstance(part, Choice):
            options = tuple((name, tuple(_in_view(inside))) for name, inside in part.options)
            yield msgspec.structs.replace(part, options=options)
        else:
            yield part


def _largest_amounts(value: object) -> dict[str, float]:
    """The largest amount of each scale in parts, and in what is inside of them."""
    if isinstance(value, Bar):
        return {value.scale: max(amount for amount, _ in value.amounts)}
    inside = value if isinstance(value, tuple) else msgspec.structs.astuple(value) if isinstance(value, Part) else ()
    found: dict[str, float] = {}
    for each in inside:
        for scale, amount in _largest_amounts(each).items():
            found[scale] = max(amount, found.get(scale, 0.0))
    return found


def parts_for(document: Document, medium: Literal["text", "html", "view"]) -> Iterator[Parts]:
    """The parts of a document that a medium shows, without those that say for which others they are."""
    for part in document:
        if isinstance(part, Choice) and medium != "view":
            for _, inside in part.options:
                yield from parts_for(inside, medium)
        elif not isinstance(part, Only):
            yield part
        elif medium in part.media:
            yield from parts_for(part.parts, medium)


def pieces(words: Words) -> tuple[Piece, ...]:
    """A sentence as its pieces."""
    return words if isinstance(words, tuple) else (words,)


def plain(words: Words) -> str:
    """A sentence as text."""
    return "".join(map(_plain_piece, pieces(words)))


def _plain_piece(piece: Piece) -> str:
    if isinstance(piece, Tag) and piece.style == "badge":
        return f"({piece.words})"
    return piece if isinstance(piece, str) else "" if isinstance(piece, Bar | Values) else piece.words
