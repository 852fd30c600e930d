"""Replay the random numbers of one graph in graphs with other random operators.

Inductor draws dropout's mask as `rand > p` from its own generator (torch/_inductor/decomposition.py,
torch/_inductor/fx_passes/replace_random.py), so the same seed gives other numbers than in eager. If the mask is known,
its `rand` is replaced by values that produce this mask: 1 for a kept value, 0 for a dropped one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.calls.graph_runs import Hook
from compiler.decompose.random_draws import Values, drawing_operator, saves_state
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import is_random
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.widened import random_state
from compiler.triton_interpreter.reference import Reference

_INDUCTOR = ("prims.inductor_random.default", "prims.inductor_randint.default")
_SEEDS = ("prims.inductor_seed.default", "prims.inductor_seeds.default")
_UNIFORM = ("aten.rand.default", "aten.rand_like.default", _INDUCTOR[0])
_VALUES = ("aten.rand", "aten.randn", "aten.randint", "aten.rand_like", "aten.randn_like", "aten.randint_like")


@dataclass(slots=True)
class Draws:
    """Recorded results of random calls, in order, as pairs of operator and results.

    `results_for` returns the results for a node of another graph. `reason` says why the draws could not be replayed: a
    node draws in another way, or the graph draws a different number of times; else "".
    """

    made: Sequence[tuple[str, tuple[Any, ...]]]
    reason: str = ""
    _places: dict[str, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    @contextmanager
    def check_count(self) -> Iterator[None]:
        """Check that a graph run in this block draws as often as eager; if not, set `reason`."""
        self._seen, self.reason = set(), ""
        yield
        if not self.reason and len(self._seen) != len(self.made):
            self.reason = f"it draws random numbers {len(self._seen)} times, eager {len(self.made)} times"

    def results_for(self, node: Node, own: Any) -> Any:
        """The recorded results for a node that itself drew `own`.

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
    """Values of `target` that reproduce the operator's results; None if they are unknown."""
    if operator == "aten.native_dropout.default" and target in _UNIFORM:
        return results[1].double()
    if operator.startswith("aten.bernoulli.") and target in _UNIFORM:
        return 1 - results[0].double()
    return results[0] if operator.rpartition(".")[0] in _VALUES else None


def replay(draws: Draws) -> Hook:
    """A hook that replaces the results of a graph's random operators by the recorded results in `draws`."""

    def give(node: Node, run: Callable[[], Any]) -> Any:
        target = fx.target_name(node)
        before = random_state() if is_random(drawing_operator(node)) and _drawing(node) not in _SEEDS else None
        value = run()
        if target not in _INDUCTOR and (before is None or random_state() == before):
            return value
        if saves_state(node):
            return value[0], draws.results_for(node, value[1])
        return draws.results_for(node, value)

    return give


def run_with_draws(
    graph: GraphModule, inputs: Sequence[Any], draws: Draws, values: dict[str, Any] | None = None
) -> list[Any]:
    """Run a graph on the CPU with these random numbers; return outputs, and store values of its nodes in `values`."""
    runs = Reference(graph, () if values is None else [node.name for node in graph.graph.nodes], hooks=[replay(draws)])
    outputs = list(runs.run(*inputs))
    if values is not None:
        values |= runs.values
    return outputs


def draws_of(graph: GraphModule, drawn: Values) -> Draws:
    """Random draws of a graph, in node order."""
    nodes = [node for node in graph.graph.nodes if node.name in drawn]
    return Draws([(_drawing(node), tuple(tree_leaves(drawn[node.name]))[saves_state(node) :]) for node in nodes])


def _drawing(node: Node) -> str:
    return str(drawing_operator(node)) if saves_state(node) else fx.target_name(node)
