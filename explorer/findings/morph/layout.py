"""Where the nodes of a state are: forward runs down on the left, backward up on the right, saved values between them.

Each half is a layered drawing: a node is below all of its inputs. Rows are ordered by the mean place of their
neighbours, which begins with the place that a node's origins had in the state before, so that little moves. Long edges
pass through rows in slots of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from explorer.findings.morph.state import Edge, Node, State

CHARACTER = {"title": 7.8, "detail": 5.8}
"""Mean width of a character, in points, at the sizes of titles and details."""
NODE_GAP, SLOT = 14.0, 12.0
ROW_GAP, DENSE_GAP = 20.0, 11.0
MANY = 70
"""Nodes of a state from which on all states are dense: without details, and with views and inputs as dots."""
LANE_GAP, CUT_ROOM = 56.0, 44.0
NAMELESS = frozenset({"view", "scalar", "input", "stop"})
"""Kinds that are dots in a dense picture."""
SWEEPS = 6
LONGEST = {"title": 26, "detail": 30}
STRETCH = 2.5


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its middle and size."""

    x: float
    y: float
    w: float
    h: float


@dataclass(frozen=True, slots=True)
class Route:
    """An edge as points from one node's border to another's; `sideways` if it leaves to the side."""

    edge: Edge
    points: tuple[tuple[float, float], ...]
    sideways: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A state with places around (0, 0). `cut` is where the vertical line of the cut is, None if there is no cut.

    In a dense picture nodes show no details, and small ones no names.
    """

    state: State
    boxes: Mapping[str, Box]
    routes: tuple[Route, ...]
    width: float
    height: float
    cut: float | None = None
    dense: bool = False


def pictures_of(states: Sequence[State]) -> tuple[Picture, ...]:
    """Lay out each state, near to the one before it."""
    dense = max(len(state.nodes) for state in states) > MANY
    made: list[Picture] = []
    for state in states:
        made.append(place(state, made[-1].boxes if made else {}, dense=dense))
    return tuple(made)


def place(state: State, before: Mapping[str, Box], *, dense: bool = False) -> Picture:
    """Lay out a state. `before` has the boxes of its nodes' origins."""
    sizes = {node.id: _size(node, dense) for node in state.nodes}
    seeds = {node.id: _mean([before[name].x for name in node.origins if name in before], 0.0) for node in state.nodes}
    on_cut = [node for node in state.nodes if node.kind == "saved"]
    left = [node for node in state.nodes if node.kind != "saved" and node.lane != "backward"]
    right = [node for node in state.nodes if node.kind != "saved" and node.lane == "backward"]
    lanes = [
        _Lane(nodes, state.edges, seeds, sizes, DENSE_GAP if dense else ROW_GAP).arrange()
        for nodes in (left, right)
        if nodes
    ]
    height = max(lane.height for lane in lanes)
    gap = 2 * CUT_ROOM + max((sizes[node.id][0] for node in on_cut), default=0.0) if on_cut else LANE_GAP
    width = sum(lane.width for lane in lanes) + gap * (len(lanes) - 1)
    boxes: dict[str, Box] = {}
    slots: dict[Edge, list[tuple[float, float]]] = {}
    x = -width / 2
    for lane in lanes:
        upward = lane.nodes[0].lane != "forward"
        boxes |= lane.boxes(x + lane.width / 2, height, upward)
        slots |= lane.slots(x + lane.width / 2, height, upward)
        x += lane.width + gap
    cut = -width / 2 + lanes[0].width + gap / 2 if len(lanes) > 1 and on_cut else None
    boxes |= _on_cut(on_cut, sizes, state.edges, boxes, cut or 0.0)
    lane_of = {node.id: "saved" if node.kind == "saved" else node.lane for node in state.nodes}
    routes = tuple(_route(edge, boxes, slots.get(edge, []), lane_of) for edge in state.edges)
    low, high = min(box.y - box.h / 2 for box in boxes.values()), max(box.y + box.h / 2 for box in boxes.values())
    return Picture(state, boxes, routes, width, 2 * max(-low, high), cut, dense)


def short(text: str, part: str) -> str:
    """A text without its middle, if it is longer than a node has room for."""
    most = LONGEST[part]
    return text if len(text) <= most else f"{text[: most - most // 3 - 1]}…{text[-(most // 3) :]}"


def _size(node: Node, dense: bool) -> tuple[float, float]:
    """Width and height of a node."""
    if dense and node.kind in NAMELESS:
        return 12.0, 12.0
    title = CHARACTER["title"] * len(short(node.title, "title"))
    detail = CHARACTER["detail"] * len(short(node.detail, "detail"))
    if node.kind in ("op", "kernel", "extern"):
        return max(title, 0 if dense else detail, 30) + 18, 36.0 if node.detail and not dense else 22.0
    return CHARACTER["detail"] * len(short(node.title, "title")) + 16, 18.0


@dataclass(slots=True)
class _Slot:
    """A place in a row: a node, or a long edge that passes through."""

    width: float
    height: float
    x: float
    name: str = ""
    up: list[_Slot] = field(default_factory=list, repr=False)
    down: list[_Slot] = field(default_factory=list, repr=False)


class _Lane:
    """The layered drawing of one half."""

    def __init__(
        self,
        nodes: Sequence[Node],
        edges: Iterable[Edge],
        seeds: Mapping[str, float],
        sizes: Mapping[str, tuple[float, float]],
        gap: float,
    ) -> None:
        self.nodes, self.gap = nodes, gap
        place = {node.id: number for number, node in enumerate(nodes)}
        self.edges = [edge for edge in edges if edge[0] in place and edge[1] in place]
        self.forward = [edge if place[edge[0]] < place[edge[1]] else edge[::-1] for edge in self.edges]
        self.slot_of = {node.id: _Slot(*sizes[node.id], seeds[node.id], node.id) for node in nodes}
        self.passing: dict[Edge, list[_Slot]] = {}
        self.rows = self._rows()
        self.height = self.width = 0.0

    def _rows(self) -> list[list[_Slot]]:
        ranks = self._ranks()
        rows: list[list[_Slot]] = [[] for _ in range(max(ranks.values()) + 1)]
        for name, slot in self.slot_of.items():
            rows[ranks[name]].append(slot)
        for edge, (source, target) in zip(self.edges, self.forward, strict=True):
            first, last = self.slot_of[source], self.slot_of[target]
            chain = [_Slot(SLOT, 0.0, (first.x + last.x) / 2) for _ in range(ranks[source] + 1, ranks[target])]
            for row, slot in zip(rows[ranks[source] + 1 : ranks[target]], chain, strict=True):
                row.append(slot)
            for above, below in zip([first, *chain], [*chain, last], strict=True):
                above.down.append(below)
                below.up.append(above)
            self.passing[edge] = chain
        return rows

    def _ranks(self) -> dict[str, int]:
        """Row of each node: one below its lowest input. Nodes without inputs are in the row above their first user."""
        sources, users = defaultdict(list), defaultdict(list)
        for source, target in self.forward:
            sources[target].append(source)
            users[source].append(target)
        ranks: dict[str, int] = {}
        for node in self.nodes:
            ranks[node.id] = max((ranks[source] + 1 for source in sources[node.id]), default=0)
        for node in reversed(self.nodes):
            if not sources[node.id] and users[node.id]:
                ranks[node.id] = min(ranks[user] for user in users[node.id]) - 1
        return ranks

    def arrange(self) -> _Lane:
        """Order the rows, and place their slots so that edges are short and straight."""
        for row in self.rows:
            row.sort(key=lambda slot: slot.x)
        for number in range(2 * SWEEPS):
            down = number % 2 == 0
            for row in self.rows if down else reversed(self.rows):
                wanted = [_mean([other.x for other in (slot.up if down else slot.down)], slot.x) for slot in row]
                if number < SWEEPS:
                    order = sorted(range(len(row)), key=wanted.__getitem__)
                    row[:], wanted = [row[index] for index in order], [wanted[index] for index in order]
                _spread(row, wanted)
        for row in self.rows:
            _spread(row, [_mean([other.x for other in (*slot.up, *slot.down)], slot.x) for slot in row])
        left = min(slot.x - slot.width / 2 for row in self.rows for slot in row)
        right = max(slot.x + slot.width / 2 for row in self.rows for slot in row)
        for row in self.rows:
            for slot in row:
                slot.x -= (left + right) / 2
        self.width = right - left
        self.height = self._height(self.gap)
        return self

    def _height(self, gap: float) -> float:
        return sum(self._row_height(row) for row in self.rows) + gap * (len(self.rows) - 1)

    def _row_height(self, row: Sequence[_Slot]) -> float:
        return max(slot.height for slot in row)

    def _tops(self, height: float) -> list[float]:
        """Middle of each row, from the first at the top. A short lane is stretched, so that both halves are alike."""
        spare = (height - self.height) / max(len(self.rows) - 1, 1)
        gap = min(self.gap + spare, STRETCH * self.gap)
        y = -self._height(gap) / 2
        middles = []
        for row in self.rows:
            tall = self._row_height(row)
            middles.append(y + tall / 2)
            y += tall + gap
        return middles

    def boxes(self, x: float, height: float, upward: bool) -> dict[str, Box]:
        """The boxes of the nodes, with the lane's middle at `x`."""
        sign = -1 if upward else 1
        return {
            slot.name: Box(x + slot.x, sign * y, slot.width, slot.height)
            for row, y in zip(self.rows, self._tops(height), strict=True)
            for slot in row
            if slot.name
        }

    def slots(self, x: float, height: float, upward: bool) -> dict[Edge, list[tuple[float, float]]]:
        """The points that long edges pass through."""
        sign = -1 if upward else 1
        middle = {id(slot): y for row, y in zip(self.rows, self._tops(height), strict=True) for slot in row}
        return {
            edge: [(x + slot.x, sign * middle[id(slot)]) for slot in (chain if edge in self._kept else chain[::-1])]
            for edge, chain in self.passing.items()
        }

    @property
    def _kept(self) -> set[Edge]:
        return set(self.forward)


def _spread(row: Sequence[_Slot], wanted: Sequence[float]) -> None:
    """Place the slots of a row in order, as near to the wanted places as their widths allow (least squares)."""
    offsets, edge = [], 0.0
    for slot in row:
        offsets.append(edge + slot.width / 2)
        edge += slot.width + NODE_GAP
    blocks: list[tuple[float, float, int]] = []  # sum of weighted places, weight, slots
    for slot, place, offset in zip(row, wanted, offsets, strict=True):
        weight = 1.0 if slot.name else 3.0
        total, heavy, count = weight * (place - offset), weight, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / heavy:
            more, weight, slots = blocks.pop()
            total, heavy, count = total + more, heavy + weight, count + slots
        blocks.append((total, heavy, count))
    starts = [total / heavy for total, heavy, count in blocks for _ in range(count)]
    for slot, start, offset in zip(row, starts, offsets, strict=True):
        slot.x = start + offset


def _on_cut(
    nodes: Sequence[Node],
    sizes: Mapping[str, tuple[float, float]],
    edges: Iterable[Edge],
    boxes: Mapping[str, Box],
    x: float,
) -> dict[str, Box]:
    """Boxes of saved values: on the line of the cut, each at the height of its neighbours as far as there is room."""
    beside: dict[str, list[float]] = defaultdict(list)
    for source, target in edges:
        for name, other in ((source, target), (target, source)):
            if other in boxes:
                beside[name].append(boxes[other].y)
    wanted = sorted(((_mean(beside[node.id], 0.0), node) for node in nodes), key=lambda pair: pair[0])
    row = [_Slot(sizes[node.id][1], 0.0, 0.0, node.id) for _, node in wanted]
    _spread(row, [y for y, _ in wanted])
    return {node.id: Box(x, slot.x, *sizes[node.id]) for (_, node), slot in zip(wanted, row, strict=True)}


def _route(
    edge: Edge, boxes: Mapping[str, Box], slots: Sequence[tuple[float, float]], lane_of: Mapping[str, str]
) -> Route:
    first, last = boxes[edge[0]], boxes[edge[1]]
    if lane_of[edge[0]] == lane_of[edge[1]]:
        sign = 1 if last.y > first.y else -1
        begin, end = (first.x, first.y + sign * first.h / 2), (last.x, last.y - sign * last.h / 2)
        return Route(edge, tuple(_straighten([begin, *slots, end])))
    sign = 1 if last.x > first.x else -1
    return Route(edge, ((first.x + sign * first.w / 2, first.y), (last.x - sign * last.w / 2, last.y)), sideways=True)


def _straighten(points: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    """The points without those that a line between the points kept passes nearby (Douglas and Peucker, 1973)."""
    todo = [(0, len(points) - 1)]
    kept = {0, len(points) - 1}
    while todo:
        first, last = todo.pop()
        (x, y), (to_x, to_y) = points[first], points[last]
        slope = (to_x - x) / ((to_y - y) or 1.0)
        away = {at: abs(points[at][0] - x - slope * (points[at][1] - y)) for at in range(first + 1, last)}
        far = max(away, key=away.__getitem__, default=first)
        if away.get(far, 0.0) > NODE_GAP:
            kept.add(far)
            todo += [(first, far), (far, last)]
    return [points[at] for at in sorted(kept)]


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
