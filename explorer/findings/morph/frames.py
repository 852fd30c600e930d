"""Pictures between two states: each node moves from its origins' places to its own; and any picture as SVG.

Position 0 is the first state, 1 the second, 1.5 is halfway from the second to the third.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from textwrap import wrap

from compiler.record.plain_text import pluralize, size_text
from explorer.findings.morph.layout import NAMELESS, Box, Picture, Route, short
from explorer.findings.morph.state import TITLES, Counts, Node, State

Palette = Mapping[str, tuple[str, str, str]]
"""Fill, border and text colour of each look; `page` has the background, edges and text, `mark` the ring."""

LIGHT: Palette = {
    "page": ("#ffffff", "#8d97a3", "#1c2128"),
    "mark": ("#ffffff", "#14181d", "#14181d"),
    "both": ("#e9ecf1", "#5f6873", "#1c2128"),
    "forward": ("#dcecf8", "#0072b2", "#12324a"),
    "backward": ("#fce5d8", "#c2540a", "#50240a"),
    "saved": ("#f3e3f0", "#9a4c86", "#55244a"),
    "leaf": ("#dff2ea", "#00805d", "#0b3d2e"),
    "stop": ("#ffffff", "#5f6873", "#1c2128"),
    "forward light": ("#ffffff", "#7fb2d3", "#24506f"),
    "backward light": ("#ffffff", "#dfa27f", "#7a3a12"),
    "both light": ("#ffffff", "#9aa3ad", "#3f4852"),
    "forward kernel": ("#0069a5", "#004a75", "#ffffff"),
    "backward kernel": ("#b64e09", "#833806", "#ffffff"),
}
DARK: Palette = {
    "page": ("#16191e", "#6a7480", "#e3e7ec"),
    "mark": ("#16191e", "#ffffff", "#ffffff"),
    "both": ("#2d343d", "#98a2ae", "#e3e7ec"),
    "forward": ("#17354d", "#56b4e9", "#d6ecfb"),
    "backward": ("#4a2c1a", "#ee8b4a", "#fde5d6"),
    "saved": ("#402743", "#db92ba", "#f8dff0"),
    "leaf": ("#163c31", "#22b98b", "#cdf3e6"),
    "stop": ("#16191e", "#98a2ae", "#e3e7ec"),
    "forward light": ("#16191e", "#3f7597", "#9fcbe8"),
    "backward light": ("#16191e", "#8f5a38", "#f0b893"),
    "both light": ("#16191e", "#5d6772", "#b7c0ca"),
    "forward kernel": ("#2f86c0", "#8fd0f7", "#ffffff"),
    "backward kernel": ("#c0642a", "#f7b88e", "#ffffff"),
}
PALETTES = {"light": LIGHT, "dark": DARK}
WIDTH, HEIGHT, SIDE, HEAD, FOOT, MARGIN = 1280.0, 720.0, 270.0, 64.0, 92.0, 28.0
CLOSEST = 1.4


@dataclass(frozen=True, slots=True)
class Move:
    """A node of one state becomes a node of the next; `source` or `target` is "" for a node that comes or goes.

    If a node splits or nodes merge, one of the moves leads: it carries the label, and edges follow it.
    """

    source: str
    target: str
    leads_source: bool
    leads_target: bool


def moves_to(after: State) -> tuple[Move, ...]:
    """All moves from the state before to this one. Nodes that come or go are last."""
    sources: set[str] = set()
    found, new = [], []
    for node in after.nodes:
        for number, origin in enumerate(node.origins):
            found.append(Move(origin, node.id, origin not in sources, number == 0))
            sources.add(origin)
        if not node.origins:
            new.append(Move("", node.id, False, True))
    return (*found, *new, *(Move(name, "", True, False) for name in after.gone))


def look_of(node: Node) -> str:
    """The palette's name for a node."""
    if node.kind in ("saved", "leaf", "stop"):
        return node.kind
    return node.lane + {"view": " light", "scalar": " light", "input": " light", "kernel": " kernel"}.get(node.kind, "")


@dataclass(frozen=True, slots=True)
class _Shape:
    box: Box
    colours: tuple[str, str, str]
    alpha: float
    labels: tuple[tuple[Node, float], ...]


class Film:
    """Pictures of all states, and those between them."""

    def __init__(self, title: str, pictures: Sequence[Picture]) -> None:
        self.title, self.pictures = title, tuple(pictures)
        self.moves = tuple(moves_to(picture.state) for picture in self.pictures[1:])
        self.nodes = tuple({node.id: node for node in each.state.nodes} for each in self.pictures)

    def svg(self, position: float, theme: str = "light") -> str:
        """The picture at a position as an SVG of 1280 by 720 points, for a slide. Raises ValueError for a bad theme."""
        if theme not in PALETTES:
            raise ValueError(f"theme is 'light' or 'dark', not {theme!r}")
        number = min(int(position), len(self.pictures) - 1)
        share = _ease(position - number) if number < len(self.pictures) - 1 else 0.0
        palette = PALETTES[theme]
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{HEIGHT:g}" '
            f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" font-family="Arial, Helvetica, sans-serif">',
            f'<rect width="{WIDTH:g}" height="{HEIGHT:g}" fill="{palette["page"][0]}"/>',
            *self._graph(number, share, palette),
            *self._words(round(position), palette),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def box_at(self, position: float, move: Move) -> Box:
        """Where a node is on its way between two states."""
        number = int(position)
        return self._box(number, move, _ease(position - number))

    # The graph

    def _graph(self, number: int, share: float, palette: Palette) -> Iterator[str]:
        first, last = self.pictures[number], self.pictures[min(number + 1, len(self.pictures) - 1)]
        width, height = (_interpolate(getattr(first, side), getattr(last, side), share) for side in ("width", "height"))
        room_x, room_y = WIDTH - SIDE - 2 * MARGIN, HEIGHT - HEAD - FOOT
        scale = min(CLOSEST, room_x / max(width, 1), room_y / max(height, 1))
        x, y = MARGIN + room_x / 2, HEAD + room_y / 2
        yield f'<g transform="translate({x:.1f} {y:.1f}) scale({scale:.4f})">'
        shapes = [*self._shapes(number, share, palette)] if share else [*self._still_shapes(number, palette)]
        yield from self._cut_line(first, last, share, palette)
        for picture, places, alpha in self._edge_sets(number, share):
            for route in picture.routes if alpha > 0 else ():
                yield _edge_svg(route, picture.boxes, places, palette["page"][1], alpha)
        for shape in shapes:
            yield from _shape_svg(shape, dense=first.dense)
        yield "</g>"

    def _still_shapes(self, number: int, palette: Palette) -> Iterator[_Shape]:
        picture = self.pictures[number]
        for node in picture.state.nodes:
            yield _Shape(picture.boxes[node.id], palette[look_of(node)], 1.0, ((node, 1.0),))

    def _shapes(self, number: int, share: float, palette: Palette) -> Iterator[_Shape]:
        before, after = self.nodes[number], self.nodes[number + 1]
        for move in self.moves[number]:
            source, target = before.get(move.source), after.get(move.target)
            labels = []
            same = source is not None and target is not None and source.title == target.title
            if source is not None and move.leads_source and not (same and move.leads_target):
                labels.append((source, max(0.0, 1 - 2.3 * share)))
            if target is not None and move.leads_target:
                labels.append((target, 1.0 if same else min(1.0, max(0.0, 2.3 * share - 0.95))))
            looks = [palette[look_of(node)] for node in (source, target) if node is not None]
            colours = (
                _mix_colors(looks[0][0], looks[-1][0], share),
                _mix_colors(looks[0][1], looks[-1][1], share),
                looks[0][2] if share < 0.5 else looks[-1][2],
            )
            alpha = 1.0 if source and target else share if target else 1 - share
            yield _Shape(self._box(number, move, share), colours, alpha, tuple(labels))

    def _box(self, number: int, move: Move, share: float) -> Box:
        """The box of a move; what comes grows, what goes shrinks."""
        first = self.pictures[number].boxes.get(move.source)
        last = self.pictures[number + 1].boxes.get(move.target)
        if first is None:
            first = Box(last.x, last.y, 0, 0) if last else Box(0, 0, 0, 0)
        if last is None:
            last = Box(first.x, first.y, 0, 0)
        return Box(*(_interpolate(getattr(first, side), getattr(last, side), share) for side in ("x", "y", "w", "h")))

    def _edge_sets(self, number: int, share: float) -> Iterator[tuple[Picture, Mapping[str, Box], float]]:
        """The pictures whose edges are seen, with the boxes that these follow and how strongly they are seen."""
        if not share:
            yield self.pictures[number], self.pictures[number].boxes, 1.0
            return
        places = {move: self._box(number, move, share) for move in self.moves[number]}
        old = {move.source: box for move, box in places.items() if move.leads_source}
        new = {move.target: box for move, box in places.items() if move.leads_target}
        yield self.pictures[number], old, max(0.0, 1 - 1.7 * share)
        yield self.pictures[number + 1], new, max(0.0, 1.7 * share - 0.7)

    def _cut_line(self, first: Picture, last: Picture, share: float, palette: Palette) -> Iterator[str]:
        cuts = [cut for cut in (first.cut, last.cut) if cut is not None]
        if not cuts:
            return
        alpha = 1.0 if len(cuts) > 1 else share if last.cut is not None else 1 - share
        x, half = _interpolate(cuts[0], cuts[-1], share), _interpolate(first.height, last.height, share) / 2 + 12
        yield (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{-half:.1f}" y2="{half:.1f}" stroke="{palette["saved"][1]}" '
            f'stroke-width="1.5" stroke-dasharray="6 5" opacity="{alpha:.2f}"/>'
        )

    # The words

    def _words(self, number: int, palette: Palette) -> Iterator[str]:
        state, colour = self.pictures[number].state, palette["page"][2]
        faint = palette["both light"][2]
        yield _text(MARGIN, 40, f"{self.title}: {state.title.lower()}", 22, colour, bold=True)
        for line, words in enumerate(wrap(state.words, 125)[:2]):
            yield _text(MARGIN, HEIGHT - FOOT + 26 + 22 * line, words, 15, colour)
        x = WIDTH - SIDE
        for index, picture in enumerate(self.pictures):
            y, now = HEAD + 34 + 106 * index, index == number
            if now:
                size = f'width="{SIDE - 8}" height="104" rx="8"'
                yield f'<rect x="{x - 14}" y="{y - 24}" {size} fill="{palette["both"][0]}"/>'
            yield _text(x, y, TITLES[picture.state.key], 16, colour if now else faint, bold=True)
            for line, count in enumerate(counts_of(picture.state.counts)):
                yield _text(x, y + 20 + 17 * line, count.words, 13, colour if now else faint)


@dataclass(frozen=True, slots=True)
class Count:
    """A number of a state: `what` is "nodes", "launches", "moved" or "saved"; a lower bound says so in its words."""

    what: str
    words: str
    value: int


def counts_of(counts: Counts) -> tuple[Count, ...]:
    """Nodes, launches and bytes of a state, as far as they are known."""
    ops = pluralize(counts.ops, "kernel" if counts.exact else "op")
    launches = pluralize(counts.launches, "launch", "launches")
    alone = "" if counts.exact else ", op by op"
    found = (
        Count("nodes", f"{ops}, {pluralize(counts.data, 'other node')}", counts.ops + counts.data),
        Count("launches", launches if counts.exact else f"at least {launches}{alone}", counts.launches),
        Count("moved", f"{size_text(counts.moved or 0)} moved{alone}", counts.moved or 0),
        Count("saved", f"{size_text(counts.saved or 0)} saved for backward", counts.saved or 0),
    )
    unknown = {"moved": counts.moved is None, "saved": counts.saved is None}
    return tuple(count for count in found if not unknown.get(count.what))


def _ease(share: float) -> float:
    return share * share * (3 - 2 * share)


def _interpolate(first: float, last: float, share: float) -> float:
    return first + (last - first) * share


def _mix_colors(first: str, last: str, share: float) -> str:
    pairs = ((int(first[at : at + 2], 16), int(last[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(_interpolate(a, b, share)):02x}" for a, b in pairs)


def _text(x: float, y: float, words: str, size: float, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}"{weight}>{escape(words)}</text>'


def _shape_svg(shape: _Shape, *, dense: bool) -> Iterator[str]:
    box, (fill, edge, ink) = shape.box, shape.colours
    radius = min(box.h / 2, 7)
    yield (
        f'<rect x="{box.x - box.w / 2:.1f}" y="{box.y - box.h / 2:.1f}" width="{box.w:.1f}" height="{box.h:.1f}" '
        f'rx="{radius:.1f}" fill="{fill}" stroke="{edge}" stroke-width="1.2" opacity="{shape.alpha:.2f}"/>'
    )
    for node, alpha in shape.labels:
        if alpha > 0:
            yield from _label_svg(node, box, ink, alpha * shape.alpha, dense=dense)


def _label_svg(node: Node, box: Box, colour: str, alpha: float, *, dense: bool) -> Iterator[str]:
    """The title of a node, and its detail; narrowed to the box, because the reader's font may be wide."""
    heavy = node.kind in ("op", "kernel", "extern")
    if dense and node.kind in NAMELESS:
        return
    detail = short(node.detail, "detail") if heavy and not dense else ""
    lines = [(short(node.title, "title"), 12.5 if heavy else 10.0, -2.5 if detail else 4.2 if heavy else 3.4)]
    lines += [(detail, 10.0, 11.0)] if detail else []
    for number, (words, size, down) in enumerate(lines):
        room = max(box.w - 8, 1)
        narrow = f' textLength="{room:.1f}" lengthAdjust="spacingAndGlyphs"' if len(words) * size * 0.66 > room else ""
        weight = ' font-weight="600"' if heavy and not number else ""
        yield (
            f'<text x="{box.x:.1f}" y="{box.y + down:.1f}" font-size="{size:g}"{weight} text-anchor="middle" '
            f'fill="{colour}" opacity="{alpha:.2f}"{narrow}>{escape(words)}</text>'
        )


def _edge_svg(route: Route, home: Mapping[str, Box], places: Mapping[str, Box], colour: str, alpha: float) -> str:
    """An edge, moved as its ends have moved from their home."""
    shifts = []
    for name in route.edge:
        at, now = home[name], places.get(name, home[name])
        shifts.append((now.x - at.x, now.y - at.y))
    last = len(route.points) - 1
    points = [
        (x + _interpolate(shifts[0][0], shifts[1][0], i / last), y + _interpolate(shifts[0][1], shifts[1][1], i / last))
        for i, (x, y) in enumerate(route.points)
    ]
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        bend = (
            f"{(x + to_x) / 2:.1f} {y:.1f} {(x + to_x) / 2:.1f} {to_y:.1f}"
            if route.sideways
            else f"{x:.1f} {(y + to_y) / 2:.1f} {to_x:.1f} {(y + to_y) / 2:.1f}"
        )
        path.append(f"C{bend} {to_x:.1f} {to_y:.1f}")
    strength = alpha * (0.45 if route.sideways else 0.8)
    return f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.2" opacity="{strength:.2f}"/>'
