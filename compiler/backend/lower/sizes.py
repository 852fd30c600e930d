"""Sizes as torch has them (ints, SymInts) as indices. Their SymPy expressions are read by what they are called."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, reduce
from operator import add, floordiv, mod, mul
from typing import Any

import torch

from compiler.backend.ir import BackendError
from compiler.backend.ir.expr import Shape
from compiler.backend.ir.index import Index, Symbol, product
from compiler.backend.torch_glue.index_bounds import settle_max_and_min, specialize_symbols, unbounded_symbols

_DIVISIONS = ("FloorDiv", "CleanDiv", "IntTrueDiv")
_OPERATORS = {"Add": add, "Mul": mul, "Mod": mod, "PythonMod": mod}


def index_of(size: Any, is_stride: bool = False) -> Index:
    """An int or SymInt as an index. What indices have no arithmetic for is held to the value of this call, by a guard;
    where there can be none, it raises BackendError.
    """
    if not isinstance(size, torch.SymInt):
        return Index.of(int(size))
    try:
        expression = settle_max_and_min(size, is_stride)
        return _index(expression, unbounded_symbols(size, expression))
    except BackendError:
        if (number := specialize_symbols(size)) is None:
            raise
        return Index.of(int(number))


def shape_of(sizes: Iterable[Any]) -> Shape:
    """Sizes as indices."""
    return tuple(map(index_of, sizes))


def strides_of(tensor: torch.Tensor) -> Shape:
    """The strides of a fake tensor, none where it has another layout."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tuple(index_of(stride, is_stride=True) for stride in strides)


@lru_cache(4096)
def _index(expression: Any, numbers: frozenset[str]) -> Index:
    """`numbers` are the symbols that may be 0 or negative."""
    kind, args = expression.func.__name__, expression.args
    if expression.is_Integer:
        return Index.of(int(expression))
    if expression.is_Symbol:
        return Index.of(Symbol(str(expression), str(expression) not in numbers))
    if kind == "Pow" and args[1].is_Integer and args[1] > 0:
        return product([_index(args[0], numbers)] * int(args[1]))
    if kind in ("Add", "Mul", "Mod", "PythonMod", *_DIVISIONS):
        first, *others = (_index(arg, numbers) for arg in args)
        return reduce(_OPERATORS.get(kind, floordiv), others, first)
    raise BackendError(f"a size of this graph is {expression}, and indices have no {kind}")
