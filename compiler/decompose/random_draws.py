"""Run graphs with the same random numbers: record the draws of one graph and replay them in graphs made from it.

A decomposition may use another random operator (`rand` in place of `bernoulli`), which draws other numbers from the
same seed. So the results of random operators are recorded in the first run and replace the values of the corresponding
nodes in the other graphs. The comparison covers everything but the draws themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node

from compiler.calls.graph_runs import Hook
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import is_random
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.widened import random_state

SEED = 0
Values = Mapping[str, tuple[Any, ...]]


def record_draws(drawn: dict[str, tuple[Any, ...]]) -> Hook:
    """A hook that records the results of each random operator in `drawn`, by node name."""

    def record(node: Node, run: Callable[[], Any]) -> Any:
        before = random_state() if is_random(drawing_operator(node)) else None
        value = run()
        if before is not None and random_state() != before:
            drawn[node.name] = tuple(tree_leaves(value))
        return value

    return record


def give_values(values: Mapping[str, Any]) -> Hook:
    """A hook that gives nodes the values in `values`, by node name."""

    def give(node: Node, run: Callable[[], Any]) -> Any:
        value = run()
        return values.get(node.name, value)

    return give


def drawing_operator(node: Node) -> Any:
    """The operator that a node calls; the wrapped operator if a checkpoint wraps it to save the RNG state."""
    return node.args[0] if saves_state(node) else node.target


def saves_state(node: Node) -> bool:
    """Whether a node returns the RNG state before its other results."""
    return fx.target_name(node) == "torch.ops.higher_order.run_and_save_rng_state"


def place_draws(drawn: Values, holders: Mapping[str, tuple[str | None, ...]]) -> dict[str, Any]:
    """Recorded draws, by node of another graph; `holders` maps a random call to the nodes that hold its results."""
    pairs = ((holder, value) for name, values in drawn.items()
             for holder, value in zip(holders.get(name, ()), values, strict=False))  # fmt: skip
    return {holder: value for holder, value in pairs if holder is not None}


@contextmanager
def seed_and_restore() -> Iterator[None]:
    """Seed the RNG with `SEED` for a block and restore its state afterwards."""
    with torch.random.fork_rng(devices=None if torch.cuda.is_initialized() else ()):
        torch.manual_seed(SEED)
        yield
