"""Find the first node of a graph whose value differs from the stage before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.numerics.policy.judge import judge

Values = Mapping[str, Any]


def departs(mine: Any, before: Any) -> bool:
    """Whether two values are tensors that differ by the policy of comparison."""
    return isinstance(mine, Tensor) and isinstance(before, Tensor) and judge("", mine, before).verdict == "differs"


def by_name(graph: GraphModule, mine: Values, before: Values) -> str:
    """The first node whose value differs from the node of the same name in the stage before; "" if there is none."""
    names = (node.name for node in graph.graph.nodes if node.name in mine and node.name in before)
    return next((name for name in names if departs(mine[name], before[name])), "")


def by_origin(graph: GraphModule, mine: Values, before: Values, origins: Callable[[Node], Iterable[str]]) -> str:
    """The first node that should have the value of a node of the stage before and has another.

    A node is decomposed into several: the last of them with its shape and dtype holds its value. `origins` returns the
    names of the nodes of the stage before that a node comes from.
    """
    holders: dict[str, list[str]] = {}
    for node in graph.graph.nodes:
        for origin in origins(node):
            holders.setdefault(origin, []).append(node.name)
    for name, value in before.items():
        alike = [holder for holder in holders.get(name, ()) if _same_type(mine.get(holder), value)]
        if alike and all(departs(mine[holder], value) for holder in alike):
            return alike[-1]
    return ""


def by_holder(mine: Values, before: Values, holders: Mapping[str, Sequence[str | None]]) -> str:
    """The first node whose value differs from the node of the stage before that it was traced from."""
    for name, value in before.items():
        places = holders.get(name, ())
        whole = value if isinstance(value, tuple | list) else (value,)
        for holder, part in zip(places, whole, strict=False):
            if holder is not None and _same_type(mine.get(holder), part) and departs(mine[holder], part):
                return holder
    return ""


def _same_type(mine: Any, value: Any) -> bool:
    both = isinstance(mine, Tensor) and isinstance(value, Tensor)
    return both and mine.shape == value.shape and mine.dtype == value.dtype


def outputs_of(graph: GraphModule) -> Iterator[str]:
    """Names of the nodes that a graph returns, "" for an output that is no node."""
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    given: Any = output.args[0]
    for value in given if isinstance(given, tuple | list) else (given,):
        yield value.name if isinstance(value, Node) else ""
