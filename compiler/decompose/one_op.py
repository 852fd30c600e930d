"""Decompose one operator call level by level, and compare its results at each level with eager mode's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from compiler.calls.graph_runs import copy_tensor
from compiler.decompose.levels import TABLES, level_named
from compiler.decompose.operators import OperatorError
from compiler.decompose.random_draws import seed_and_restore
from compiler.decompose.tree import LevelTree, OpCall, Source, TensorType, ops_of, results_of, source_of
from compiler.numerics.policy.by_dtype import Numbers, not_comparable, numbers, worst_verdict
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import is_mutable, is_random, table
from compiler.torch_api.level_traces import Expanded, expand_node, first_line, traced_call
from compiler.torch_api.pytrees import tree_leaves, tree_map
from compiler.torch_api.widened import random_state


@dataclass(frozen=True, slots=True)
class Level:
    """The call at one level. `code` is its whole graph, `numbers` the comparison with eager mode.

    `roots` has a tree for each call of the level that it was traced from: `torch` for `ATen`, `ATen` for lower levels.
    """

    name: str
    roots: tuple[OpCall, ...]
    code: str
    numbers: tuple[Numbers, ...]

    def ops(self) -> list[str]:
        """The operators in the level's graph, in order."""
        return [leaf.op for root in self.roots for leaf in root.leaves()]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The call of `name` at each decomposition level. `source` is its definition, None if that is not in Python.

    `arguments` and `keywords` are the call's arguments, with types in place of tensors. `note` describes the inputs if
    they are not the caller's own.
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    results: tuple[TensorType, ...]
    source: Source | None
    levels: tuple[Level, ...]
    note: str = ""

    def level(self, name: str) -> Level:
        """The level with this name. Raises ValueError for an unknown name."""
        wanted = level_named(name)
        return next(level for level in self.levels if level.name == wanted)

    def sources(self) -> dict[str, dict[str, Source]]:
        """For each level, the decomposed operators, each with the source of its decomposition."""
        return {level.name: {op: source for root in level.roots for op, source in root.sources()}
                for level in self.levels}  # fmt: skip


def decompose_call(
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    note: str = "",
) -> Decomposition:
    """Decompose `function(*args, **kwargs)`, without changing the arguments or the RNG state.

    Gradients are not traced: a backward is a separate operator (`aten.gelu_backward`). Raises OperatorError if the call
    fails or can't be traced.
    """
    call = _Call(name, function, tuple(args), dict(kwargs or {}))
    if any(tensor.is_meta for tensor in call.tensors):
        raise OperatorError(f"{name} can't be compared with eager: tensors of device meta have no values")
    eager = call.run_eager()
    graphs = _Graphs(call)
    source = source_of(function)
    levels = (
        Level("torch", graphs.called_calls(name), _code(graphs.called), call.compare(graphs.called, eager)),
        *(Level(level, tree.roots(), _code(tree.traced.module), call.compare(tree.traced.module, eager))
          for level, tree in graphs.trees()),
    )  # fmt: skip
    return Decomposition(
        name=name,
        arguments=_describe(call.args),
        keywords=tuple((key, _describe(value)) for key, value in call.kwargs.items()),
        results=results_of(eager.results),
        source=source if source.file else None,
        levels=levels,
        note=note,
    )


def _name_outputs(outputs: Any) -> list[tuple[str, Any]]:
    return [(f"output {index}", leaf) for index, leaf in enumerate(tree_leaves(outputs))]


@dataclass(frozen=True, slots=True)
class _Eager:
    """Eager mode's results.

    `outputs` are the results followed by the mutated arguments. `exact` has the same in float64, None if the call is
    random or fails in float64. `draws` says whether the call drew random numbers.
    """

    results: list[Any]
    outputs: list[Any]
    exact: list[Any] | None
    draws: bool


class _Call:
    """The call as a function of its tensor arguments only."""

    def __init__(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.function, self.args, self.kwargs = name, function, args, kwargs
        self.tensors = [leaf.detach() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self.changed: tuple[int, ...] = ()

    def __call__(self, *tensors: Tensor) -> list[Any]:
        """The results, followed by the mutated arguments."""
        given = iter(tensors)

        def fill(leaf: Any) -> Any:
            return next(given) if isinstance(leaf, Tensor) else leaf

        args, kwargs = tree_map(fill, (self.args, self.kwargs))
        results = list(tree_leaves(self.function(*args, **kwargs)))
        return results + [tensors[place] for place in self.changed]

    def copies(self) -> list[Tensor]:
        return [copy_tensor(tensor) for tensor in self.tensors]

    def run_eager(self) -> _Eager:
        copies = self.copies()
        versions = [copy._version for copy in copies]
        with seed_and_restore(), torch.no_grad():
            before = random_state()
            try:
                outputs = self(*copies)
            except Exception as error:
                reason = first_line(error).partition(". This could be")[0]
                raise OperatorError(f"{self.name} can't be called with these arguments: {reason}") from error
            draws = random_state() != before
        self.changed = tuple(place for place, copy in enumerate(copies) if copy._version != versions[place])
        exact = None if draws else self._run_exact(len(outputs))
        return _Eager(outputs, outputs + [copies[place] for place in self.changed], exact, draws)

    def _run_exact(self, count: int) -> list[Any] | None:
        """The results and mutated arguments in float64; None if the function does not take float64."""
        copies = [copy.double() if copy.is_floating_point() else copy for copy in self.copies()]
        try:
            with torch.no_grad():
                found = self(*copies)
        except (RuntimeError, TypeError, ValueError):
            return None
        return found if len(found) == count + len(self.changed) else None

    def compare(self, module: GraphModule, eager: _Eager) -> tuple[Numbers, ...]:
        """Compare a graph's results with eager mode's, from the same seed."""
        with seed_and_restore(), torch.no_grad():
            mine = tree_leaves(module(*self.copies()))
        exact = _name_outputs(eager.exact) if eager.exact is not None else None
        found = numbers(_name_outputs(mine), _name_outputs(eager.outputs), exact)
        if not eager.draws or worst_verdict(found) != "differs":
            return found
        draws = ", ".join(sorted({fx.target_name(node) for node in ops_of(module) if is_random(node.target)}))
        reason = f"random: from the same seed {draws or 'this graph'} draws other numbers than {self.name}"
        return tuple(not_comparable(item.dtype, reason) for item in found)


class _Graphs:
    """The call's graph at each level: of torch functions, of ATen operators, and decomposed by each table."""

    def __init__(self, call: _Call) -> None:
        try:
            self.called = traced_call(call, call.tensors)
            self.aten = expand_node(self.called, {})
            if any(is_mutable(node.target) for node in self.aten.module.graph.nodes):
                self.aten = expand_node(self.called, {}, functional=True)
        except Exception as error:
            raise OperatorError(f"{call.name} can't be traced with these arguments: {_error_words(error)}") from error

    def called_calls(self, name: str) -> tuple[OpCall, ...]:
        why = f"called by {name}"
        return tuple(
            OpCall(fx.target_name(node), results_of(fx.value_of(node)), node.name, why=why)
            for node in ops_of(self.called)
        )

    def trees(self) -> Iterator[tuple[str, LevelTree]]:
        yield "ATen", LevelTree("ATen", self.called, self.aten)
        for name in TABLES:
            traced: Expanded = expand_node(self.aten.module, table(name))
            yield name, LevelTree(name, self.aten.module, traced)


def _error_words(error: Exception) -> str:
    reason = first_line(error)
    if "convert all Tensors to FakeTensors" in reason:
        return "it takes tensors from elsewhere, as a module its parameters: give all tensors as arguments"
    return reason


def _code(module: GraphModule) -> str:
    return fx.graph_code(module)[0]


def _describe(value: Any) -> Any:
    """Replace tensors by their types, and leave other values unchanged."""
    return tree_map(lambda leaf: results_of(leaf)[0] if isinstance(leaf, Tensor) else leaf, value)
