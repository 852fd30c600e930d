"""Lowering rules of pooling. The value of a window is one expression with a term for each of its elements, or for
large average windows a reduction. In a backward each input element sums its shares in the gradients of the windows
that cover it, without atomic adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from typing import Any, TypeAlias

import torch

from compiler.backend.ir.expr import Const, Expr, Shape, cast, operation
from compiler.backend.ir.index import Index, position
from compiler.backend.lower.indexing import both, bounds, guard_bounds
from compiler.backend.lower.pointwise import scalar
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, Value, computing_dtype, shape_of, walk
from compiler.backend.torch_glue.decompositions import LARGEST


@dataclass(frozen=True, slots=True)
class Windows:
    """Pooling windows over the last dimensions of a tensor. `sizes` are the sizes of these dimensions, `count` is the
    number of windows along each dimension.
    """

    sizes: Shape
    count: Shape
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of pooled dimensions."""
        return len(self.kernel)

    @property
    def places(self) -> Iterator[tuple[int, ...]]:
        """Positions within a window, in row-major order."""
        return product(*map(range, self.kernel))

    def coordinates(self, at: Shape, place: Sequence[Index | int]) -> Shape:
        """Input coordinates of a position within the window of the result element `at`; may lie in the padding."""
        geometry = zip(at[-self.rank :], place, self.stride, self.dilation, self.padding, strict=True)
        moved = tuple(own * stride + Index.of(step) * spread - pad for own, step, stride, spread, pad in geometry)
        return at[: -self.rank] + moved

    def element(self, x: Tensor, at: Shape, place: Sequence[Index | int], dtype: torch.dtype, padding: float) -> Expr:
        """Input element at a position within the window of the result element `at`, or `padding` outside the input."""
        inside = self.coordinates(at, place)
        return guard_bounds(inside[-self.rank :], self.sizes, cast(x.load(inside), dtype), padding)

    def covering_windows(self, at: Shape) -> list[tuple[Shape, tuple[int, ...]]]:
        """Windows that may cover an input element: coordinates, and distance from the last such window by dimension."""
        geometry = [*zip(at[-self.rank :], self.padding, self.stride, strict=True)]
        last = tuple((own + pad) // stride for own, pad, stride in geometry)
        reach = [(k - 1) * d // s + 1 for k, d, s in zip(self.kernel, self.dilation, self.stride, strict=True)]
        return [
            (at[: -self.rank] + tuple(place - step for place, step in zip(last, back, strict=True)), back)
            for back in product(*map(range, reach))
        ]


def windows(x: Tensor, result: Shape, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1) -> Windows:
    """Parse the geometry of a pooling. Raises NoRuleError if it depends on symbolic sizes."""
    rank = 3 if isinstance(kernel, Sequence) and len(kernel) == 3 else 2

    def each(value: Any) -> tuple[int, ...]:
        values = tuple(value) if isinstance(value, Sequence) else (value,)
        if not all(isinstance(one, int) for one in values):
            raise NoRuleError("windows whose geometry depends on sizes")
        return values * rank if len(values) == 1 else values

    stride = each(kernel) if not stride else each(stride)
    return Windows(x.shape[-rank:], result[-rank:], each(kernel), stride, each(padding), each(dilation))


def check_unrolled_size(places: int) -> None:
    """Raise NoRuleError if an expression would have too many terms."""
    if places > LARGEST:
        raise NoRuleError(f"windows of {places} elements; expressions have {LARGEST} at most")


@dataclass(frozen=True, slots=True)
class Places(Tensor):
    """Flat input indices, one for each window of a max pooling; `taps` has them as positions within the windows."""

    taps: Tensor


def max_pool(low: Lowering, x: Tensor, *geometry: Any) -> tuple[Tensor, Tensor]:
    """Lowering rule for max pooling: each window's maximum, and the position of its first maximum or its last NaN."""
    values, taps = low.meta
    over = windows(x, shape_of(values.shape), *geometry[:4])
    check_unrolled_size(math.prod(over.kernel))
    dtype = computing_dtype(x.dtype)
    least = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    numbers = [(place, Const(number, torch.int32)) for number, place in enumerate(over.places)]

    def element(at: Shape, place: Sequence[int]) -> Expr:
        return over.element(x, at, place, dtype, least)

    def best(at: Shape) -> Expr:
        return cast(reduce(partial(operation, "maximum"), (element(at, place) for place in over.places)), x.dtype)

    kept = low.fill(best, "_values", values)

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

    return kept, low.fill(which, "_taps", taps)


def most_of_many(low: Lowering, x: Tensor, *geometry: Any, **_: Any) -> Any:
    """Raise NoRuleError for aten.max_pool*_with_indices that `torch_glue.decompositions` did not decompose."""
    check_unrolled_size(math.prod(windows(x, shape_of(low.meta[0].shape), *geometry[:4]).kernel))
    raise NoRuleError("PyTorch's own kernel")


def places_of_taps(low: Lowering, taps: Tensor, kernel: Any, sizes: Any, *geometry: Any) -> Places:
    """Convert positions within windows to flat input indices."""
    rank = len(kernel)
    sizes = tuple(size if isinstance(size, Index) else Index.of(size) for size in sizes)
    over = Windows(sizes, taps.shape[-rank:], tuple(kernel), *map(tuple, geometry))

    def value(at: Shape) -> Expr:
        tap = cast(taps.load(at), torch.int64)
        found: Expr = position(over.coordinates(at, (0,) * rank)[-rank:], over.sizes)
        for dim in range(rank):
            inner = scalar(math.prod(over.kernel[dim + 1 :]), torch.int64)
            step = operation("remainder", operation("floordiv", tap, inner), scalar(over.kernel[dim], torch.int64))
            unit = [Index.of(over.dilation[dim] if dim == other else 0) for other in range(rank)]
            found = operation("add", found, operation("mul", step, position(unit, over.sizes)))
        return found

    made = low.fill(value)
    return Places(made.buffer, made.dtype, made.shape, made.at, made.strided, taps)


def most_backward(low: Lowering, gradient: Tensor, x: Tensor, *geometry: Any) -> Tensor:
    *shape, _ceil, chosen = geometry
    over = windows(x, gradient.shape, *shape)

    def share(at: Shape, window: Shape, back: Sequence[int], dtype: torch.dtype) -> Expr:
        is_own = _is_chosen(chosen, over, at, window, back)
        value = operation("where", is_own, cast(gradient.load(window), dtype), scalar(0, dtype))
        return guard_bounds(window[-over.rank :], over.count, value, 0)

    return gather_shares(low, over, share)


def gather_shares(low: Lowering, over: Windows, share: Callable[..., Expr]) -> Tensor:
    """Fill the gradient of the input: for each element, the sum of its shares in the gradients of the windows that may
    cover it. `share(at, window, back, dtype)` is 0 for windows out of bounds; see `Windows.covering_windows`.
    """
    dtype = computing_dtype(low.dtype)

    def value(at: Shape) -> Expr:
        around = over.covering_windows(at)
        check_unrolled_size(len(around))
        return cast(reduce(partial(operation, "add"), (share(at, *window, dtype) for window in around)), low.dtype)

    return low.fill(value)


def _is_chosen(chosen: Tensor, over: Windows, at: Shape, window: Shape, back: Sequence[int]) -> Expr:
    """Condition that the forward chose the element at `at` in a window; `back` is as in `Windows.covering_windows`."""
    if not isinstance(chosen, Places) or set(over.dilation) != {1}:
        return operation("eq", chosen.load(window), position(at[-over.rank :], over.sizes))
    geometry = [*zip(at[-over.rank :], window[-over.rank :], over.stride, over.padding, strict=True)]
    steps = [own + pad - place * stride for own, place, stride, pad in geometry]
    tap = position(steps, [Index.of(size) for size in over.kernel])
    beyond = [  # the first dimension needs no check: its position would exceed any tap
        operation("lt", step, scalar(size, torch.int64))
        for step, size, stride, steps_back in [*zip(steps, over.kernel, over.stride, back, strict=True)][1:]
        if (steps_back + 1) * stride > size
    ]
    return reduce(both, beyond, operation("eq", cast(chosen.taps.load(window), torch.int64), tap))


Divisor: TypeAlias = Callable[[Shape, torch.dtype], Expr]
"""Function from a window's coordinates and a dtype to the divisor of its sum: a constant, or its number of elements."""
Averages: TypeAlias = Callable[..., tuple[Windows, Divisor]]
"""Function that parses an operator's arguments, and returns the windows and the divisor of their sums."""


def count_elements(over: Windows, with_padding: bool, window: Shape, dtype: torch.dtype) -> Expr:
    """Number of a window's elements that lie in the tensor or, if `with_padding`, in the tensor and its padding."""

    def length(place: Index, size: Index, kernel: int, stride: int, pad: int) -> Expr:
        start = place * stride - pad
        end, first = size + pad if with_padding else size, start
        is_cut = pad and not with_padding
        first_inside = operation("maximum", first, Const(0, torch.int64)) if is_cut else first
        return operation("sub", operation("minimum", start + kernel, end), first_inside)

    lengths = map(length, window[-over.rank :], over.sizes, over.kernel, over.stride, over.padding)
    return cast(reduce(partial(operation, "mul"), lengths), dtype)


def averages(
    x: Tensor, result: Shape, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> tuple[Windows, Divisor]:  # fmt: skip
    """Parse the arguments of ATen's average pooling."""
    over = windows(x, result, kernel, stride, padding)
    is_whole = not ceil_mode and (count_include_pad or not any(over.padding))
    if fixed := divisor_override or (math.prod(over.kernel) if is_whole else None):
        return over, lambda _, dtype: scalar(fixed, dtype)
    return over, partial(count_elements, over, count_include_pad)


def average(of: Averages, low: Lowering, x: Tensor, *geometry: Any) -> Tensor:
    shape, dtype = shape_of(low.meta.shape), computing_dtype(low.dtype)
    over, divisor = of(x, shape, *geometry)
    if not dtype.is_floating_point:
        raise NoRuleError("averages of whole numbers")

    def element(at: Shape, place: Sequence[Index | int]) -> Expr:
        return over.element(x, at, place, dtype, 0)

    def total(at: Shape) -> Expr:
        return reduce(partial(operation, "add"), (element(at, place) for place in over.places))

    load: Value = total
    if math.prod(over.kernel) > LARGEST:
        reduced, place = walk([Index.of(size) for size in over.kernel], "r")
        load = low.store(low.temporary("sum", dtype, shape, x), lambda at: element(at, place), "sum", reduced).load
    return low.fill(lambda at: cast(operation("div", load(at), divisor(at, dtype)), low.dtype))


def average_backward(of: Averages, low: Lowering, gradient: Tensor, x: Tensor, *geometry: Any) -> Tensor:
    over, divisor = of(x, gradient.shape, *geometry)

    def share(at: Shape, window: Shape, back: Sequence[int], dtype: torch.dtype) -> Expr:
        value = operation("div", cast(gradient.load(window), dtype), divisor(window, dtype))
        geometry = zip(at[-over.rank :], over.padding, over.stride, back, strict=True)
        steps = [(own + pad) % stride + stride * step for own, pad, stride, step in geometry]
        places, sizes = (*window[-over.rank :], *steps), (*over.count, *map(Index.of, over.kernel))
        return guard_bounds(places, sizes, value, 0)

    return gather_shares(low, over, share)


def equal_averages(x: Tensor, result: Shape, *_: Any) -> tuple[Windows, Divisor]:
    """Parse the arguments of adaptive average pooling. Raises NoRuleError if windows differ in size."""
    sizes = [(a.constant, b.constant) for a, b in zip(x.shape[-2:], result[-2:], strict=True)]
    if not all(before and after and before % after == 0 for before, after in sizes):
        raise NoRuleError("windows that are not all equal, or not of a size that is known")
    return averages(x, result, tuple(before // after for before, after in sizes if before and after))


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
