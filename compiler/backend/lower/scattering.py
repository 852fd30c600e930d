"""Rules of operators that add to elements which a tensor picks, or replace them: several may be added to one, in no
order; of several that are to replace one PyTorch does not say which does.

One loop fills a buffer, the next adds to it: see `ir.Put`. Low precision adds in float32, and is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from compiler.backend.ir import Loop
from compiler.backend.ir.expr import ADDED, At, Const, Expr, Put, Shape, cast, operation
from compiler.backend.ir.index import Index
from compiler.backend.lower.indexing import coordinates_along, coordinates_of_indices, coordinates_of_rows, place
from compiler.backend.lower.pointwise import broadcast, element, scalar
from compiler.backend.lower.value import (
    Coordinates,
    Lowering,
    NoRuleError,
    Rule,
    Tensor,
    checked_dtype,
    computing_dtype,
    dimension,
    walk,
)
from compiler.torch_api.fx import value_of

Value = Callable[[Shape], Expr]


def add_at(low: Lowering, node: Node, before: Any, shape: Shape, locate: Coordinates, value: Value) -> Tensor:
    """`before`, a tensor or a number, with `value(at)` added at `where(at)`, for each point of a shape."""
    dtype = computing_dtype(checked_dtype(value_of(node).dtype))
    if dtype not in ADDED or torch.are_deterministic_algorithms_enabled():
        raise NoRuleError(f"adding in no order, in {str(dtype).removeprefix('torch.')}")
    return _put(low, node, before, shape, locate, value, dtype, adds=True)


def put_at(low: Lowering, node: Node, before: Any, shape: Shape, locate: Coordinates, value: Value) -> Tensor:
    """`before` with `value(at)` in the place of the element at `where(at)`, for each point of a shape."""
    if torch.are_deterministic_algorithms_enabled():
        raise NoRuleError("where places are given twice, the last value counts")
    return _put(low, node, before, shape, locate, value, checked_dtype(value_of(node).dtype), adds=False)


def _put(
    low: Lowering, node: Node, before: Any, shape: Shape, locate: Coordinates, value: Value, dtype: torch.dtype,
    adds: bool,
) -> Tensor:  # fmt: skip
    meta = value_of(node)
    start = low.fill(f"{node.name}_start", meta, lambda at: element(before, at, dtype), dtype)
    name = node.name if dtype == meta.dtype else f"{node.name}_total"
    target = low.add(replace(low.buffers[start.buffer], name=name, reuses=start.buffer))
    low.starts[name] = low.starts[start.buffer]
    ranges, at = walk(shape, "i")
    low.append(Loop(name, ranges, (), Put(start.buffer, locate(at), cast(value(at), dtype), adds)))
    return target if dtype == meta.dtype else low.fill(node.name, meta, lambda at: cast(target.load(at), meta.dtype))


def scatter_add(low: Lowering, node: Node, x: Tensor, dim: int, rows: Tensor, source: Tensor, **_: Any) -> Tensor:
    locate = coordinates_along(x, dim, rows)
    return add_at(low, node, x, rows.shape, locate, source.load)


def index_add(
    low: Lowering, node: Node, x: Tensor, dim: int, rows: Tensor, source: Tensor, *, alpha: Any = 1
) -> Tensor:
    if len(source.shape) != len(x.shape):
        raise NoRuleError("of or by tensors without dimensions")
    locate, dtype = coordinates_of_rows(x, dim, rows), computing_dtype(x.dtype)

    def value(at: Shape) -> Expr:
        found = cast(source.load(at), dtype)
        return found if alpha == 1 else operation("mul", found, scalar(alpha, dtype))

    return add_at(low, node, x, source.shape, locate, value)


def index_copy(low: Lowering, node: Node, x: Tensor, dim: int, rows: Tensor, source: Tensor) -> Tensor:
    if len(source.shape) != len(x.shape):
        raise NoRuleError("of or by tensors without dimensions")
    return put_at(low, node, x, source.shape, coordinates_of_rows(x, dim, rows), source.load)


def scatter_reduce(
    low: Lowering, node: Node, x: Tensor, dim: int, rows: Tensor, source: Tensor, how: str, *, include_self: bool = True
) -> Tensor:
    if how != "sum" or not include_self:
        raise NoRuleError("only sums are made in no order")
    return scatter_add(low, node, x, dim, rows, source)


def index_put(
    low: Lowering, node: Node, x: Tensor, rows: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """`x[rows] += values`, or `=`."""
    if len(rows) == 1 and rows[0] is not None and rows[0].dtype == torch.bool and not values.shape and not accumulate:
        return masked_put(low, node, x, rows[0], values)
    first, locate = coordinates_of_indices(x, rows)
    by = broadcast_shape([row.shape for row in rows if row is not None])
    others = tuple(size for dim, size in enumerate(x.shape) if dim >= len(rows) or rows[dim] is None)
    shape = (*others[:first], *by, *others[first:])
    put = add_at if accumulate else put_at
    return put(low, node, x, shape, locate, lambda at: values.load(broadcast(values.shape, at)))


def masked_put(low: Lowering, node: Node, x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """One number where a mask of the first dimensions holds."""
    meta = value_of(node)

    def pick_value(at: Shape) -> Expr:
        return operation("where", mask.load(at[: len(mask.shape)]), element(value, at, meta.dtype), x.load(at))

    return low.fill(node.name, meta, pick_value)


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that shapes have when they are broadcast together."""
    rank = max(map(len, shapes))
    wide = [(Index.of(1),) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size.constant != 1), sizes[0]) for sizes in zip(*wide, strict=True))


def embedding_backward(
    low: Lowering, node: Node, gradient: Tensor, rows: Tensor, count: Any, padding: Any, by_frequency: bool
) -> Tensor:
    if by_frequency or not isinstance(padding, int):
        raise NoRuleError("gradients that are scaled by how often a row was met")

    def value(at: Shape) -> Expr:
        found = gradient.load(at)
        if padding < 0:
            return found
        is_padding = operation("eq", cast(rows.load(at[:-1]), torch.int64), Const(padding, torch.int64))
        return operation("where", is_padding, scalar(0, found.dtype), found)

    def locate(at: Shape) -> Shape:
        return (place(rows.load(at[:-1]), Index.of(count)), at[-1])

    return add_at(low, node, 0, gradient.shape, locate, value)


def scatter(low: Lowering, node: Node, x: Tensor, dim: int, rows: Tensor, source: Any, **_: Any) -> Tensor:
    """Elements are replaced. Where it is one of each row, no element is met twice, and each asks whether it is it."""
    meta = value_of(node)
    dim = dimension(dim, len(x.shape))
    wanted = tuple(Index.of(1) if other == dim else size for other, size in enumerate(x.shape))
    if not x.shape or rows.shape != wanted:
        return put_at(
            low, node, x, rows.shape, coordinates_along(x, dim, rows), lambda at: element(source, at, meta.dtype)
        )

    def value(at: Shape) -> Expr:
        own = (*at[:dim], Index.of(0), *at[dim + 1 :])
        row = cast(rows.load(own), torch.int64)
        picked = row if _is_checked(node) else At(place(row, x.shape[dim]))
        is_one = operation("eq", At(at[dim]), picked)
        put = element(source, own, meta.dtype) if isinstance(source, Tensor) else scalar(source, meta.dtype)
        return operation("where", is_one, put, x.load(at))

    return low.fill(node.name, meta, value)


def _is_checked(node: Node) -> bool:
    """Whether an operator of the forward has met the same indices, and they were in range."""
    return "nll_loss" in str(node.meta.get("original_aten"))


SCATTERING: dict[str, Rule] = {
    "aten.scatter_add.default": scatter_add,
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_put.default": index_put,
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.scatter.value": scatter,
    "aten.scatter.src": scatter,
}
