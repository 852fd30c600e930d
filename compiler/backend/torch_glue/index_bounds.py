"""Settle facts about symbolic sizes by guards, which torch checks at each call.

The facts: whether 32 bits are enough to index a graph's tensors, which argument a Max or Min equals, values of symbols
that index arithmetic can't handle, and whether symbols are positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from sympy import Eq, Integer
from torch.fx import GraphModule
from torch.fx.experimental import symbolic_shapes

from compiler.torch_api.fx import value_of
from compiler.torch_api.open_sizes import Max
from compiler.torch_api.pytrees import tree_leaves


def is_below(module: GraphModule, limit: int) -> bool:
    """Whether every tensor of a graph has at most `limit` elements and offsets, in all calls that its guards allow.

    Adds guards as needed, first for the largest tensor, as this guard often implies the others. False if no guard can
    be added: for data-dependent sizes, or once the guards are frozen.
    """
    reaches = {str(reach): reach for node in module.graph.nodes for reach in _reaches(value_of(node))}
    if any(reach > limit for reach in reaches.values() if isinstance(reach, int)):
        return False
    symbolic = [reach for reach in reaches.values() if isinstance(reach, torch.SymInt)]
    nodes = [reach.node for reach in symbolic]
    if any(node.hint is None or node.hint > limit or node.shape_env.frozen for node in nodes):
        return False
    return all(bool(reach <= limit) for reach in sorted(symbolic, key=lambda reach: -reach.node.hint))


def _reaches(value: Any) -> Iterator[Any]:
    """Each tensor's number of elements, and its last offset plus one if it is not contiguous."""
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            count: Any = tensor.numel()
            yield count
            if (isinstance(count, int) or count.node.hint is not None) and not tensor.is_contiguous():
                yield 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def settle_max_and_min(size: torch.SymInt, is_stride: bool) -> Any:
    """A size's expression with each Max and Min replaced by the argument that it equals, under guards.

    A quotient that existing guards fix to 1 becomes 1, as torch treats it inconsistently. If no guard can be added, the
    expression is unchanged; but a stride's Max(1, u0) of a data-dependent u0 becomes u0, as an empty tensor has no
    elements to address.
    """
    environment, expression = size.node.shape_env, size.node.expr
    if size.node.hint is None and is_stride:
        least = [found for found in expression.atoms(Max) if len(found.args) == 2 and 1 in found.args]
        return expression.subs({found: max(found.args, key=lambda arg: arg != 1) for found in least})
    can_guard = size.node.hint is not None and not environment.frozen
    return _settle(expression, environment) if can_guard else expression


def _settle(expression: Any, environment: Any) -> Any:
    args = [_settle(arg, environment) for arg in expression.args]
    kind = expression.func.__name__
    if kind in ("FloorDiv", "CleanDiv") and _is_known(Eq(expression, 1), environment):
        return Integer(1)
    if kind not in ("Max", "Min"):
        return expression if args == list(expression.args) else expression.func(*args)
    first, *others = args
    for other in others:
        is_first, is_other = (first >= other, other >= first) if kind == "Max" else (first <= other, other <= first)
        known = _is_known(is_other, environment)  # for equal sizes, a guard on `is_first` would specialize them
        first = first if not known and environment.evaluate_expr(is_first) else other
    return first


def _is_known(relation: Any, environment: Any) -> bool:
    """Whether the existing guards imply a condition."""
    return symbolic_shapes.statically_known_true(environment.create_symboolnode(relation))


def replaced_symbols(module: GraphModule) -> int:
    """Number of symbols that guards have replaced by other symbols or by numbers; a new guard may replace more."""
    values = (value_of(node) for node in module.graph.find_nodes(op="placeholder"))
    sizes = (size for value in values for size in (getattr(value, "shape", ()) or (value,)))
    symbolic = next((size for size in sizes if isinstance(size, torch.SymInt)), None)
    return len(symbolic.node.shape_env.replacements) if symbolic is not None else 0


_POSITIVE: WeakKeyDictionary[symbolic_shapes.ShapeEnv, set[Any]] = WeakKeyDictionary()
"""Symbols known to be positive, by shape environment. Once known, a symbol stays positive."""


def unbounded_symbols(size: torch.SymInt, expression: Any) -> frozenset[str]:
    """Names of the symbols in a size's expression that may be 0 or negative.

    A symbol that is positive in this call gets a guard that keeps it positive, if guards can be added. Data-dependent
    sizes count as positive: if they are 0, nothing is computed.
    """
    environment = size.node.shape_env
    known = _POSITIVE.setdefault(environment, set())
    others = [symbol for symbol in _symbols(expression) if symbol not in known]
    known.update(symbol for symbol in others if _is_positive(symbol, environment))
    return frozenset(str(symbol) for symbol in others if symbol not in known)


@lru_cache(4096)
def _symbols(expression: Any) -> tuple[Any, ...]:
    return tuple(expression.free_symbols)


def _is_positive(symbol: Any, environment: symbolic_shapes.ShapeEnv) -> bool:
    bounds: Any = environment.bound_sympy(symbol)
    if bounds is None:
        return True  # a nested int, which identifies a ragged dimension
    least, example = bounds.lower, environment.backed_var_to_val.get(symbol)
    if least >= 1 or example is None:
        return bool(least >= 0)
    return bool(not environment.frozen and example >= 1 and environment.evaluate_expr(symbol >= 1))


def specialize_symbols(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool | None:
    """Specialize an expression to its value in this call by a guard; None if no guard can be added."""
    if number.node.hint is None or number.node.shape_env.frozen:
        return None
    if isinstance(number, torch.SymInt):
        return int(number)
    return float(number) if isinstance(number, torch.SymFloat) else bool(number)
