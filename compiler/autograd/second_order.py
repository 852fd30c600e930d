"""Backward passes that are themselves recorded (`create_graph=True`): which node's derivative made which new node.

Such a pass builds a graph of its own, to be differentiated again: gradient penalties, Hessians, meta-learning. While it
runs, hooks on the first graph's nodes note the numbers of the nodes that each of them makes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from compiler.torch_api import autograd_nodes
from compiler.torch_api.pytrees import tree_leaves

_CREATE_GRAPH = {torch.autograd.grad: 4, torch.Tensor.backward: 3}
"""Functions that run a backward pass, and the place of `create_graph` among their arguments."""


class SecondOrder:
    """Maps nodes made by such a pass to the node whose derivative they are part of."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, Any]] = []
        self._firsts: list[int] = []

    @contextmanager
    def watch(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Watch `function` if it is a backward pass with `create_graph=True`."""
        with ExitStack() as stack:
            if _creates_graph(function, args, kwargs):
                outputs = args[0] if args else kwargs.get("outputs")
                for node in _nodes_behind(outputs):
                    started: list[int] = []
                    stack.callback(node.register_prehook(_on_enter(started)).remove)
                    stack.callback(node.register_hook(self._on_leave(started, node)).remove)
            yield

    def _on_leave(self, started: list[int], node: Any) -> Callable[[Any, Any], None]:
        def leave(_: Any, __: Any) -> None:
            end = autograd_nodes.next_number()
            if started and end > started[-1]:
                self._spans.append((started[-1], end, node))

        return leave

    def node_of(self, number: int | None) -> Any:
        """The node whose derivative made the node with this number; None if there is none."""
        if number is None or not self._spans:
            return None
        if len(self._firsts) != len(self._spans):
            self._spans.sort(key=lambda span: span[0])
            self._firsts = [first for first, _, _ in self._spans]
        first, end, node = self._spans[max(bisect_right(self._firsts, number) - 1, 0)]
        return node if first <= number < end else None


def _on_enter(started: list[int]) -> Callable[[Any], None]:
    def enter(_: Any) -> None:
        started.append(autograd_nodes.next_number())

    return enter


def _creates_graph(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    place = _CREATE_GRAPH.get(function)
    return place is not None and bool(kwargs.get("create_graph", args[place] if len(args) > place else False))


def _nodes_behind(outputs: Any) -> Iterator[Any]:
    """Every node that the gradients of these tensors go to, leaves excepted."""
    tensors = [each for each in tree_leaves(outputs) if isinstance(each, torch.Tensor)]
    todo = [each.grad_fn for each in tensors if each.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if autograd_nodes.leaf_of(node) is None:
            yield node
        new = [target for target, _ in autograd_nodes.edges_of(node) if target is not None and target not in seen]
        seen.update(new)
        todo += new
