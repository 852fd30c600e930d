"""Lowering rules of views: they make no loops, only coordinates change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compiler.backend.ir import Strided
from compiler.backend.ir.expr import Shape
from compiler.backend.ir.index import Index, is_below, is_natural, position, scalar_product
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, contiguous, index_of, shape_of, strides_of
from compiler.torch_api.fx import value_of


def alias(low: Lowering, x: Tensor, *_: Any) -> Tensor:
    return low.view(x, lambda at: at)


def reshape(low: Lowering, x: Tensor, *_: Any) -> Tensor:
    shape = shape_of(low.meta.shape)
    return low.view(x, lambda at: reshape_coordinates(at, shape, x.shape))


def reshape_coordinates(at: Shape, shape: Shape, before: Shape) -> Shape:
    """Coordinates in a tensor of shape `before`, for coordinates `at` in its view of shape `shape`."""
    if any(size.constant == 0 for size in before):
        return (Index.of(0),) * len(before)
    left, found = position(at, shape), []
    for size in reversed(before[1:]):
        found.append(left % size)
        left = left // size
    return tuple(reversed([*found, left])) if before else ()


def permute(low: Lowering, x: Tensor, dims: list[int]) -> Tensor:
    order = [x.dimension(dim) for dim in dims]
    return low.view(x, lambda at: tuple(at[order.index(dim)] for dim in range(len(order))))


def transpose(low: Lowering, x: Tensor, first: int = 0, second: int = 1) -> Tensor:
    order = list(range(len(x.shape)))
    if order:
        first, second = x.dimension(first), x.dimension(second)
        order[first], order[second] = order[second], order[first]
    return permute(low, x, order)


def expand(low: Lowering, x: Tensor, *_: Any, **__: Any) -> Tensor:
    added = len(low.meta.shape) - len(x.shape)
    shape = shape_of(low.meta.shape)[added:]

    def change(at: Shape) -> Shape:
        own = zip(at[added:], x.shape, shape, strict=True)
        return tuple(Index.of(0) if size.constant == 1 and wide.constant != 1 else place for place, size, wide in own)

    return low.view(x, change)


def unsqueeze(low: Lowering, x: Tensor, dim: int) -> Tensor:
    dim = dim % (len(x.shape) + 1)
    return low.view(x, lambda at: at[:dim] + at[dim + 1 :])


def squeeze(low: Lowering, x: Tensor, dims: int | list[int] | None = None) -> Tensor:
    asked = range(len(x.shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {x.dimension(dim) for dim in asked}
    gone = {dim for dim in gone if x.shape and x.shape[dim].constant == 1}

    def change(at: Shape) -> Shape:
        left = iter(at)
        return tuple(Index.of(0) if dim in gone else next(left) for dim in range(len(x.shape)))

    return low.view(x, change)


def select(low: Lowering, x: Tensor, dim: int, index: Any) -> Tensor:
    dim = x.dimension(dim)
    return _row(low, x, dim, from_front(index, x.shape[dim]))


def from_front(position: Any, size: Index) -> Index:
    """Make an index, which may count from the end, non-negative. Raises NoRuleError if its sign depends on sizes."""
    found = Index.of(position)
    if found.constant is None and not is_natural(found):
        raise NoRuleError("whether the position counts from the end depends on sizes")
    return found if is_natural(found) else size + found


def slice_view(low: Lowering, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    dim = x.dimension(dim)
    return _part(low, x, dim, slice_start(start, x.shape[dim]), step)


def slice_start(start: Any, size: Index) -> Index:
    """Start of a slice, clamped to [0, size]. Raises NoRuleError if clamping depends on symbolic sizes."""
    first = Index.of(0) if start is None else Index.of(start)
    if size.constant is not None and first.constant is not None:
        place = first.constant + (size.constant if first.constant < 0 else 0)
        return Index.of(min(max(place, 0), size.constant))
    if is_below(first, Index.of(0)):
        first = size + first
    if first.constant == 0 or (is_natural(first) and is_below(first, size)):
        return first
    raise NoRuleError("where the slice starts depends on sizes")


def split(low: Lowering, x: Tensor, sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    dim = x.dimension(dim)
    pieces, start = [], Index.of(0)
    for meta in low.meta:
        pieces.append(_part(low, x, dim, start, meta=meta))
        start = start + shape_of(meta.shape)[dim]
    return tuple(pieces)


def _part(low: Lowering, x: Tensor, dim: int, start: Index, step: int = 1, meta: Any = None) -> Tensor:
    return low.view(x, lambda at: (*at[:dim], start + at[dim] * step, *at[dim + 1 :]), meta)


def unbind(low: Lowering, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    dim = x.dimension(dim)
    return tuple(_row(low, x, dim, Index.of(place), meta) for place, meta in enumerate(low.meta))


def _row(low: Lowering, x: Tensor, dim: int, place: Index, meta: Any = None) -> Tensor:
    return low.view(x, lambda at: (*at[:dim], place, *at[dim:]), meta)


def diagonal(low: Lowering, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rows, columns = x.dimension(dim1), x.dimension(dim2)

    def change(at: Shape) -> Shape:
        others, along = iter(at[:-1]), at[-1]
        places = {rows: along + max(-offset, 0), columns: along + max(offset, 0)}
        return tuple(places[dim] if dim in places else next(others) for dim in range(len(x.shape)))

    return low.view(x, change)


def unfold(low: Lowering, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    dim = x.dimension(dim)
    if not x.shape:
        return low.view(x, lambda at: ())
    return low.view(x, lambda at: (*at[:dim], at[dim] * step + at[-1], *at[dim + 1 : -1]))


def as_strided(low: Lowering, x: Tensor, *_: Any) -> Tensor:
    """Lowering rule for aten.as_strided of a contiguous buffer, as torch uses it to merge dimensions."""
    meta, buffer = low.meta, low.buffers[x.buffer]
    shape, strides = shape_of(meta.shape), strides_of(meta)
    first = x.strided.offset + index_of(meta.storage_offset() - value_of(low.node.all_input_nodes[0]).storage_offset())
    last = scalar_product(tuple(size - 1 for size in shape), strides) + first
    sizes = [size.constant for size in (*buffer.shape, *shape, last, first)]
    if None in sizes or 0 in sizes[: len(buffer.shape) + len(shape)]:
        raise NoRuleError("its sizes are not known, or it is empty")
    if buffer.strides != contiguous(buffer.shape) or (first.constant or 0) < 0 or not is_below(last, buffer.size):
        raise NoRuleError("memory that does not lie row by row, or is not all there")

    def place(at: Shape) -> Shape:
        return reshape_coordinates((first + scalar_product(at, strides),), (buffer.size,), buffer.shape)

    return replace(x, shape=shape, at=place, strided=Strided(buffer.name, shape, strides, first))


def getitem(low: Lowering, values: Any, place: int | str) -> Any:
    return values[place]


VIEWS: dict[str, Rule] = {
    **{f"aten.{name}.default": alias for name in ("alias", "detach", "lift_fresh", "view_of")},
    **{f"aten.{name}.default": reshape for name in ("view", "_unsafe_view", "reshape")},
    "prims.view_of.default": alias,
    "aten.permute.default": permute,
    "aten.transpose.int": transpose,
    "aten.t.default": transpose,
    "aten.expand.default": expand,
    "aten.unsqueeze.default": unsqueeze,
    **{f"aten.squeeze.{kind}": squeeze for kind in ("default", "dim", "dims")},
    "aten.select.int": select,
    "aten.slice.Tensor": slice_view,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split,
    "aten.unbind.int": unbind,
    "aten.diagonal.default": diagonal,
    "aten.unfold.default": unfold,
    "aten.as_strided.default": as_strided,
    "<built-in function getitem>": getitem,
}
