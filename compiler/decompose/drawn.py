"""Graphs run with the same random numbers: what one graph drew is given to the graphs that were made of it.

A decomposition may draw its numbers by another operator (`rand` in place of `bernoulli`), which gives others from the
same seed. So the results of the operators that drew are kept from the first run, and stand in for those of the nodes
that hold them in the other graphs: everything but the drawing itself is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from compiler.torch_api.decomposition_tables import is_random
from compiler.torch_api.pytrees import tree_leaves

SEED = 0
Values = Mapping[str, tuple[Any, ...]]


class Drawing(Interpreter):
    """Runs a graph and keeps in `drawn`, by node, the results of each call that drew random numbers."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.drawn: dict[str, tuple[Any, ...]] = {}

    def run_node(self, n: Node) -> Any:
        before = random_state() if is_random(n.target) else None
        value = super().run_node(n)
        if before is not None and random_state() != before:
            self.drawn[n.name] = tuple(tree_leaves(value))
        return value


class Given(Interpreter):
    """Runs a graph with these values in place of those of some nodes, by name."""

    def __init__(self, module: GraphModule, values: Mapping[str, Any]) -> None:
        super().__init__(module)
        self._values = values

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        return self._values.get(n.name, value)


def placed(drawn: Values, holders: Mapping[str, tuple[str | None, ...]]) -> dict[str, Any]:
    """By node of a graph, the value drawn that it holds; `holders` says which nodes hold the results of which call."""
    pairs = ((holder, value) for name, values in drawn.items()
             for holder, value in zip(holders.get(name, ()), values, strict=False))  # fmt: skip
    return {holder: value for holder, value in pairs if holder is not None}


@contextmanager
def seeded() -> Iterator[None]:
    """Random numbers from `SEED`, and after the block as if nothing had been drawn."""
    with torch.random.fork_rng(devices=None if torch.cuda.is_initialized() else ()):
        torch.manual_seed(SEED)
        yield


def random_state() -> tuple[bytes, ...]:
    """The state of every generator that an operator may draw from."""
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return tuple(bytes(state.numpy().tobytes()) for state in states)
