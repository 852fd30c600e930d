"""Replay the random numbers of one graph in graphs that draw them in another way, and in float64.

Inductor draws dropout's mask as `rand > p` from a generator of its own (torch/_inductor/decomposition.py,
torch/_inductor/fx_passes/replace_random.py), so the same seed gives other numbers than in eager. Where the mask is
known, a `rand` that produces that mask is substituted: 1 where a value is kept, 0 where it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from compiler.decompose.random_draws import Values, drawing_operator, saves_state
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import is_random
from compiler.torch_api.pytrees import tree_leaves, tree_map
from compiler.torch_api.widened import random_state
from compiler.triton_interpreter.reference import Reference

_INDUCTOR = ("prims.inductor_random.default", "prims.inductor_randint.default")
_SEEDS = ("prims.inductor_seed.default", "prims.inductor_seeds.default")
_UNIFORM = ("aten.rand.default", "aten.rand_like.default", _INDUCTOR[0])
_VALUES = ("aten.rand", "aten.randn", "aten.randint", "aten.rand_like", "aten.randn_like", "aten.randint_like")


@dataclass(slots=True)
class Draws:
    """Results of random calls in the order of the calls, as pairs of operator and results.

    `of` returns the results for a node of another graph. `reason` says why a node could not get them, "" if all did.
    """

    made: Sequence[tuple[str, tuple[Any, ...]]]
    reason: str = ""
    _places: dict[str, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Call this before a graph runs."""
        self._seen, self.reason = set(), ""

    def finish(self) -> None:
        if not self.reason and len(self._seen) != len(self.made):
            self.reason = f"it draws random numbers {len(self._seen)} times, eager {len(self.made)} times"

    def results_for(self, node: Node, own: Any) -> Any:
        """The recorded results for a node that drew `own`.

        A node of the same name in a later graph, or recomputed by a checkpoint's backward, gets the same results.
        """
        place = self._places.setdefault(node.name, len(self._seen))
        self._seen.add(place)
        if place >= len(self.made):
            return own
        operator, results = self.made[place]
        target = _drawing(node)
        given = _converted_draw(operator, results, target, own)
        if given is None:
            self.reason = f"{target} draws in another way than {operator}, and can't be given its numbers"
            return own
        return given


def _converted_draw(operator: str, results: tuple[Any, ...], target: str, own: Any) -> Any:
    if operator == target and not isinstance(own, Tensor):
        return results
    value = results[0] if operator == target else _uniform_for(operator, results, target)
    if not isinstance(value, Tensor) or not isinstance(own, Tensor) or value.shape != own.shape:
        return None
    return value.to(own)


def _uniform_for(operator: str, results: tuple[Any, ...], target: str) -> Tensor | None:
    """The draw of `target` from which the operator's results follow; None where that is not known."""
    if operator == "aten.native_dropout.default" and target in _UNIFORM:
        return results[1].double()
    if operator.startswith("aten.bernoulli.") and target in _UNIFORM:
        return 1 - results[0].double()
    return results[0] if operator.rpartition(".")[0] in _VALUES else None


class ReplayingReference(Reference):
    """Runs a graph on the CPU with the random numbers of another; keeps the values of the `wanted` nodes."""

    def __init__(self, module: GraphModule, wanted: Sequence[str], draws: Draws) -> None:
        super().__init__(module, wanted)
        self._draws = draws

    def compute_node(self, node: Node, args: Any, kwargs: Any) -> Any:
        """The value of a node, or the replayed random numbers in its place."""
        target = fx.target_name(node)
        before = random_state() if is_random(drawing_operator(node)) and target not in _SEEDS else None
        value = super().compute_node(node, args, kwargs)
        drew = target in _INDUCTOR or (before is not None and random_state() != before)
        if drew and saves_state(node):
            return value[0], self._draws.results_for(node, value[1])
        return self._draws.results_for(node, value) if drew else value


class Exact(Interpreter):
    """Runs an ATen graph in float64, with the random numbers in `drawn`."""

    def __init__(self, module: GraphModule, drawn: Values) -> None:
        super().__init__(module)
        self._drawn = drawn

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return tree_map(_wide, super().run_node(n))
        args, kwargs = tree_map(_wide, self.fetch_args_kwargs_from_env(n))
        if n.name not in self._drawn:
            return tree_map(_wide, self.call_function(n.target, args, kwargs))
        results = self._drawn[n.name]
        if fx.target_name(n) == "aten.native_dropout.default":
            return args[0] * results[1] / (1 - args[1]), results[1]
        return _wide(results[0]) if len(results) == 1 else tree_map(_wide, results)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def draws_of(graph: GraphModule, drawn: Values) -> Draws:
    """The draws of a graph in the order of its nodes."""
    nodes = [node for node in graph.graph.nodes if node.name in drawn]
    return Draws([(_drawing(node), tuple(tree_leaves(drawn[node.name]))[saves_state(node) :]) for node in nodes])


def _drawing(node: Node) -> str:
    return str(drawing_operator(node)) if saves_state(node) else fx.target_name(node)
