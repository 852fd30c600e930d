"""Random numbers that one graph drew, handed to graphs that draw them in another way; and the same in float64.

Inductor draws dropout's mask as `rand > p` from a generator of its own (torch/_inductor/decomposition.py,
torch/_inductor/fx_passes/replace_random.py), so the same seed gives it other numbers than eager has. Where the mask is
known, a `rand` is made up that gives that mask: 1 where a value is kept, 0 where it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from compiler.decompose.drawn import Values, random_state
from compiler.interpret.reference import Reference
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import is_random
from compiler.torch_api.pytrees import tree_leaves, tree_map

_INDUCTOR = ("prims.inductor_random.default", "prims.inductor_randint.default")
_SEEDS = ("prims.inductor_seed.default", "prims.inductor_seeds.default")
_UNIFORM = ("aten.rand.default", "aten.rand_like.default", _INDUCTOR[0])
_VALUES = ("aten.rand", "aten.randn", "aten.randint", "aten.rand_like", "aten.randn_like", "aten.randint_like")


@dataclass(slots=True)
class Draws:
    """The results of random calls, in the order of the calls: (operator, results). `of` finds the one that a node of
    another graph is to have; `reason` says why it could not, "" where all is well.
    """

    made: Sequence[tuple[str, tuple[Any, ...]]]
    reason: str = ""
    _places: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def started(self) -> None:
        """A graph is run from its first node."""
        self._count, self.reason = 0, ""

    def ended(self) -> None:
        if not self.reason and self._count != len(self.made):
            self.reason = f"it draws random numbers {self._count} times, eager {len(self.made)} times"

    def of(self, node: Node, own: Any) -> Any:
        """The results for a node that drew `own`. Nodes keep their place where a later graph has their name."""
        place = self._places.setdefault(node.name, self._count)
        self._count += 1
        if place >= len(self.made):
            return own
        operator, results = self.made[place]
        given = _handed(operator, results, fx.target_name(node), own)
        if given is None:
            self.reason = f"{fx.target_name(node)} draws in another way than {operator}, and can't be given its numbers"
            return own
        return given


def _handed(operator: str, results: tuple[Any, ...], target: str, own: Any) -> Any:
    if operator == target and not isinstance(own, Tensor):
        return results
    value = results[0] if operator == target else _as_drawn(operator, results, target)
    if not isinstance(value, Tensor) or not isinstance(own, Tensor) or value.shape != own.shape:
        return None
    return value.to(own)


def _as_drawn(operator: str, results: tuple[Any, ...], target: str) -> Tensor | None:
    """What a call of `target` is to give so that the operator's results come of it; None where that is not known."""
    if operator == "aten.native_dropout.default" and target in _UNIFORM:
        return results[1].double()
    if operator.startswith("aten.bernoulli.") and target in _UNIFORM:
        return 1 - results[0].double()
    return results[0] if operator.rpartition(".")[0] in _VALUES else None


class Handing(Reference):
    """Runs a graph on the CPU with the random numbers of another; `wanted` are the nodes whose values are kept."""

    def __init__(self, module: GraphModule, wanted: Sequence[str], draws: Draws) -> None:
        super().__init__(module, wanted)
        self._draws = draws

    def computed(self, node: Node, args: Any, kwargs: Any) -> Any:
        """What a node gives, or the numbers drawn in its place."""
        target = fx.target_name(node)
        before = random_state() if is_random(node.target) and target not in _SEEDS else None
        value = super().computed(node, args, kwargs)
        drew = target in _INDUCTOR or (before is not None and random_state() != before)
        return self._draws.of(node, value) if drew else value


class Exact(Interpreter):
    """Runs an ATen graph in float64: what asks for a narrower format gets that one, and random numbers are `drawn`."""

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
    """What a graph drew, in the order of its nodes."""
    nodes = [node for node in graph.graph.nodes if node.name in drawn]
    return Draws([(fx.target_name(node), tuple(tree_leaves(drawn[node.name]))) for node in nodes])
