"""Modules of the nodes of a graph that was built before it could be recorded, as far as its leaves tell.

A node that takes a parameter belongs to the module whose parameter it is. What ran between two such nodes belongs to
what the modules of both are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from compiler.autograd.eager_graph import EagerGraph, GraphNode


def guessed_places(graph: EagerGraph) -> dict[str, dict[str, Any]]:
    """`module` by the name of a node, where it can be told, marked as `inherited` where it is that of neighbours."""
    leaves = {node.name for node in graph.nodes if node.kind == "accumulate"}
    own = {node.name: _of_parameters(node, leaves) for node in graph.nodes}
    compute = sorted((node for node in graph.nodes if node.number is not None), key=lambda node: node.number or 0)
    before = _nearest([own[node.name] for node in compute])
    after = _nearest([own[node.name] for node in reversed(compute)])[::-1]
    places: dict[str, dict[str, Any]] = {}
    for node, first, last in zip(compute, before, after, strict=True):
        path = own[node.name] or _common(first, last)
        if path:
            places[node.name] = {"module": path, "inherited": not own[node.name]}
    return places | {name: {"module": _owner(name)} for name in leaves if _owner(name)}


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _of_parameters(node: GraphNode, leaves: set[str]) -> str:
    """The module whose parameters a node takes, "" where it takes none."""
    targets = [target[0] for target in node.gives if target is not None]
    owners = [_owner(name) for name in targets if name in leaves]
    return next((owner for owner in owners if owner), "")


def _nearest(paths: Sequence[str]) -> list[str]:
    """For each place, the last path up to it."""
    found, last = [], ""
    for path in paths:
        last = path or last
        found.append(last)
    return found


def _common(first: str, second: str) -> str:
    pairs = zip(first.split("."), second.split("."), strict=False)
    return ".".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
