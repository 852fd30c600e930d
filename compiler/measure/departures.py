"""The first node of a graph whose value is not that of the stage before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.decompose.numbers import numbers, worst_verdict
from compiler.interpret.reference import copied

Values = Mapping[str, Any]


def departs(mine: Any, before: Any) -> bool:
    """Whether two tensors are not the same within the tolerance of their format."""
    if not isinstance(mine, Tensor) or not isinstance(before, Tensor):
        return False
    return worst_verdict(numbers([("", mine.detach().cpu())], [("", before.detach().cpu())])) == "differs"


def by_name(graph: GraphModule, mine: Values, before: Values) -> str:
    """The first node that has another value than its namesake in the stage before; "" where none has."""
    names = (node.name for node in graph.graph.nodes if node.name in mine and node.name in before)
    return next((name for name in names if departs(mine[name], before[name])), "")


def by_origin(graph: GraphModule, mine: Values, before: Values, origins: Callable[[Node], Iterable[str]]) -> str:
    """The first node that should hold the value of a node of the stage before, and holds another.

    A node is taken apart into several: the last of them that has its shape and format holds its value. `origins`
    gives the names of nodes of the stage before.
    """
    holders: dict[str, list[str]] = {}
    for node in graph.graph.nodes:
        for origin in origins(node):
            holders.setdefault(origin, []).append(node.name)
    for name, value in before.items():
        alike = [holder for holder in holders.get(name, ()) if _alike(mine.get(holder), value)]
        if alike and all(departs(mine[holder], value) for holder in alike):
            return alike[-1]
    return ""


def by_holder(mine: Values, before: Values, holders: Mapping[str, Sequence[str | None]]) -> str:
    """The first node that holds another value than the node of the stage before that it was traced from."""
    for name, value in before.items():
        places = holders.get(name, ())
        whole = value if isinstance(value, tuple | list) else (value,)
        for holder, part in zip(places, whole, strict=False):
            if holder is not None and _alike(mine.get(holder), part) and departs(mine[holder], part):
                return holder
    return ""


def _alike(mine: Any, value: Any) -> bool:
    both = isinstance(mine, Tensor) and isinstance(value, Tensor)
    return both and mine.shape == value.shape and mine.dtype == value.dtype


def watched(runner: Any, into: dict[str, Any]) -> Any:
    """An interpreter of a graph that keeps copies of its nodes' values in `into`."""
    run_node = runner.run_node

    def run(node: Node) -> Any:
        value = run_node(node)
        into[node.name] = tuple(map(_copied, value)) if isinstance(value, tuple | list) else _copied(value)
        return value

    runner.run_node = run
    return runner


def _copied(value: Any) -> Any:
    return copied(value) if isinstance(value, Tensor) else value


def outputs_of(graph: GraphModule) -> Iterator[str]:
    """The names of the nodes that a graph gives, "" where it gives none."""
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    given: Any = output.args[0]
    for value in given if isinstance(given, tuple | list) else (given,):
        yield value.name if isinstance(value, Node) else ""
