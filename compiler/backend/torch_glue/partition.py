"""Partition a joint graph into forward and backward: save random numbers, merge equal nodes, find the minimum cut.

torch's own pass for equal nodes (torch._functorch.compile_utils.fx_graph_cse) imports Inductor's lowerings, to ask
which nodes mutate memory: most of a second of a first call. The rules here are the same.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from compiler.torch_api.aot import merges_equal_nodes, min_cut_partition
from compiler.torch_api.decomposition_tables import is_mutable, is_operator, is_random
from compiler.torch_api.fake_tensors import has_storage
from compiler.torch_api.fx import value_of
from compiler.torch_api.patching import replace_attribute
from compiler.torch_api.pytrees import tree_leaves

_NUMBERS = (operator.add.__module__, math.sqrt.__module__)
"""Modules of functions that compute with symbolic sizes, and take a result out of several."""

Cut = tuple[float, tuple[set[Any], set[Any]]]
Capacities = list[dict[int, float]]
_SOURCE, _SINK = 0, 1


def partition(joint: GraphModule, inputs: Any, **options: Any) -> Any:
    """Run torch's min-cut partitioner, and save random numbers even where all is recomputed."""
    for node in joint.graph.nodes:
        if is_random(node.target):
            for made in (node, *(user for user in node.users if user.target is operator.getitem)):
                made.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    joint.graph.eliminate_dead_code()
    if merges_equal_nodes():
        merge_equal_nodes(joint)
    with use_quick_cut():
        return min_cut_partition(joint, inputs, **options)


def merge_equal_nodes(module: GraphModule) -> None:
    """Replace later equal nodes by the first one.

    Left alone are random numbers, uninitialised memory, nodes on both sides of one that mutates memory or might,
    and what the graph returns: those are tensors of their own, whose memory the caller may change.
    """
    outputs = map(value_of, module.graph.output_node().all_input_nodes)
    returned = {storage for value in outputs for storage in _storages(value)}
    first: dict[Any, Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if not _is_pure(node.target):
            if not is_operator(node.target) or is_mutable(node.target):
                first.clear()
            continue
        if not returned.isdisjoint(_storages(value_of(node))):
            continue
        known = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if known is not node:
            node.replace_all_uses_with(known)
            module.graph.erase_node(node)


def _is_pure(target: Any) -> bool:
    if not is_operator(target):
        return getattr(target, "__module__", "") in _NUMBERS
    return not (is_random(target) or is_mutable(target) or "empty" in str(target))


def _storages(value: Any) -> Iterator[int]:
    """The storages of the tensors in a value."""
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor) and has_storage(tensor):
            yield tensor.untyped_storage()._cdata


@contextmanager
def use_quick_cut() -> Iterator[None]:
    """Replace `networkx.minimum_cut` in the block, unless somebody else did."""
    import networkx  # most of a tenth of a second, that inference need not wait for

    def quick(found: Callable[..., Any]) -> Callable[..., Any]:
        return minimum_cut if found is networkx.algorithms.flow.minimum_cut else found

    with replace_attribute(networkx, "minimum_cut", quick):
        yield


def minimum_cut(graph: Any, source: Any, sink: Any) -> Cut:
    """The value of a minimum cut of a networkx digraph by "capacity", and each side's nodes, faster than networkx.

    Most edges of the partitioner's graph have infinite capacity: nodes that these reach from the source are on the
    source's side of every cut, nodes from which they reach the sink on the sink's. Few nodes remain. Among all minimum
    cuts it is the one that networkx returns: on the sink's side are only nodes from which the residual network reaches
    the sink. Raises networkx's NetworkXUnbounded where edges of infinite capacity lead from the source to the sink.
    """

    def unbounded(edges: Mapping[Any, Mapping[Any, Any]], node: Any) -> Iterator[Any]:
        return (to for to, edge in edges[node].items() if edge["capacity"] == math.inf)

    first, last = _reachable(source, partial(unbounded, graph.succ)), _reachable(sink, partial(unbounded, graph.pred))
    if not first.isdisjoint(last):
        import networkx

        raise networkx.NetworkXUnbounded("Infinite capacity path, flow unbounded above.")
    between = [node for node in graph if node not in first and node not in last]
    number = dict.fromkeys(first, _SOURCE) | dict.fromkeys(last, _SINK)
    number |= {node: place for place, node in enumerate(between, 2)}
    left: Capacities = [{} for _ in range(len(between) + 2)]
    for node, to, capacity in graph.edges(data="capacity"):
        a, b = number[node], number[to]
        if a != b and a != _SINK and b != _SOURCE:
            left[a][b] = left[a].get(b, 0) + capacity
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
