"""Lowering rules of gathers and scatters: indexing by tensors, padding, concatenation, slice updates and the like.

A scatter is two loops: one fills a buffer, the next one adds to it or overwrites it, see `ir.Put`. Values for the same
element are added in no fixed order; if they replace it, any of them may win, as in PyTorch. Low precision adds in
float32, and is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from compiler.backend.ir import Loop
from compiler.backend.ir.expr import ADDED, Const, Expr, Guard, Put, Shape, cast, operation
from compiler.backend.ir.index import Index, Indirect, is_below
from compiler.backend.lower.pointwise import broadcast, element, fill_with, scalar, second
from compiler.backend.lower.value import Coordinates, Lowering, NoRuleError, Rule, Tensor, Value, computing_dtype, walk
from compiler.backend.lower.views import from_front, slice_start


def place(value: Expr, size: Index, wrap: bool = False) -> Index:
    """Index from a value loaded from a tensor; with `wrap`, negative values count from the end."""
    value = cast(value, torch.int64)
    if wrap:
        zero = Const(0, torch.int64)
        value = operation("where", operation("lt", value, zero), operation("add", value, size), value)
    return Index.of(Indirect(value, size))


def pick(low: Lowering, x: Tensor, where: Coordinates) -> Tensor:
    """Gather the elements of x at the coordinates `where(at)`."""
    return low.fill(lambda at: x.load(where(at)))


def embedding(low: Lowering, weight: Tensor, rows: Tensor, *_: Any) -> Tensor:
    return pick(low, weight, lambda at: (place(rows.load(at[:-1]), weight.shape[0]), at[-1]))


def coordinates_along(x: Tensor, dim: int, rows: Tensor) -> Coordinates:
    """Function from coordinates in `rows` to coordinates in x, as in `torch.gather`: `rows` has indices along `dim`."""
    if not x.shape or len(x.shape) != len(rows.shape):
        raise NoRuleError("by a tensor with other dimensions, or without any")
    dim = x.dimension(dim)
    return lambda at: (*at[:dim], place(rows.load(at), x.shape[dim]), *at[dim + 1 :])


def gather(low: Lowering, x: Tensor, dim: int, rows: Tensor, **_: Any) -> Tensor:
    return pick(low, x, coordinates_along(x, dim, rows))


def coordinates_of_rows(x: Tensor, dim: int, rows: Tensor) -> Coordinates:
    """Function from coordinates in an `index_select` of x to coordinates in x: 1-d `rows` has indices along `dim`."""
    if not x.shape or len(rows.shape) != 1:
        raise NoRuleError("of or by tensors without dimensions")
    dim = x.dimension(dim)
    return lambda at: (*at[:dim], place(rows.load((at[dim],)), x.shape[dim]), *at[dim + 1 :])


def index_select(low: Lowering, x: Tensor, dim: int, rows: Tensor) -> Tensor:
    return pick(low, x, coordinates_of_rows(x, dim, rows))


def coordinates_of_indices(x: Tensor, rows: Sequence[Tensor | None]) -> tuple[int, Coordinates]:
    """For `x[rows]`: the first result dimension of the index tensors, and a function from coordinates of the result to
    coordinates in x. The index tensors are broadcast together; their dimensions come first unless they index adjacent
    dimensions of x.
    """
    given = [dim for dim, row in enumerate(rows) if row is not None]
    tensors = [row for row in rows if row is not None]
    if not tensors or any(row.dtype not in (torch.int64, torch.int32) for row in tensors):
        raise NoRuleError("indices that are not whole numbers: how many elements there are depends on values")
    rank = max(len(row.shape) for row in tensors)
    first = given[0] if given == list(range(given[0], given[-1] + 1)) else 0

    def locate(at: Shape) -> Shape:
        by, others = at[first : first + rank], iter(at[:first] + at[first + rank :])
        found = []
        for dim, size in enumerate(x.shape):
            row = rows[dim] if dim < len(rows) else None
            found.append(next(others) if row is None else place(row.load(broadcast(row.shape, by)), size, wrap=True))
        return tuple(found)

    return first, locate


def index(low: Lowering, x: Tensor, rows: Sequence[Tensor | None]) -> Tensor:
    """Lowering rule for `x[rows]`."""
    return pick(low, x, coordinates_of_indices(x, rows)[1])


def concatenate(low: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    kept = [x for x in tensors if not (len(x.shape) == 1 and x.shape[0].constant == 0)]
    if not kept or len(kept) > low.thresholds.joined_tensors:
        raise NoRuleError(f"of {len(kept)} tensors; loops join 1 to {low.thresholds.joined_tensors}")
    dim = kept[0].dimension(dim)
    if not (kept := [x for x in kept if x.shape[dim].constant != 0]):
        return fill_with(low, 0)

    def value(at: Shape) -> Expr:
        start, pieces = Index.of(0), []
        for x in kept:
            moved = (*at[:dim], at[dim] - start, *at[dim + 1 :])
            start = start + x.shape[dim]
            pieces.append((start, element(x, moved, low.dtype)))
        _, found = pieces.pop()
        for end, piece in reversed(pieces):
            found = Guard(operation("lt", at[dim], end), piece, found)
        return found

    return low.fill(value)


def in_bounds(at: Index, size: Index) -> Expr | None:
    """The condition 0 ≤ at < size; None if it is proven to hold."""
    conditions = []
    if not is_below(Index.of(-1), at):
        conditions.append(operation("ge", at, Const(0, torch.int64)))
    if not is_below(at, size):
        conditions.append(operation("lt", at, size))
    return reduce(both, conditions) if conditions else None


def both(left: Expr, right: Expr) -> Expr:
    return operation("and", left, right)


def bounds(at: Sequence[Index], sizes: Sequence[Index]) -> list[Expr]:
    """Conditions that coordinates are in bounds, without conditions that are proven to hold."""
    return [found for place, size in zip(at, sizes, strict=True) if (found := in_bounds(place, size))]


def guard_bounds(at: Sequence[Index], sizes: Sequence[Index], value: Expr, fill: Any) -> Expr:
    """The value if all coordinates are in bounds, else the number `fill`."""
    conditions = bounds(at, sizes)
    return Guard(reduce(both, conditions), value, scalar(fill, value.dtype)) if conditions else value


def constant_pad(low: Lowering, x: Tensor, widths: Sequence[Any], fill: Any = 0) -> Tensor:
    before = {len(x.shape) - 1 - pair: widths[2 * pair] for pair in range(len(widths) // 2)}
    if any(size.constant == 0 for size in x.shape):
        return fill_with(low, fill)

    def value(at: Shape) -> Expr:
        moved = tuple(coordinate - Index.of(before.get(dim, 0)) for dim, coordinate in enumerate(at))
        return guard_bounds(moved, x.shape, element(x, moved, low.dtype), fill)

    return low.fill(value)


def slice_scatter(
    low: Lowering, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    dim = x.dimension(dim)
    first = slice_start(start, x.shape[dim])
    if source.shape[dim].constant == 0:
        return fill_with(low, x)

    def value(at: Shape) -> Expr:
        moved, rest = (at[dim] - first) // step, (at[dim] - first) % step
        conditions = bounds((moved,), (source.shape[dim],))
        if step > 1:
            conditions.append(operation("eq", rest, Const(0, torch.int64)))
        inside = element(source, (*at[:dim], moved, *at[dim + 1 :]), x.dtype)
        return Guard(reduce(both, conditions), inside, element(x, at, x.dtype)) if conditions else inside

    return low.fill(value)


def select_scatter(low: Lowering, x: Tensor, source: Tensor, dim: int, position: Any) -> Tensor:
    dim = x.dimension(dim)
    row = from_front(position, x.shape[dim])

    def value(at: Shape) -> Expr:
        inside = element(source, (*at[:dim], *at[dim + 1 :]), x.dtype)
        return operation("where", operation("eq", at[dim], row), inside, element(x, at, x.dtype))

    return low.fill(value)


def flip(low: Lowering, x: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {x.dimension(dim) for dim in dims}

    def locate(at: Shape) -> Shape:
        return tuple(x.shape[dim] - 1 - one if dim in turned else one for dim, one in enumerate(at))

    return pick(low, x, locate)


def roll(low: Lowering, x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    if not dims or isinstance(dims, int) or any(size.constant == 0 for size in x.shape):
        raise NoRuleError("roll of all elements as one row")
    by = {x.dimension(dim): Index.of(shift) for dim, shift in zip(dims, shifts, strict=True)}

    def locate(at: Shape) -> Shape:
        return tuple((one - by[dim]) % x.shape[dim] if dim in by else one for dim, one in enumerate(at))

    return pick(low, x, locate)


def repeat(low: Lowering, x: Tensor, times: Sequence[Any]) -> Tensor:
    added = len(times) - len(x.shape)

    def locate(at: Shape) -> Shape:
        own = zip(at[added:], x.shape, strict=True)
        return tuple(Index.of(0) if size.constant == 1 else one % size for one, size in own)

    return pick(low, x, locate)


def constant(value: Any) -> Rule:
    return lambda low, *_, **__: fill_with(low, value)


def iota(low: Lowering, length: Any, *, start: Any, step: Any, **_: Any) -> Tensor:
    dtype = low.dtype
    if dtype not in (torch.int64, torch.int32):
        raise NoRuleError("positions are whole numbers")
    return low.fill(lambda at: cast(at[0] * Index.of(step) + Index.of(start), dtype))


def add_at(low: Lowering, before: Any, shape: Shape, locate: Coordinates, value: Value) -> Tensor:
    """Scatter-add into `before`, a tensor or a number: add `value(at)` at `locate(at)` for each point of a shape."""
    dtype = computing_dtype(low.dtype)
    if dtype not in ADDED or torch.are_deterministic_algorithms_enabled():
        raise NoRuleError(f"adding in no order, in {str(dtype).removeprefix('torch.')}")
    return _put(low, before, shape, locate, value, dtype, adds=True)


def put_at(low: Lowering, before: Any, shape: Shape, locate: Coordinates, value: Value) -> Tensor:
    """Scatter into `before`: replace the element at `locate(at)` by `value(at)` for each point of a shape."""
    if torch.are_deterministic_algorithms_enabled():
        raise NoRuleError("where places are given twice, the last value counts")
    return _put(low, before, shape, locate, value, low.dtype, adds=False)


def _put(
    low: Lowering, before: Any, shape: Shape, locate: Coordinates, value: Value, dtype: torch.dtype, adds: bool
) -> Tensor:
    start = low.fill(lambda at: element(before, at, dtype), "_start", dtype=dtype)
    name = low.node.name if dtype == low.dtype else f"{low.node.name}_total"
    target = low.add(replace(low.buffers[start.buffer], name=name, reuses=start.buffer))
    low.starts[name] = low.starts[start.buffer]
    ranges, at = walk(shape, "i")
    low.append(Loop(name, ranges, (), Put(start.buffer, locate(at), cast(value(at), dtype), adds)))
    return target if dtype == low.dtype else low.fill(lambda at: cast(target.load(at), low.dtype))


def scatter_add(low: Lowering, x: Tensor, dim: int, rows: Tensor, source: Tensor, **_: Any) -> Tensor:
    locate = coordinates_along(x, dim, rows)
    return add_at(low, x, rows.shape, locate, source.load)


def index_add(low: Lowering, x: Tensor, dim: int, rows: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    if len(source.shape) != len(x.shape):
        raise NoRuleError("of or by tensors without dimensions")
    locate, dtype = coordinates_of_rows(x, dim, rows), computing_dtype(x.dtype)

    def value(at: Shape) -> Expr:
        found = cast(source.load(at), dtype)
        return found if alpha == 1 else operation("mul", found, scalar(alpha, dtype))

    return add_at(low, x, source.shape, locate, value)


def index_copy(low: Lowering, x: Tensor, dim: int, rows: Tensor, source: Tensor) -> Tensor:
    if len(source.shape) != len(x.shape):
        raise NoRuleError("of or by tensors without dimensions")
    return put_at(low, x, source.shape, coordinates_of_rows(x, dim, rows), source.load)


def scatter_reduce(
    low: Lowering, x: Tensor, dim: int, rows: Tensor, source: Tensor, how: str, *, include_self: bool = True
) -> Tensor:
    if how != "sum" or not include_self:
        raise NoRuleError("only sums are made in no order")
    return scatter_add(low, x, dim, rows, source)


def index_put(
    low: Lowering, x: Tensor, rows: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Lowering rule for `x[rows] = values`, or if `accumulate` for `x[rows] += values`."""
    if len(rows) == 1 and rows[0] is not None and rows[0].dtype == torch.bool and not values.shape and not accumulate:
        return masked_put(low, x, rows[0], values)
    first, locate = coordinates_of_indices(x, rows)
    by = broadcast_shape([row.shape for row in rows if row is not None])
    others = tuple(size for dim, size in enumerate(x.shape) if dim >= len(rows) or rows[dim] is None)
    shape = (*others[:first], *by, *others[first:])
    put = add_at if accumulate else put_at
    return put(low, x, shape, locate, lambda at: values.load(broadcast(values.shape, at)))


def masked_put(low: Lowering, x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """Lower `x[mask] = value` for a single value and a mask over the first dimensions."""

    def pick_value(at: Shape) -> Expr:
        return operation("where", mask.load(at[: len(mask.shape)]), element(value, at, low.dtype), x.load(at))

    return low.fill(pick_value)


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """Shape of tensors that are broadcast together."""
    rank = max(map(len, shapes))
    wide = [(Index.of(1),) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size.constant != 1), sizes[0]) for sizes in zip(*wide, strict=True))


def embedding_backward(
    low: Lowering, gradient: Tensor, rows: Tensor, count: Any, padding: Any, by_frequency: bool
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

    return add_at(low, 0, gradient.shape, locate, value)


def scatter(low: Lowering, x: Tensor, dim: int, rows: Tensor, source: Any, **_: Any) -> Tensor:
    """Lowering rule for `torch.scatter`. With one index per row, no `Put` is needed: each element of the result checks
    whether it is the target.
    """
    dim = x.dimension(dim)
    wanted = tuple(Index.of(1) if other == dim else size for other, size in enumerate(x.shape))
    if not x.shape or rows.shape != wanted:
        locate = coordinates_along(x, dim, rows)
        return put_at(low, x, rows.shape, locate, lambda at: element(source, at, low.dtype))

    def value(at: Shape) -> Expr:
        own = (*at[:dim], Index.of(0), *at[dim + 1 :])
        row = cast(rows.load(own), torch.int64)
        is_checked = "nll_loss" in str(low.node.meta.get("original_aten"))  # the forward checked the same indices
        picked = row if is_checked else place(row, x.shape[dim])
        is_one = operation("eq", at[dim], picked)
        return operation("where", is_one, element(source, own, low.dtype), x.load(at))

    return low.fill(value)


INDEXING: dict[str, Rule] = {
    "aten.embedding.default": embedding,
    "aten.gather.default": gather,
    "aten.index_select.default": index_select,
    **{f"aten.{name}.Tensor": index for name in ("index", "_unsafe_index")},
    "aten.cat.default": concatenate,
    "aten.constant_pad_nd.default": constant_pad,
    "aten.slice_scatter.default": slice_scatter,
    "aten.select_scatter.default": select_scatter,
    "aten.flip.default": flip,
    "aten.roll.default": roll,
    "aten.repeat.default": repeat,
    **{f"aten.{name}": second for name in ("full.default", "full_like.default", "fill.Scalar", "fill.Tensor")},
    **{f"aten.zeros{like}.default": constant(0) for like in ("", "_like")},
    **{f"aten.ones{like}.default": constant(1) for like in ("", "_like")},
    "aten.scalar_tensor.default": lambda low, value, **_: fill_with(low, value),
    "prims.iota.default": iota,
    "aten.scatter_add.default": scatter_add,
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_put.default": index_put,
    "aten.embedding_dense_backward.default": embedding_backward,
    **{f"aten.scatter.{kind}": scatter for kind in ("value", "src")},
}
