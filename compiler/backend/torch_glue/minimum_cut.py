"""The minimum cut of AOTAutograd's partitioner, in less time than networkx takes.

Most edges of its graph have infinite capacity: nodes that these reach from the source are on the source's side of every
cut, nodes from which they reach the sink on the sink's. Few nodes remain. Among all minimum cuts it is the one that
networkx returns: on the sink's side are only nodes from which the residual network reaches the sink.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from compiler.torch_api.patching import replace_attribute

Cut = tuple[float, tuple[set[Any], set[Any]]]
Capacities = list[dict[int, float]]
_SOURCE, _SINK = 0, 1


@contextmanager
def use_quick_cut() -> Iterator[None]:
    """Replace `networkx.minimum_cut` in the block, unless somebody else did."""
    import networkx  # most of a tenth of a second, that inference need not wait for

    def quick(found: Callable[..., Any]) -> Callable[..., Any]:
        return minimum_cut if found is networkx.algorithms.flow.minimum_cut else found

    with replace_attribute(networkx, "minimum_cut", quick):
        yield


def minimum_cut(graph: Any, source: Any, sink: Any) -> Cut:
    """The value of a minimum cut of a networkx digraph by "capacity", and each side's nodes.

    Raises networkx's NetworkXUnbounded where edges of infinite capacity lead from the source to the sink.
    """
    ahead: dict[Any, Mapping[Any, Any]] = graph.succ
    first = _reachable(source, lambda node: (to for to, edge in ahead[node].items() if edge["capacity"] == math.inf))
    back: dict[Any, Mapping[Any, Any]] = graph.pred
    last = _reachable(sink, lambda node: (to for to, edge in back[node].items() if edge["capacity"] == math.inf))
    if not first.isdisjoint(last):
        import networkx

        raise networkx.NetworkXUnbounded("Infinite capacity path, flow unbounded above.")
    number = {node: _SOURCE if node in first else _SINK if node in last else 0 for node in graph}
    between = [node for node in graph if node not in first and node not in last]
    number.update(zip(between, range(2, len(between) + 2), strict=True))
    left: Capacities = [{} for _ in range(len(between) + 2)]
    for node, edges in ahead.items():
        for to, edge in edges.items():
            a, b = number[node], number[to]
            if a != b and a != _SINK and b != _SOURCE:
                left[a][b] = left[a].get(b, 0) + edge["capacity"]
                left[b].setdefault(a, 0)
    value = _saturate(left)
    leading = _reachable(_SINK, lambda node: (a for a in left[node] if left[a][node] > 0))
    beyond = {node for node, its in number.items() if its in leading}
    return value, (set(graph) - beyond, beyond)


def _reachable(start: Any, following: Callable[[Any], Iterable[Any]]) -> set[Any]:
    reached, todo = {start}, [start]
    while todo:
        for node in following(todo.pop()):
            if node not in reached:
                reached.add(node)
                todo.append(node)
    return reached


def _saturate(left: Capacities) -> float:
    """Send the maximum flow along shortest paths (Dinic's algorithm), and return it.

    `left` is the remaining capacity of each edge.
    """
    total: float = 0
    while levels := _levels(left):
        ways = [[to for to, room in left[node].items() if room > 0] for node in range(len(left))]
        while path := _path(left, levels, ways):
            flow = min(left[a][b] for a, b in pairwise(path))
            for a, b in pairwise(path):
                left[a][b] -= flow
                left[b][a] += flow
            total += flow
    return total


def _levels(left: Capacities) -> Sequence[int]:
    """Each node's distance from the source in edges; empty where the sink can't be reached."""
    levels = [-1] * len(left)
    levels[_SOURCE] = 0
    todo = deque([_SOURCE])
    while todo:
        node = todo.popleft()
        for to, room in left[node].items():
            if room > 0 and levels[to] < 0:
                levels[to] = levels[node] + 1
                todo.append(to)
    return levels if levels[_SINK] > 0 else ()


def _path(left: Capacities, levels: Sequence[int], ways: list[list[int]]) -> list[int]:
    """A shortest path to the sink with capacity left; dead ends are removed from `ways`."""
    path = [_SOURCE]
    while path and path[-1] != _SINK:
        node = path[-1]
        while ways[node] and not (levels[ways[node][-1]] == levels[node] + 1 and left[node][ways[node][-1]] > 0):
            ways[node].pop()
        if ways[node]:
            path.append(ways[node][-1])
        else:
            path.pop()
            if path:
                ways[path[-1]].pop()
    return path
