"""Rules of operators that pick elements by place: by indices that a tensor holds, or where tensors are put together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch.fx import Node

from compiler.backend.ir.expr import At, Const, Expr, Guard, Shape, cast, operation
from compiler.backend.ir.index import Index, Indirect, is_below
from compiler.backend.lower.pointwise import broadcast, element, scalar, second
from compiler.backend.lower.value import Coordinates, Lowering, NoRuleError, Rule, Tensor, dimension
from compiler.backend.lower.views import from_front, slice_start
from compiler.torch_api.fx import value_of

MOST_JOINED = 8
"""Each element of a `cat` asks for each tensor whether it comes from it: with more of them copies are faster."""


def place(value: Expr, size: Index, wrap: bool = False) -> Index:
    """An index that a tensor holds; with `wrap`, negative ones count from the end."""
    value = cast(value, torch.int64)
    if wrap:
        zero = Const(0, torch.int64)
        value = operation("where", operation("lt", value, zero), operation("add", value, At(size)), value)
    return Index.of(Indirect(value, size))


def pick(low: Lowering, node: Node, x: Tensor, where: Coordinates) -> Tensor:
    """The elements of x at `where(at)`."""
    return low.fill(node.name, value_of(node), lambda at: x.load(where(at)))


def embedding(low: Lowering, node: Node, weight: Tensor, rows: Tensor, *_: Any) -> Tensor:
    return pick(low, node, weight, lambda at: (place(rows.load(at[:-1]), weight.shape[0]), at[-1]))


def coordinates_along(x: Tensor, dim: int, rows: Tensor) -> Coordinates:
    """Coordinates in x of what is at a place of `rows`, which holds those of one dimension."""
    if not x.shape or len(x.shape) != len(rows.shape):
        raise NoRuleError("by a tensor with other dimensions, or without any")
    dim = dimension(dim, len(x.shape))
    return lambda at: (*at[:dim], place(rows.load(at), x.shape[dim]), *at[dim + 1 :])


def gather(low: Lowering, node: Node, x: Tensor, dim: int, rows: Tensor, **_: Any) -> Tensor:
    return pick(low, node, x, coordinates_along(x, dim, rows))


def coordinates_of_rows(x: Tensor, dim: int, rows: Tensor) -> Coordinates:
    """Coordinates in x of what is at a place where a dimension counts through `rows`, which holds those of x."""
    if not x.shape or len(rows.shape) != 1:
        raise NoRuleError("of or by tensors without dimensions")
    dim = dimension(dim, len(x.shape))
    return lambda at: (*at[:dim], place(rows.load((at[dim],)), x.shape[dim]), *at[dim + 1 :])


def index_select(low: Lowering, node: Node, x: Tensor, dim: int, rows: Tensor) -> Tensor:
    return pick(low, node, x, coordinates_of_rows(x, dim, rows))


def coordinates_of_indices(x: Tensor, rows: Sequence[Tensor | None]) -> tuple[int, Coordinates]:
    """Of `x[rows]`: the dimension that the indices' own ones begin at, and coordinates in x of what is at a place. They
    are broadcast together, and stand where they stood if they are side by side.
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


def index(low: Lowering, node: Node, x: Tensor, rows: Sequence[Tensor | None]) -> Tensor:
    """`x[rows]`."""
    return pick(low, node, x, coordinates_of_indices(x, rows)[1])


def concatenate(low: Lowering, node: Node, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    meta = value_of(node)
    kept = [x for x in tensors if not (len(x.shape) == 1 and x.shape[0].constant == 0)]
    if not kept or len(kept) > MOST_JOINED:
        raise NoRuleError(f"of {len(kept)} tensors; loops join 1 to {MOST_JOINED}")
    dim = dimension(dim, len(meta.shape))
    if all(x.shape[dim].constant == 0 for x in kept):
        return low.fill(node.name, meta, lambda at: scalar(0, meta.dtype))

    def value(at: Shape) -> Expr:
        start, pieces = Index.of(0), []
        for x in kept:
            moved = (*at[:dim], at[dim] - start, *at[dim + 1 :])
            start = start + x.shape[dim]
            pieces.append((start, element(x, moved, meta.dtype) if x.shape[dim].constant != 0 else None))
        return _first_before(at[dim], [(end, piece) for end, piece in pieces if piece is not None])

    return low.fill(node.name, meta, value)


def _first_before(at: Index, pieces: Sequence[tuple[Index, Expr]]) -> Expr:
    *others, (_, found) = pieces
    for end, piece in reversed(others):
        found = Guard(operation("lt", At(at), At(end)), piece, found)
    return found


def in_bounds(at: Index, size: Index) -> Expr | None:
    """Whether 0 ≤ at < size, None where that is certain."""
    conditions = []
    if not is_below(Index.of(-1), at):
        conditions.append(operation("ge", At(at), Const(0, torch.int64)))
    if not is_below(at, size):
        conditions.append(operation("lt", At(at), At(size)))
    return reduce(both, conditions) if conditions else None


def both(left: Expr, right: Expr) -> Expr:
    return operation("and", left, right)


def bounds(at: Sequence[Index], sizes: Sequence[Index]) -> list[Expr]:
    """What has to hold for coordinates that may lie outside of a tensor."""
    return [found for place, size in zip(at, sizes, strict=True) if (found := in_bounds(place, size))]


def guard_bounds(at: Sequence[Index], sizes: Sequence[Index], value: Expr, fill: Any) -> Expr:
    """The value where all coordinates are between 0 and the sizes, else a number of its dtype."""
    conditions = bounds(at, sizes)
    return Guard(reduce(both, conditions), value, scalar(fill, value.dtype)) if conditions else value


def constant_pad(low: Lowering, node: Node, x: Tensor, widths: Sequence[Any], fill: Any = 0) -> Tensor:
    meta = value_of(node)
    before = {len(x.shape) - 1 - pair: widths[2 * pair] for pair in range(len(widths) // 2)}
    if any(size.constant == 0 for size in x.shape):
        return low.fill(node.name, meta, lambda at: scalar(fill, meta.dtype))

    def value(at: Shape) -> Expr:
        moved = tuple(coordinate - Index.of(before.get(dim, 0)) for dim, coordinate in enumerate(at))
        return guard_bounds(moved, x.shape, element(x, moved, meta.dtype), fill)

    return low.fill(node.name, meta, value)


def slice_scatter(
    low: Lowering, node: Node, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Tensor:  # fmt: skip
    meta = value_of(node)
    dim = dimension(dim, len(x.shape))
    first = slice_start(start, x.shape[dim])
    if source.shape[dim].constant == 0:
        return low.fill(node.name, meta, lambda at: element(x, at, meta.dtype))

    def value(at: Shape) -> Expr:
        moved, rest = (at[dim] - first) // step, (at[dim] - first) % step
        conditions = bounds((moved,), (source.shape[dim],))
        if step > 1:
            conditions.append(operation("eq", At(rest), Const(0, torch.int64)))
        inside = element(source, (*at[:dim], moved, *at[dim + 1 :]), x.dtype)
        return Guard(reduce(both, conditions), inside, element(x, at, x.dtype)) if conditions else inside

    return low.fill(node.name, meta, value)


def select_scatter(low: Lowering, node: Node, x: Tensor, source: Tensor, dim: int, position: Any) -> Tensor:
    meta = value_of(node)
    dim = dimension(dim, len(x.shape))
    row = from_front(position, x.shape[dim])

    def value(at: Shape) -> Expr:
        inside = element(source, (*at[:dim], *at[dim + 1 :]), x.dtype)
        return operation("where", operation("eq", At(at[dim]), At(row)), inside, element(x, at, x.dtype))

    return low.fill(node.name, meta, value)


def flip(low: Lowering, node: Node, x: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {dimension(dim, len(x.shape)) for dim in dims}

    def locate(at: Shape) -> Shape:
        return tuple(x.shape[dim] - 1 - one if dim in turned else one for dim, one in enumerate(at))

    return pick(low, node, x, locate)


def roll(low: Lowering, node: Node, x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    if not dims or isinstance(dims, int) or any(size.constant == 0 for size in x.shape):
        raise NoRuleError("roll of all elements as one row")
    by = {dimension(dim, len(x.shape)): Index.of(shift) for dim, shift in zip(dims, shifts, strict=True)}

    def locate(at: Shape) -> Shape:
        return tuple((one - by[dim]) % x.shape[dim] if dim in by else one for dim, one in enumerate(at))

    return pick(low, node, x, locate)


def repeat(low: Lowering, node: Node, x: Tensor, times: Sequence[Any]) -> Tensor:
    added = len(times) - len(x.shape)

    def locate(at: Shape) -> Shape:
        own = zip(at[added:], x.shape, strict=True)
        return tuple(Index.of(0) if size.constant == 1 else one % size for one, size in own)

    return pick(low, node, x, locate)


def constant(value: Any) -> Rule:
    def rule(low: Lowering, node: Node, *_: Any, **__: Any) -> Tensor:
        meta = value_of(node)
        return low.fill(node.name, meta, lambda at: scalar(value, meta.dtype))

    return rule


def scalar_tensor(low: Lowering, node: Node, value: Any, **_: Any) -> Any:
    return constant(value)(low, node)


def iota(low: Lowering, node: Node, length: Any, *, start: Any, step: Any, **_: Any) -> Tensor:
    meta = value_of(node)
    if meta.dtype not in (torch.int64, torch.int32):
        raise NoRuleError("positions are whole numbers")
    return low.fill(node.name, meta, lambda at: cast(At(at[0] * Index.of(step) + Index.of(start)), meta.dtype))


INDEXING: dict[str, Rule] = {
    "aten.embedding.default": embedding,
    "aten.gather.default": gather,
    "aten.index_select.default": index_select,
    "aten.index.Tensor": index,
    "aten._unsafe_index.Tensor": index,
    "aten.cat.default": concatenate,
    "aten.constant_pad_nd.default": constant_pad,
    "aten.slice_scatter.default": slice_scatter,
    "aten.select_scatter.default": select_scatter,
    "aten.flip.default": flip,
    "aten.roll.default": roll,
    "aten.repeat.default": repeat,
    "aten.full.default": second,
    "aten.full_like.default": second,
    "aten.fill.Scalar": second,
    "aten.fill.Tensor": second,
    "aten.zeros.default": constant(0),
    "aten.ones.default": constant(1),
    "aten.zeros_like.default": constant(0),
    "aten.ones_like.default": constant(1),
    "aten.scalar_tensor.default": scalar_tensor,
    "prims.iota.default": iota,
}
