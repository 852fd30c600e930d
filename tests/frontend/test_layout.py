"""The layered layout: invariants of every drawing, on graphs from hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page

LAYOUT = """async ([nodes, edges, options]) => {
    const { layout } = await import("/layout.js");
    const { x, y, routes, ...rest } = layout(nodes, edges, options);
    return { x: [...x], y: [...y], routes: routes.map((route) => [...route]), ...rest };
}"""
CROSSINGS = 'async ([tops, bottoms, loads]) => (await import("/layout_count.js")).countCrossings(tops, bottoms, loads)'
SIMPLEX = 'async (program) => [...(await import("/layout_simplex.js")).networkSimplex(program)]'
CLOSE = 1e-6

checks = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Graph:
    nodes: list[dict[str, float]]
    edges: list[tuple[int, int]]


@dataclass(frozen=True)
class Drawing:
    x: list[float]
    y: list[float]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float
    crossings: int


@st.composite
def graphs(draw: st.DrawFn, *, cyclic: bool = False) -> Graph:
    count = draw(st.integers(1, 24))
    sizes = st.tuples(st.integers(1, 120), st.integers(1, 60), st.floats(0, 1))
    nodes = [
        {"width": width, "height": height, "anchor": width * at}
        for width, height, at in draw(st.lists(sizes, min_size=count, max_size=count))
    ]
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = draw(st.lists(ends, max_size=3 * count))
    return Graph(nodes, pairs if cyclic else [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]])


def draw_graph(page: Page, graph: Graph, **options: Any) -> Drawing:
    drawn = page.evaluate(LAYOUT, [graph.nodes, graph.edges, options])
    routes = [list(zip(route[::2], route[1::2], strict=True)) for route in drawn.pop("routes")]
    return Drawing(routes=routes, **drawn)


def box(graph: Graph, drawing: Drawing, node: int) -> tuple[float, float, float, float]:
    """left, top, right, bottom"""
    size = graph.nodes[node]
    left = drawing.x[node] - size.get("anchor", size["width"] / 2)
    top = drawing.y[node] - size["height"] / 2
    return left, top, left + size["width"], top + size["height"]


@given(graph=graphs())
@checks
def test_every_edge_goes_down(modules: Page, graph: Graph) -> None:
    drawing = draw_graph(modules, graph)
    for (first, second), route in zip(graph.edges, drawing.routes, strict=True):
        below, above = box(graph, drawing, first)[3], box(graph, drawing, second)[1]
        assert below < above
        assert route[0] == pytest.approx((drawing.x[first], below))
        assert route[-1] == pytest.approx((drawing.x[second], above))
        assert all(before[1] < after[1] for before, after in pairwise(route))


@given(graph=graphs(cyclic=True))
@checks
def test_nodes_do_not_overlap_and_stay_inside(modules: Page, graph: Graph) -> None:
    drawing = draw_graph(modules, graph)
    boxes = [box(graph, drawing, node) for node in range(len(graph.nodes))]
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] + CLOSE or b[2] <= a[0] + CLOSE or a[3] <= b[1] + CLOSE or b[3] <= a[1] + CLOSE
    for left, top, right, bottom in boxes:
        assert -CLOSE <= left <= right <= drawing.width + CLOSE
        assert -CLOSE <= top <= bottom <= drawing.height + CLOSE


@given(graph=graphs())
@checks
def test_no_edge_runs_through_a_node(modules: Page, graph: Graph) -> None:
    drawing = draw_graph(modules, graph)
    for edge, route in zip(graph.edges, drawing.routes, strict=True):
        for node in set(range(len(graph.nodes))) - set(edge):
            left, top, right, bottom = box(graph, drawing, node)
            for (ax, ay), (bx, by) in pairwise(route):
                low, high = max(ay, top), min(by, bottom)
                if low >= high:
                    continue
                at = [ax + (bx - ax) * (y - ay) / (by - ay) for y in (low, high)]
                assert max(at) < left + CLOSE or min(at) > right - CLOSE


@given(graph=graphs(cyclic=True))
@checks
def test_the_same_graph_is_drawn_the_same(modules: Page, graph: Graph) -> None:
    assert draw_graph(modules, graph) == draw_graph(modules, graph)


@given(graph=graphs())
@checks
def test_reported_crossings_match_the_drawing(modules: Page, graph: Graph) -> None:
    graph = Graph(graph.nodes, list(dict.fromkeys(graph.edges)))
    drawing = draw_graph(modules, graph)
    seen = 0
    for (edge, route), (other, way) in combinations(zip(graph.edges, drawing.routes, strict=True), 2):
        if not set(edge) & set(other):
            seen += sum(cross(*one, *two) for one, two in product(pairwise(route), pairwise(way)))
    touching = sum(
        cross(*one, *two)
        for (edge, route), (other, way) in combinations(zip(graph.edges, drawing.routes, strict=True), 2)
        if set(edge) & set(other)
        for one, two in product(pairwise(route), pairwise(way))
    )
    assert seen <= drawing.crossings <= seen + touching


Point = tuple[float, float]


def cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether a-b and c-d cross inside both."""

    def side(p: Point, q: Point, r: Point) -> float:
        turn = (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])
        return 0 if abs(turn) < CLOSE else turn

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


@given(graph=graphs(cyclic=True))
@checks
def test_cycles_parallel_edges_and_loops_are_drawn(modules: Page, graph: Graph) -> None:
    drawing = draw_graph(modules, graph)
    for (first, second), route in zip(graph.edges, drawing.routes, strict=True):
        if first == second:
            assert route == []
            continue
        up = drawing.y[first] > drawing.y[second]
        assert route[0] == pytest.approx((drawing.x[first], box(graph, drawing, first)[1 if up else 3]))
        assert route[-1] == pytest.approx((drawing.x[second], box(graph, drawing, second)[3 if up else 1]))


@given(graph=graphs())
@checks
def test_border_nodes_are_first_and_last(modules: Page, graph: Graph) -> None:
    count = len(graph.nodes)
    nodes = [*graph.nodes, {"width": 0, "height": 0}, {"width": 0, "height": 0}]
    bordered = Graph(nodes, [*graph.edges, (count, 0), (count - 1, count + 1)])
    drawing = draw_graph(modules, bordered, top=[count], bottom=[count + 1])
    tops = [box(bordered, drawing, node)[1] for node in range(count)]
    bottoms = [box(bordered, drawing, node)[3] for node in range(count)]
    assert drawing.y[count] < min(tops)
    assert drawing.y[count + 1] > bottoms[count - 1]


def test_ports_move_the_ends_of_edges(modules: Page) -> None:
    graph = Graph([{"width": 100, "height": 20}, {"width": 200, "height": 20}], [(0, 1)])
    drawing = draw_graph(modules, graph, ports=[-30, 80])
    assert drawing.routes[0][0][0] == drawing.x[0] - 30
    assert drawing.routes[0][-1][0] == drawing.x[1] + 80
    assert drawing.routes[0][0][0] == drawing.routes[0][-1][0], "the boxes are placed so that the line is straight"


def test_a_long_edge_is_straight_between_its_ends(modules: Page) -> None:
    chain = [(node, node + 1) for node in range(9)]
    far = [(0, 9), (1, 8), (2, 7)]
    graph = Graph([{"width": 40, "height": 20}] * 10, [*chain, *far])
    for route in draw_graph(modules, graph).routes[-3:]:
        assert len({x for x, _ in route[1:-1]}) <= 1
        assert len(route) <= 4


def test_edges_of_one_node_share_their_path(modules: Page) -> None:
    """A node with many users far below gets one branching line, not a bundle of lines."""
    chain = [(node, node + 1) for node in range(9)]
    graph = Graph([{"width": 40, "height": 20}] * 10, [*chain, (0, 5), (0, 7), (0, 9)])
    routes = draw_graph(modules, graph).routes[-3:]
    assert len({route[1][0] if len(route) > 2 else route[0][0] for route in routes}) == 1


def test_empty_and_single_node_graphs_are_drawn(modules: Page) -> None:
    nothing = draw_graph(modules, Graph([], []))
    assert (nothing.x, nothing.width, nothing.height, nothing.crossings) == ([], 0, 0, 0)
    one = draw_graph(modules, Graph([{"width": 40, "height": 20}], []))
    assert (one.x, one.y, one.width, one.height) == ([20], [10], 40, 20)


def test_many_small_components_fill_a_page(modules: Page) -> None:
    drawing = draw_graph(modules, Graph([{"width": 60, "height": 30}] * 100, []))
    assert 0.3 < drawing.width / drawing.height < 4


places = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4)), max_size=30)


@given(lines=places)
@checks
def test_crossing_count_is_exact(modules: Page, lines: list[tuple[int, int, int]]) -> None:
    expected = sum(a[2] * b[2] for a, b in combinations(lines, 2) if (a[0] - b[0]) * (a[1] - b[1]) < 0)
    columns = [[line[column] for line in lines] for column in range(3)]
    assert modules.evaluate(CROSSINGS, columns) == expected


@given(graph=graphs(), weights=st.lists(st.integers(1, 9), min_size=80, max_size=80))
@checks
def test_network_simplex_finds_the_shortest_lengths(modules: Page, graph: Graph, weights: list[int]) -> None:
    """Compared on small graphs with all assignments that could be better."""
    count = min(4, len(graph.nodes))
    spine = [(node, node + 1) for node in range(0, count - 1, 2)] + [(node - 2, node) for node in range(2, count, 2)]
    edges = list(dict.fromkeys([*spine, *(edge for edge in graph.edges if max(edge) < count)]))
    lengths = [1 + weight % 2 for weight in weights[: len(edges)]]
    program = {"count": count, "from": [a for a, _ in edges], "to": [b for _, b in edges], "length": lengths}
    found = modules.evaluate(SIMPLEX, {**program, "weight": weights[: len(edges)]})

    def cost(values: tuple[int, ...]) -> float:
        spans = [values[b] - values[a] for a, b in edges]
        if any(span < length for span, length in zip(spans, lengths, strict=True)):
            return float("inf")
        return sum(weight * span for weight, span in zip(weights, spans, strict=False))

    assert cost(tuple(found)) == min(map(cost, product(range(2 * count - 1), repeat=count)))
