"""Rules of operators that reduce: over some dimensions, or all.

What comes of a reduction has a loop of its own, and what is done with it next is another one. Variances are computed
in two passes, the mean first: exact where one pass would cancel, and the values are near by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from compiler.backend.ir import SCANS, Loop
from compiler.backend.ir.expr import At, Const, Expr, Shape, cast, operation
from compiler.backend.ir.index import Index, product
from compiler.backend.lower.pointwise import as_bool, number, scalar
from compiler.backend.lower.value import (
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

Value = Callable[[Expr, Shape], Expr]
LONGEST_SCAN = 2**16


def reduced_dims(x: Tensor, dims: Any) -> tuple[int, ...]:
    """The dimensions to reduce over, from the front; none given means all."""
    if not x.shape or dims is None or (isinstance(dims, Sequence) and not dims):
        return tuple(range(len(x.shape)))
    return tuple(sorted({dimension(dim, len(x.shape)) for dim in ([dims] if isinstance(dims, int) else dims)}))


def kept_shape(x: Tensor, dims: Sequence[int]) -> Shape:
    """The shape with the reduced dimensions at size 1."""
    return tuple(Index.of(1) if dim in dims else size for dim, size in enumerate(x.shape))


def count(x: Tensor, dims: Sequence[int]) -> Index:
    """How many elements are reduced to one."""
    return product(x.shape[dim] for dim in dims)


def reduce(low: Lowering, x: Tensor, dims: Sequence[int], name: str, target: Tensor, value: Value) -> None:
    """A loop that fills `target`, of `kept_shape` or that without the reduced dimensions, with the reduction `name` of
    `value(element, kept coordinates)`. Where each is over one element, there is nothing to reduce.
    """
    if name.removeprefix("arg") in ("max", "min") and any(x.shape[dim].constant == 0 for dim in dims):
        raise NoRuleError("the largest or smallest of no elements is an error")
    ranges, at = walk(kept_shape(x, dims), "i")
    reduced, inner = walk([size if dim in dims else Index.of(1) for dim, size in enumerate(x.shape)], "r")
    place = tuple(inner[dim] if dim in dims else at[dim] for dim in range(len(at)))
    index = at if len(target.shape) == len(at) else tuple(at[dim] for dim in range(len(at)) if dim not in dims)
    found = value(x.load(place), at)
    if reduced:
        low.append(Loop(target.buffer, ranges, index, found, name, reduced))
    else:
        low.append(Loop(target.buffer, ranges, index, Const(0, torch.int64) if name.startswith("arg") else found))


def finish_reduction(low: Lowering, meta: Any, name: str, x: Tensor, dims: Sequence[int], build: Any) -> Tensor:
    """The result at `meta`: `build` of its place with the reduced dimensions at 0."""

    def value(at: Shape) -> Expr:
        if len(at) == len(x.shape):
            return build(tuple(Index.of(0) if dim in dims else place for dim, place in enumerate(at)))
        left = iter(at)
        return build(tuple(Index.of(0) if dim in dims else next(left) for dim in range(len(x.shape))))

    return low.fill(name, meta, value)


def reduction_rule(name: str, finish: Callable[[Expr, Index], Expr] | None = None) -> Rule:
    """One reduction. What low precision sums up to is rounded once, at the end."""

    def rule(low: Lowering, node: Node, x: Tensor, dim: Any = None, *_: Any, **__: Any) -> Tensor:
        meta = value_of(node)
        dims = reduced_dims(x, dim)
        dtype = computing_dtype(checked_dtype(meta.dtype))
        checked_dtype(x.dtype)
        if finish is None and dtype == meta.dtype:
            target = low.whole(node.name, meta)
            reduce(low, x, dims, name, target, lambda value, _: _convert(value, dtype))
            return target
        total = low.temporary(name, dtype, kept_shape(x, dims), x)
        reduce(low, x, dims, name, total, lambda value, _: _convert(value, dtype))
        size = count(x, dims)

        def last(at: Shape) -> Expr:
            found = total.load(at)
            return cast(finish(found, size) if finish else found, meta.dtype)

        return finish_reduction(low, meta, node.name, x, dims, last)

    return rule


def _convert(value: Expr, dtype: torch.dtype) -> Expr:
    return as_bool(cast_up(value)) if dtype == torch.bool else cast(value, dtype)


def cast_up(value: Expr) -> Expr:
    return cast(value, computing_dtype(value.dtype))


def mean_of(total: Expr, size: Index) -> Expr:
    return operation("div", total, scalar(size, total.dtype))


def truth(name: str) -> Rule:
    """Any or all; of bytes PyTorch makes a byte."""

    def rule(low: Lowering, node: Node, x: Tensor, dim: Any = None, *_: Any, **__: Any) -> Tensor:
        if value_of(node).dtype != torch.bool:
            raise NoRuleError(f"{name} of uint8 is uint8")
        return reduction_rule(name)(low, node, x, dim)

    return rule


def position(name: str) -> Rule:
    """The place of the largest or smallest value: in the dimension, or for None in the tensor seen as a row."""

    def rule(low: Lowering, node: Node, x: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Tensor:
        checked_dtype(x.dtype)
        target = low.whole(node.name, value_of(node))
        reduce(low, x, reduced_dims(x, dim), name, target, lambda value, _: cast_up(value))
        return target

    return rule


def with_position(name: str) -> Rule:
    """The largest or smallest value along a dimension and its place."""

    def rule(low: Lowering, node: Node, x: Tensor, dim: int, *_: Any, **__: Any) -> tuple[Tensor, ...]:
        checked_dtype(x.dtype)
        values, places = value_of(node)
        dims = reduced_dims(x, dim)
        if x.dtype in (torch.float16, torch.bfloat16):
            raise NoRuleError("values and places at once, in low precision")
        best, place = low.whole(f"{node.name}_values", values), low.whole(f"{node.name}_places", places)
        reduce(low, x, dims, name, best, lambda value, _: value)
        reduce(low, x, dims, f"arg{name}", place, lambda value, _: value)
        return best, place

    return rule


def moments(low: Lowering, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Callable[[Shape], Expr]]:
    """The sum of squared distances from the mean, and the mean at a place."""
    dtype = computing_dtype(x.dtype)
    total = low.temporary("sum", dtype, kept_shape(x, dims), x)
    reduce(low, x, dims, "sum", total, lambda value, _: cast(value, dtype))
    size = count(x, dims)
    center = low.temporary("center", dtype, kept_shape(x, dims), x)
    variables, at = walk(center.shape, "i")
    low.append(Loop(center.buffer, variables, at, mean_of(total.load(at), size)))
    squares = low.temporary("squares", dtype, kept_shape(x, dims), x)

    def square(value: Expr, at: Shape) -> Expr:
        distance = operation("sub", cast(value, dtype), center.load(at))
        return operation("mul", distance, distance)

    reduce(low, x, dims, "sum", squares, square)
    return squares, center.load


def variance(with_mean: bool, root: bool = False) -> Rule:
    def rule(low: Lowering, node: Node, x: Tensor, dim: Any = None, *_: Any, correction: Any = 1, **__: Any) -> Any:
        if not checked_dtype(x.dtype).is_floating_point:
            raise NoRuleError("a variance of what is not a real floating point number")
        dims = reduced_dims(x, dim)
        squares, center = moments(low, x, dims)
        size = count(x, dims)
        metas = value_of(node) if with_mean else (value_of(node),)

        def spread(at: Shape) -> Expr:
            total = squares.load(at)
            found = operation("div", total, _freedom(size, 1 if correction is None else correction, total))
            return cast(operation("sqrt", found) if root else found, x.dtype)

        suffixes = ("variance", "mean") if with_mean else ("",)
        builds = (spread, lambda at: cast(center(at), x.dtype))
        results = tuple(
            finish_reduction(low, meta, f"{node.name}_{suffix}" if suffix else node.name, x, dims, build)
            for meta, suffix, build in zip(metas, suffixes, builds[: len(suffixes)], strict=True)
        )
        return results if with_mean else results[0]

    return rule


def scan(name: str) -> Rule:
    """What a reduction comes to at each element along a dimension. On a GPU one program goes along a row."""

    def rule(low: Lowering, node: Node, x: Tensor, dim: int, **_: Any) -> Tensor:
        meta = value_of(node)
        dtype = computing_dtype(checked_dtype(meta.dtype))
        checked_dtype(x.dtype)
        if dtype == torch.bool:
            raise NoRuleError(f"a {name} of bools")
        dims = reduced_dims(x, dim)
        ranges, at = walk(kept_shape(x, dims), "i")
        reduced, along = walk([x.shape[axis] for axis in dims], "r")
        if not reduced:
            return low.fill(node.name, meta, lambda at: _convert(x.load(at), meta.dtype))
        if meta.device.type != "cpu" and (reduced[0].size.constant or 0) > LONGEST_SCAN:
            raise NoRuleError(f"a row of more than {LONGEST_SCAN:,} elements is shared by several multiprocessors")
        place = (*at[: dims[0]], *along, *at[dims[0] + 1 :])
        total = low.whole(node.name if dtype == meta.dtype else f"{node.name}_total", meta)
        total = low.add(replace(low.buffers[total.buffer], dtype=dtype))
        low.append(Loop(total.buffer, ranges, place, _convert(x.load(place), dtype), name, reduced))
        if dtype == meta.dtype:
            return total
        return low.fill(node.name, meta, lambda at: cast(total.load(at), meta.dtype))

    return rule


def _freedom(size: Index, correction: float, like: Expr) -> Expr:
    """Degrees of freedom: never below 0, so that a variance of too few values is NaN or infinite as in eager mode."""
    if size.constant is not None:
        return number(max(size.constant - correction, 0), like)
    left = operation("sub", cast(At(size), like.dtype), number(correction, like))
    return operation("maximum", left, number(0, like))


REDUCTIONS: dict[str, Rule] = {
    **{f"aten.sum.{kind}": reduction_rule("sum") for kind in ("default", "dim_IntList")},
    **{f"aten.prod.{kind}": reduction_rule("prod") for kind in ("default", "dim_int")},
    **{f"aten.mean.{kind}": reduction_rule("sum", mean_of) for kind in ("default", "dim")},
    **{f"aten.{name}.default": reduction_rule(how) for name, how in (("amax", "max"), ("amin", "min"))},
    **{f"aten.{name}.default": reduction_rule(name) for name in ("max", "min")},
    **{f"aten.{name}.dim": with_position(name) for name in ("max", "min")},
    **{f"aten.{name}.{kind}": truth(name) for name in ("any", "all") for kind in ("default", "dim", "dims")},
    **{f"aten.{name}.default": position(name) for name in ("argmax", "argmin")},
    **{f"aten.{name}.default": scan(name) for name in SCANS},
    "aten.var.correction": variance(with_mean=False),
    "aten.std.correction": variance(with_mean=False, root=True),
    "aten.var_mean.correction": variance(with_mean=True),
}
