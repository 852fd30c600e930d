"""Rules of pooling: what lies in a window becomes one expression, a term for each place in it; in large windows of an
average, a reduction. Backwards each input asks the windows that it may lie in, so nothing is added up in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from compiler.backend.ir import Loop
from compiler.backend.ir.expr import At, Const, Expr, Shape, cast, operation
from compiler.backend.ir.index import Index
from compiler.backend.ir.index_maps import position
from compiler.backend.lower.indexing import both, bounds, guard_bounds
from compiler.backend.lower.pointwise import scalar
from compiler.backend.lower.sizes import shape_of
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, checked_dtype, computing_dtype, walk
from compiler.backend.torch_glue.decompositions import LARGEST
from compiler.torch_api.fx import value_of


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the last dimensions of a tensor: in each, of `sizes`, `count` of them with this geometry."""

    sizes: Shape
    count: Shape
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The number of dimensions that windows lie over."""
        return len(self.kernel)

    @property
    def places(self) -> Iterator[tuple[int, ...]]:
        """The places in a window, in row-major order."""
        return product(*map(range, self.kernel))

    def coordinates(self, at: Shape, place: Sequence[Index | int]) -> Shape:
        """The coordinates of a place in the window of the result at `at`, which may lie in the padding."""
        geometry = zip(at[-self.rank :], place, self.stride, self.dilation, self.padding, strict=True)
        moved = tuple(own * stride + Index.of(step) * spread - pad for own, step, stride, spread, pad in geometry)
        return at[: -self.rank] + moved

    def element(self, x: Tensor, at: Shape, place: Sequence[Index | int], dtype: torch.dtype, padding: float) -> Expr:
        """What is at a place in the window of the result at `at`, in a dtype; in the padding a number."""
        inside = self.coordinates(at, place)
        return guard_bounds(inside[-self.rank :], self.sizes, cast(x.load(inside), dtype), padding)

    def covering_windows(self, at: Shape) -> list[tuple[Shape, tuple[int, ...]]]:
        """The windows that an input may lie in: their coordinates, and how many windows before the last one."""
        geometry = [*zip(at[-self.rank :], self.padding, self.stride, strict=True)]
        last = tuple((own + pad) // stride for own, pad, stride in geometry)
        reach = [(k - 1) * d // s + 1 for k, d, s in zip(self.kernel, self.dilation, self.stride, strict=True)]
        return [
            (at[: -self.rank] + tuple(place - step for place, step in zip(last, back, strict=True)), back)
            for back in product(*map(range, reach))
        ]


def windows(x: Tensor, result: Shape, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1) -> Windows:
    """Raises NoRuleError for a geometry that depends on sizes."""
    rank = 3 if isinstance(kernel, Sequence) and len(kernel) == 3 else 2

    def each(value: Any) -> tuple[int, ...]:
        values = tuple(value) if isinstance(value, Sequence) else (value,)
        if not all(isinstance(one, int) for one in values):
            raise NoRuleError("windows whose geometry depends on sizes")
        return values * rank if len(values) == 1 else values

    stride = each(kernel) if not stride else each(stride)
    return Windows(x.shape[-rank:], result[-rank:], each(kernel), stride, each(padding), each(dilation))


def check_unrolled_size(places: int) -> None:
    """Raises NoRuleError where too many places would be written out."""
    if places > LARGEST:
        raise NoRuleError(f"windows of {places} elements; expressions have {LARGEST} at most")


@dataclass(frozen=True, slots=True)
class Places(Tensor):
    """Places in the plane, one for each window; `taps` says the same as places in the window."""

    taps: Tensor


def max_pool(low: Lowering, node: Node, x: Tensor, *geometry: Any) -> tuple[Tensor, Tensor]:
    """The largest value of each window, and its place in the window: the first one, but of NaNs the last."""
    values, taps = value_of(node)
    over = windows(x, shape_of(values.shape), *geometry[:4])
    check_unrolled_size(math.prod(over.kernel))
    dtype = computing_dtype(checked_dtype(x.dtype))
    least = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    numbers = [(place, Const(number, torch.int32)) for number, place in enumerate(over.places)]

    def element(at: Shape, place: Sequence[int]) -> Expr:
        return over.element(x, at, place, dtype, least)

    def best(at: Shape) -> Expr:
        return cast(reduce(partial(operation, "maximum"), (element(at, place) for place in over.places)), x.dtype)

    kept = low.fill(f"{node.name}_values", values, best)

    def which(at: Shape) -> Expr:
        largest = cast(kept.load(at), dtype)
        found: Expr = numbers[0][1]
        for place, number in numbers if dtype.is_floating_point else ():
            found = operation("where", operation("isnan", element(at, place)), number, found)
        for place, number in reversed(numbers):
            conditions = bounds(over.coordinates(at, place)[-over.rank :], over.sizes)
            here = reduce(both, conditions, operation("eq", element(at, place), largest))
            found = operation("where", here, number, found)
        return cast(found, torch.int8)

    return kept, low.fill(f"{node.name}_taps", taps, which)


def most_of_many(_low: Lowering, node: Node, x: Tensor, *geometry: Any, **_: Any) -> Any:
    """Of ATen's operator where its decomposition (`torch_glue.decompositions`) leaves it as it is."""
    check_unrolled_size(math.prod(windows(x, shape_of(value_of(node)[0].shape), *geometry[:4]).kernel))
    raise NoRuleError("PyTorch's own kernel")


def places_of_taps(low: Lowering, node: Node, taps: Tensor, kernel: Any, sizes: Any, *geometry: Any) -> Places:
    """Places in the plane, of those in windows."""
    rank = len(kernel)
    sizes = tuple(size if isinstance(size, Index) else Index.of(size) for size in sizes)
    over = Windows(sizes, taps.shape[-rank:], tuple(kernel), *map(tuple, geometry))

    def value(at: Shape) -> Expr:
        tap = cast(taps.load(at), torch.int64)
        found: Expr = At(position(over.coordinates(at, (0,) * rank)[-rank:], over.sizes))
        for dim in range(rank):
            inner = scalar(math.prod(over.kernel[dim + 1 :]), torch.int64)
            step = operation("remainder", operation("floordiv", tap, inner), scalar(over.kernel[dim], torch.int64))
            unit = [Index.of(over.dilation[dim] if dim == other else 0) for other in range(rank)]
            found = operation("add", found, operation("mul", step, At(position(unit, over.sizes))))
        return found

    made = low.fill(node.name, value_of(node), value)
    return Places(made.buffer, made.dtype, made.shape, made.at, made.strided, taps)


def most_backward(low: Lowering, node: Node, gradient: Tensor, x: Tensor, *geometry: Any) -> Tensor:
    *shape, _ceil, chosen = geometry
    over = windows(x, gradient.shape, *shape)

    def share(at: Shape, window: Shape, back: Sequence[int], dtype: torch.dtype) -> Expr:
        is_own = _is_chosen(chosen, over, at, window, back)
        value = operation("where", is_own, cast(gradient.load(window), dtype), scalar(0, dtype))
        return guard_bounds(window[-over.rank :], over.count, value, 0)

    return gather_shares(low, node, over, share)


def gather_shares(low: Lowering, node: Node, over: Windows, share: Callable[..., Expr]) -> Tensor:
    """For each input the sum of its shares of the windows that it may lie in: `share(at, window, back, dtype)` is 0
    where there is no such window; see `Windows.around`.
    """
    meta = value_of(node)
    dtype = computing_dtype(checked_dtype(meta.dtype))

    def value(at: Shape) -> Expr:
        around = over.covering_windows(at)
        check_unrolled_size(len(around))
        return cast(reduce(partial(operation, "add"), (share(at, *window, dtype) for window in around)), meta.dtype)

    return low.fill(node.name, meta, value)


def _is_chosen(chosen: Tensor, over: Windows, at: Shape, window: Shape, back: Sequence[int]) -> Expr:
    """Whether what a window chose is the element at `at`; `back` is as in `Windows.around`."""
    if not isinstance(chosen, Places) or set(over.dilation) != {1}:
        return operation("eq", chosen.load(window), At(position(at[-over.rank :], over.sizes)))
    geometry = [*zip(at[-over.rank :], window[-over.rank :], over.stride, over.padding, strict=True)]
    steps = [own + pad - place * stride for own, place, stride, pad in geometry]
    tap = At(position(steps, [Index.of(size) for size in over.kernel]))
    beyond = [  # of the first dimension there is no such place in any window
        operation("lt", At(step), scalar(size, torch.int64))
        for step, size, stride, steps_back in [*zip(steps, over.kernel, over.stride, back, strict=True)][1:]
        if (steps_back + 1) * stride > size
    ]
    return reduce(both, beyond, operation("eq", cast(chosen.taps.load(window), torch.int64), tap))


@dataclass(frozen=True, slots=True)
class Divisor:
    """What the sum of a window is divided by: a number, or how many of its elements count."""

    over: Windows
    fixed: int | None
    with_padding: bool

    @staticmethod
    def from_arguments(over: Windows, ceil: bool, with_padding: bool, override: int | None) -> Divisor:
        is_whole = not ceil and (with_padding or not any(over.padding))
        return Divisor(over, override or (math.prod(over.kernel) if is_whole else None), with_padding)

    def value_at(self, window: Shape, dtype: torch.dtype) -> Expr:
        if self.fixed is not None:
            return scalar(self.fixed, dtype)
        over = self.over
        geometry = zip(window[-over.rank :], over.sizes, over.kernel, over.stride, over.padding, strict=True)
        return cast(reduce(partial(operation, "mul"), map(self._length, geometry)), dtype)

    def _length(self, geometry: tuple[Index, Index, int, int, int]) -> Expr:
        place, size, kernel, stride, pad = geometry
        start = place * stride - pad
        end = At(size + pad if self.with_padding else size)
        first: Expr = At(start)
        if not self.with_padding and pad:
            first = operation("maximum", first, Const(0, torch.int64))
        return operation("sub", operation("minimum", At(start + kernel), end), first)


Averages: TypeAlias = Callable[..., tuple[Windows, Divisor]]
"""What says from an operator's arguments which windows there are, and what their sums are divided by."""


def averages(
    x: Tensor, result: Shape, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> tuple[Windows, Divisor]:  # fmt: skip
    """What the arguments of ATen's averages say, in its words."""
    over = windows(x, result, kernel, stride, padding)
    return over, Divisor.from_arguments(over, ceil_mode, count_include_pad, divisor_override)


def average(of: Averages, low: Lowering, node: Node, x: Tensor, *geometry: Any) -> Tensor:
    meta = value_of(node)
    over, divisor = of(x, shape_of(meta.shape), *geometry)
    dtype = computing_dtype(checked_dtype(meta.dtype))
    if not dtype.is_floating_point:
        raise NoRuleError("averages of whole numbers")

    def element(at: Shape, place: Sequence[Index | int]) -> Expr:
        return over.element(x, at, place, dtype, 0)

    def unrolled_sum(at: Shape) -> Expr:
        return reduce(partial(operation, "add"), (element(at, place) for place in over.places))

    total: Callable[[Shape], Expr] = unrolled_sum
    if math.prod(over.kernel) > LARGEST:
        sums = low.temporary("sum", dtype, shape_of(meta.shape), x)
        ranges, at = walk(sums.shape, "i")
        reduced, place = walk([Index.of(size) for size in over.kernel], "r")
        low.append(Loop(sums.buffer, ranges, at, element(at, place), "sum", reduced))
        total = sums.load
    return low.fill(
        node.name, meta, lambda at: cast(operation("div", total(at), divisor.value_at(at, dtype)), meta.dtype)
    )


def average_backward(of: Averages, low: Lowering, node: Node, gradient: Tensor, x: Tensor, *geometry: Any) -> Tensor:
    over, divisor = of(x, gradient.shape, *geometry)

    def share(at: Shape, window: Shape, back: Sequence[int], dtype: torch.dtype) -> Expr:
        value = operation("div", cast(gradient.load(window), dtype), divisor.value_at(window, dtype))
        geometry = zip(at[-over.rank :], over.padding, over.stride, back, strict=True)
        steps = [(own + pad) % stride + stride * step for own, pad, stride, step in geometry]
        places, sizes = (*window[-over.rank :], *steps), (*over.count, *map(Index.of, over.kernel))
        return guard_bounds(places, sizes, value, 0)

    return gather_shares(low, node, over, share)


def equal_averages(x: Tensor, result: Shape, *_: Any) -> tuple[Windows, Divisor]:
    """Those of an adaptive average. Raises NoRuleError where windows are not of one size."""
    rank = 2
    sizes = [(a.constant, b.constant) for a, b in zip(x.shape[-rank:], result[-rank:], strict=True)]
    if not all(before and after and before % after == 0 for before, after in sizes):
        raise NoRuleError("windows that are not all equal, or not of a size that is known")
    kernel = tuple(before // after for before, after in sizes if before and after)
    return averages(x, result, kernel)


WINDOWS: dict[str, Rule] = {
    **{f"aten.max_pool{rank}d_with_indices.default": most_of_many for rank in (2, 3)},
    "prims._low_memory_max_pool_with_offsets.default": max_pool,
    "prims._low_memory_max_pool_offsets_to_indices.default": places_of_taps,
    "aten.max_pool2d_with_indices_backward.default": most_backward,
    "aten.max_pool3d_with_indices_backward.default": most_backward,
    **{f"aten.avg_pool{rank}d.default": partial(average, averages) for rank in (2, 3)},
    **{f"aten.avg_pool{rank}d_backward.default": partial(average_backward, averages) for rank in (2, 3)},
    "aten._adaptive_avg_pool2d.default": partial(average, equal_averages),
    "aten._adaptive_avg_pool2d_backward.default": partial(average_backward, equal_averages),
}
