"""Lowering rules of reductions and scans.

A reduction is one loop, its epilogue another one. Variances are computed in two passes, the mean first: that avoids the
cancellation of a single pass, and the second pass reads values that are in a cache or in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from compiler.backend.ir import SCANS, Loop
from compiler.backend.ir.expr import Const, Expr, Shape, cast, operation
from compiler.backend.ir.index import Index, product
from compiler.backend.ir.scalar import HALVES
from compiler.backend.lower.pointwise import as_bool, number, scalar
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, computing_dtype, walk

Value = Callable[[Expr, Shape], Expr]


def reduced_dims(x: Tensor, dims: Any) -> tuple[int, ...]:
    """Dimensions to reduce over, sorted and non-negative; None or an empty list means all."""
    if not x.shape or dims is None or (isinstance(dims, Sequence) and not dims):
        return tuple(range(len(x.shape)))
    return tuple(sorted({x.dimension(dim) for dim in ([dims] if isinstance(dims, int) else dims)}))


def kept_shape(x: Tensor, dims: Sequence[int]) -> Shape:
    """Shape with the reduced dimensions at size 1, as with keepdim=True."""
    return tuple(Index.of(1) if dim in dims else size for dim, size in enumerate(x.shape))


def count(x: Tensor, dims: Sequence[int]) -> Index:
    """Number of elements that are reduced to each element of the result."""
    return product(x.shape[dim] for dim in dims)


def reduce(low: Lowering, x: Tensor, dims: Sequence[int], name: str, target: Tensor, value: Value) -> Tensor:
    """Add a loop that reduces `x` over `dims` into `target`, and return `target`.

    The reduction `name` is applied to `value(element, coordinates)`. The target has the shape `kept_shape(x, dims)`, or
    lacks the reduced dimensions. If all of these have size 1, the loop has no reduction.
    """
    if name.removeprefix("arg") in ("max", "min") and any(x.shape[dim].constant == 0 for dim in dims):
        raise NoRuleError("the largest or smallest of no elements is an error")
    ranges, at = walk(kept_shape(x, dims), "i")
    reduced, inner = walk([size if dim in dims else Index.of(1) for dim, size in enumerate(x.shape)], "r")
    place = tuple(inner[dim] if dim in dims else at[dim] for dim in range(len(at)))
    index = at if len(target.shape) == len(at) else tuple(at[dim] for dim in range(len(at)) if dim not in dims)
    found = Const(0, torch.int64) if not reduced and name.startswith("arg") else value(x.load(place), at)
    low.append(Loop(target.buffer, ranges, index, found, name if reduced else "", reduced))
    return target


def finish_reduction(
    low: Lowering, x: Tensor, dims: Sequence[int], build: Callable[[Shape], Expr], suffix: str = "", meta: Any = None
) -> Tensor:
    """Add the epilogue: fill the result with `build(coordinates)`; coordinates are 0 in reduced dimensions."""

    def value(at: Shape) -> Expr:
        left = iter([place for dim, place in enumerate(at) if dim not in dims] if len(at) == len(x.shape) else at)
        return build(tuple(Index.of(0) if dim in dims else next(left) for dim in range(len(x.shape))))

    return low.fill(value, suffix, meta)


def reduction_rule(name: str, finish: Callable[[Expr, Index], Expr] | None = None) -> Rule:
    """Lowering rule for a reduction with an optional epilogue `finish`. Low precision is rounded once, at the end."""

    def rule(low: Lowering, x: Tensor, dim: Any = None, *_: Any, **__: Any) -> Tensor:
        meta, dims = low.meta, reduced_dims(x, dim)
        dtype = computing_dtype(meta.dtype)
        is_direct = finish is None and dtype == meta.dtype
        target = low.whole(low.node.name, meta) if is_direct else low.temporary(name, dtype, kept_shape(x, dims), x)
        reduce(low, x, dims, name, target, lambda value, _: _convert(value, dtype))
        if is_direct:
            return target

        def last(at: Shape) -> Expr:
            found = target.load(at)
            return cast(finish(found, count(x, dims)) if finish else found, meta.dtype)

        return finish_reduction(low, x, dims, last)

    return rule


def _convert(value: Expr, dtype: torch.dtype) -> Expr:
    return as_bool(cast_up(value)) if dtype == torch.bool else cast(value, dtype)


def cast_up(value: Expr) -> Expr:
    return cast(value, computing_dtype(value.dtype))


def mean_of(total: Expr, size: Index) -> Expr:
    return operation("div", total, scalar(size, total.dtype))


def truth(name: str) -> Rule:
    """Lowering rule for `any` or `all`. The rule raises NoRuleError for uint8, whose result is uint8 in PyTorch."""

    def rule(low: Lowering, x: Tensor, dim: Any = None, *_: Any, **__: Any) -> Tensor:
        if low.dtype != torch.bool:
            raise NoRuleError(f"{name} of uint8 is uint8")
        found: Tensor = reduction_rule(name)(low, x, dim)
        return found

    return rule


def position(name: str) -> Rule:
    """Lowering rule for argmax or argmin: the index along `dim`, or in the flattened tensor if `dim` is None."""

    def rule(low: Lowering, x: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Tensor:
        target = low.whole(low.node.name, low.meta)
        return reduce(low, x, reduced_dims(x, dim), name, target, lambda value, _: cast_up(value))

    return rule


def with_position(name: str) -> Rule:
    """Lowering rule for max or min along a dimension: the values and their indices."""

    def rule(low: Lowering, x: Tensor, dim: int, *_: Any, **__: Any) -> tuple[Tensor, ...]:
        if x.dtype in HALVES:
            raise NoRuleError("values and places at once, in low precision")
        kinds = zip((name, f"arg{name}"), ("values", "places"), low.meta, strict=True)
        made = [(kind, low.whole(f"{low.node.name}_{suffix}", meta)) for kind, suffix, meta in kinds]
        return tuple(reduce(low, x, reduced_dims(x, dim), kind, one, lambda value, _: value) for kind, one in made)

    return rule


def moments(low: Lowering, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Sum of squared deviations from the mean, and the mean, both of `kept_shape`."""
    dtype, shape = computing_dtype(x.dtype), kept_shape(x, dims)
    total = reduce(low, x, dims, "sum", low.temporary("sum", dtype, shape, x), lambda value, _: cast(value, dtype))
    center = low.temporary("center", dtype, shape, x)
    low.store(center, lambda at: mean_of(total.load(at), count(x, dims)))

    def square(value: Expr, at: Shape) -> Expr:
        distance = operation("sub", cast(value, dtype), center.load(at))
        return operation("mul", distance, distance)

    return reduce(low, x, dims, "sum", low.temporary("squares", dtype, shape, x), square), center


def variance(with_mean: bool, root: bool = False) -> Rule:
    def rule(low: Lowering, x: Tensor, dim: Any = None, *_: Any, correction: Any = 1, **__: Any) -> Any:
        if not computing_dtype(x.dtype).is_floating_point:
            raise NoRuleError("a variance of what is not a real floating point number")
        dims = reduced_dims(x, dim)
        squares, center = moments(low, x, dims)

        def spread(at: Shape) -> Expr:
            total = squares.load(at)
            freedom = _freedom(count(x, dims), 1 if correction is None else correction, total)
            found = operation("div", total, freedom)
            return cast(operation("sqrt", found) if root else found, x.dtype)

        if not with_mean:
            return finish_reduction(low, x, dims, spread)
        of_spread, of_mean = low.meta
        return (
            finish_reduction(low, x, dims, spread, "_variance", of_spread),
            finish_reduction(low, x, dims, lambda at: cast(center.load(at), x.dtype), "_mean", of_mean),
        )

    return rule


def scan(name: str) -> Rule:
    """Lowering rule for a scan along a dimension. On a GPU one program instance scans a whole row."""

    def rule(low: Lowering, x: Tensor, dim: int, **_: Any) -> Tensor:
        meta, node = low.meta, low.node
        dtype = computing_dtype(meta.dtype)
        if dtype == torch.bool:
            raise NoRuleError(f"a {name} of bools")
        dims = reduced_dims(x, dim)
        ranges, at = walk(kept_shape(x, dims), "i")
        reduced, along = walk([x.shape[axis] for axis in dims], "r")
        if not reduced:
            return low.fill(lambda at: _convert(x.load(at), meta.dtype))
        longest = low.thresholds.scan_length
        if meta.device.type != "cpu" and (reduced[0].size.constant or 0) > longest:
            raise NoRuleError(f"a row of more than {longest:,} elements is shared by several multiprocessors")
        place = (*at[: dims[0]], *along, *at[dims[0] + 1 :])
        total = low.whole(node.name if dtype == meta.dtype else f"{node.name}_total", meta)
        total = low.add(replace(low.buffers[total.buffer], dtype=dtype))
        low.append(Loop(total.buffer, ranges, place, _convert(x.load(place), dtype), name, reduced))
        return total if dtype == meta.dtype else low.fill(lambda at: cast(total.load(at), meta.dtype))

    return rule


def _freedom(size: Index, correction: float, like: Expr) -> Expr:
    """Degrees of freedom, at least 0, so that a variance of too few values is NaN or infinite as in eager mode."""
    if size.constant is not None:
        return number(max(size.constant - correction, 0), like)
    left = operation("sub", cast(size, like.dtype), number(correction, like))
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
