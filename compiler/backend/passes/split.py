"""Pass, for GPUs: split a long reduction with few results in two, so that all multiprocessors have work.

A reduction over contiguous runs that are shorter than a cache line is split too, such as one over groups of channels
in channels-last memory: each position in a run gets its own partial results, so that programs read adjacent elements.

The first reduction computes partial results, the second reduces them. The parts are equal if a loop's size or one
of its divisors allows it; then the producer can still be fused with the first reduction. Otherwise the last part is
shorter, and a guard masks its end. `argmax` and `argmin` are not split.

A variance over equal parts is combined from the variances of the parts and the deviations of their means from the
total mean (Chan, Golub and LeVeque, 1979). So the input is read only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from compiler.backend.ir import Buffer, Kernel, Loop, Program, Step
from compiler.backend.ir.expr import Const, Expr, Guard, Load, Op, cast, loads, operation, with_index
from compiler.backend.ir.index import Index, Var, divisors, factor_of, product
from compiler.backend.ir.scalar import neutral
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import access_slowdown, contiguous_run, offsets, points_along
from compiler.backend.passes.order import sort_reduced_ranges
from compiler.backend.passes.simplify import fold


def split(program: Program, ctx: Context) -> Program:
    """Split long reductions into two steps."""
    if not ctx.processors:
        return program
    loops = {kernel.targets[0]: kernel.loops[0] for kernel in program.kernels}
    centers = (_center(loop, loops) for loop in loops.values())
    state = _Splitting(program, loops, frozenset(found[2] for found in centers if found))
    steps = tuple(new for step in program.steps for new in state.steps(step, ctx))
    buffers = program.buffers + tuple(state.buffers)
    return replace(program, steps=steps, buffers=buffers) if state.buffers else program


@dataclass(slots=True)
class _Splitting:
    program: Program
    loops: Mapping[str, Loop]
    centered: Set[str]
    made: dict[str, Parts] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)

    def steps(self, step: Step, ctx: Context) -> Iterator[Step]:
        """The steps that replace `step`, or `step` itself."""
        if not isinstance(step, Kernel):
            yield step
        elif (found := self.mean_and_parts(step.loops[0])) is not None:
            yield from self.combine_variance(step.loops[0], *found, ctx)
        elif (parts := self.parts(step, ctx)) is not None:
            self.made[step.targets[0]] = parts
            self.buffers.append(parts.buffer)
            yield from (_kernel(parts.first), _kernel(parts.second))
        else:
            yield step

    def parts(self, kernel: Kernel, ctx: Context) -> Parts | None:
        """Split a reduction in two; None if that is not worth it. A split only for a variance needs equal parts."""
        if len(kernel.loops) != 1 or not kernel.reduced or kernel.loops[0].reduction.startswith(("arg", "cum")):
            return None
        width = self.width(kernel.loops[0])
        kernel = sort_reduced_ranges(kernel, self.program, ctx)
        (loop,) = kernel.loops
        if (short := _short_range(kernel, self.program, ctx, width)) is not None:
            by_columns, reduced = True, (short, *(var for var in loop.reduced if var != short))
            wanted = ctx.number(short.size) * _count_column_parts(loop, short, ctx)
            reason = f"lie in runs of {ctx.number(short.size) * width} bytes"
        else:
            by_columns, reduced = _is_by_columns(kernel, self.program, ctx), loop.reduced
            wanted, reason = _count_parts(loop, by_columns, ctx), "leave multiprocessors idle"
        if (
            is_walked_again := wanted < 2
            and loop.target in self.centered
            and not by_columns
            and _outgrows_cache(loop, width, ctx)
        ):
            wanted = ctx.points(loop.reduced) // ctx.thresholds.split_mean
            reason = "are too many for the cache until they are read again"
        if wanted < 2:
            return None
        division = _divide(reduced, wanted, ctx)
        made = _two_loops(loop, division, self.program, by_columns)
        if is_walked_again and not made.equal:
            return None
        rows, length, count = (ctx.points(group) for group in (loop.ranges, loop.reduced, division.outer))
        why = f"{rows:,} results of {length:,} elements each {reason}: each is made of {count:,} parts"
        ctx.decide((loop.target, made.buffer.name), "split", why, parts=count, bytes=ctx.number(made.buffer.size))
        return made

    def width(self, loop: Loop) -> int:
        """Size in memory of the largest element that a loop reduces, in bytes, before any cast. 0 for squared
        deviations from a mean, as neither short runs nor the cache size is a reason to split them.
        """
        if _distance(loop)[1] is not None:
            return 0
        widths = [load.dtype.itemsize for read in loads(loop.value) for load in self.before_cast(read)]
        return max(widths, default=loop.value.dtype.itemsize)

    def before_cast(self, read: Load) -> Sequence[Load]:
        """Loads of the cast that computes a loaded value; `read` itself if no cast computes it."""
        made = self.loops.get(read.buffer)
        return [*loads(made.value)] if made and isinstance(made.value, Op) and made.value.name == "cast" else [read]

    def mean_and_parts(self, loop: Loop) -> tuple[Load, Loop, Parts] | None:
        """For a sum of squared deviations: the load of the mean, the mean's loop, and the split of the mean's sum.

        None for other loops, or unless that sum is over the same elements and was split in equal parts.
        """
        found, distance = _center(loop, self.loops), _distance(loop)[0]
        if found is None or found[2] not in self.made:
            return None
        center, mean, sums = found
        total, parts = self.loops[sums], self.made[sums]
        is_same = (total.ranges, total.reduced, total.value) == (loop.ranges, loop.reduced, distance)
        return (center, mean, parts) if is_same and total.reduction == "sum" and parts.equal else None

    def combine_variance(self, loop: Loop, of_all: Load, mean: Loop, parts: Parts, ctx: Context) -> Iterator[Step]:
        """Kernels that combine means and squared deviations of the parts into the total sum of squared deviations."""
        means, squares = (replace(parts.buffer, name=f"{one.target}_parts") for one in (mean, loop))
        self.buffers += [means, squares]
        of, at = parts.first, parts.first.index
        sums, center, square = (Load(buffer.name, at, buffer.dtype) for buffer in (parts.buffer, means, squares))
        length = fold(cast(product(var.size for var in of.reduced), sums.dtype))
        pointwise: dict[str, Any] = {"reduction": "", "reduced": (), "order": mean.order}
        yield _kernel(replace(of, target=means.name, value=operation("div", sums, length), **pointwise))
        distance = operation("sub", of.value, center)
        yield _kernel(replace(of, target=squares.name, value=_square(distance), order=loop.order))
        between = operation("mul", _square(operation("sub", center, of_all)), length)
        yield _kernel(replace(loop, value=operation("add", square, between), reduced=parts.second.reduced))
        ctx.decide((loop.target, squares.name), "split", f"as {parts.second.target} is, of whose parts it takes means")


def _square(value: Expr) -> Expr:
    return operation("mul", value, value)


def _distance(loop: Loop) -> tuple[Expr | None, Load | None]:
    """(value, center) of a sum of (value - center)²; (None, None) for other loops."""
    match loop.value:
        case Op("mul", (Op("sub", (value, Load() as center)) as left, right)) if left == right:
            return (value, center) if loop.reduction == "sum" else (None, None)
    return None, None


def _center(loop: Loop, loops: Mapping[str, Loop]) -> tuple[Load, Loop, str] | None:
    """The load of the mean, the mean's loop, and the target of its sum; None if no squared deviations are summed."""
    _, center = _distance(loop)
    if center is None or (mean := loops.get(center.buffer)) is None:
        return None
    match mean.value:
        case Op("div", (Load(sums), *_)) if sums in loops:
            return center, mean, sums
    return None


@dataclass(frozen=True, slots=True)
class Parts:
    """A split reduction: two loops, the buffer of partial results, and whether all parts have equal length."""

    first: Loop
    second: Loop
    buffer: Buffer
    equal: bool


@dataclass(frozen=True, slots=True)
class Division:
    """Reduced ranges split into parts: `outer` variables number the parts, `inner` ones run within a part.

    `values` has the split variables as indices over both. `ragged` has the split variables whose last part exceeds
    their range.
    """

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    values: dict[str, Index]
    ragged: tuple[Var, ...] = ()


def _kernel(loop: Loop) -> Kernel:
    return Kernel(loop.target, loop.ranges, loop.reduced, (loop,))


def _short_range(kernel: Kernel, program: Program, ctx: Context, width: int) -> Var | None:
    """Reduced variable along the contiguous runs of a row, if the runs are so short that they cost more than two
    launches. None for rows that one program holds, or if adjacent runs do not belong to different rows.
    """
    if not width or ctx.points(kernel.reduced) <= ctx.thresholds.longest_row:
        return None
    *places, _ = offsets(kernel, program)
    short = next((var for var in kernel.reduced for place in places if factor_of(place, var).constant == 1), None)
    if short is None or not any(factor_of(place, var) == short.size for place in places for var in kernel.ranges):
        return None
    run = max(contiguous_run(place, kernel.reduced, ctx) for place in places)
    moved = width * ctx.points((*kernel.ranges, *kernel.reduced))
    return short if (access_slowdown(run * width) - 1) * moved > 2 * ctx.thresholds.launch_bytes else None


def _outgrows_cache(loop: Loop, width: int, ctx: Context) -> bool:
    """Whether a row is too long for one program to hold, and the rows in flight exceed the L2 cache."""
    length, rows = ctx.points(loop.reduced), min(ctx.points(loop.ranges), 2 * ctx.processors)
    return length > ctx.thresholds.longest_row and rows * length * width > ctx.cache


def _count_column_parts(loop: Loop, short: Var, ctx: Context) -> int:
    """Number of parts for each position in the runs of a row."""
    columns = ctx.points((*loop.ranges, short))
    enough = -(-ctx.processors * ctx.thresholds.programs * ctx.thresholds.split_columns // columns)
    return max(enough, -(-ctx.points(loop.reduced) // ctx.number(short.size) // ctx.thresholds.split_column))


def _is_by_columns(kernel: Kernel, program: Program, ctx: Context) -> bool:
    """Whether adjacent elements of the kernel's inputs belong to adjacent results, rather than to one result."""
    *places, _ = offsets(kernel, program)
    across, along = (sum(points_along(places, var, ctx) for var in group) for group in (kernel.ranges, kernel.reduced))
    return across > along


def _count_parts(loop: Loop, by_columns: bool, ctx: Context) -> int:
    """Number of parts for each result; less than 2 means no split."""
    rows, length = ctx.points(loop.ranges), ctx.points(loop.reduced)
    wide = ctx.thresholds.split_columns if by_columns else 1
    programs, limits = -(-rows // wide), ctx.thresholds
    enough = 2 * ctx.processors if by_columns else ctx.processors // 2  # by rows, a whole program reads one row
    if length < limits.split_length or programs >= enough:
        return 1
    return min(-(-ctx.processors * limits.programs // max(programs, 1)), length * wide // limits.split_part)


def _divide(reduced: Sequence[Var], wanted: int, ctx: Context) -> Division:
    """Divide ranges into about `wanted` parts in total, beginning with the outermost range."""
    outer: list[Var] = []
    inner: list[Var] = []
    values: dict[str, Index] = {}
    ragged: tuple[Var, ...] = ()
    for var in reduced:
        size = ctx.number(var.size)
        count = -(-wanted // max(ctx.points(outer), 1))
        length = _length(var.size, count, ctx) if 1 < count < size else None
        if count < 2 or (length is None and outer and count <= ctx.thresholds.split_even):
            inner.append(var)
        elif size <= count:
            outer.append(var)
        else:
            length = length or (var.size + count - 1) // count
            high = Var(f"{var.name}s", (var.size + length - 1) // length)
            low = Var(var.name, length)
            ragged = () if high.size * length == var.size else (var,)
            values[var.name] = Index.of(high) * length + low
            outer.append(high)
            inner.append(low)
    return Division(tuple(outer), tuple(inner), values, ragged)


def _length(size: Index, count: int, ctx: Context) -> Index | None:
    """Length of the parts if a range is split into about `count` equal parts; None if no divisor is near."""
    best = ctx.number(size) / count
    exact = [length for length in _divisors(size) if best / 2 <= ctx.number(length) <= best * 2 and length != size]
    return min(exact, key=lambda length: abs(ctx.number(length) - best), default=None)


def _divisors(size: Index) -> Iterator[Index]:
    """Divisors of a size that hold for all values of its symbols."""
    if len(size.terms) != 1:
        return
    ((atoms, factor),) = size.terms
    for count in range(len(atoms) + 1):
        for some in combinations(atoms, count):
            symbols = product(map(Index.of, some))
            yield from (symbols * number for number in (1, *divisors(factor)))


def _two_loops(loop: Loop, division: Division, program: Program, by_columns: bool) -> Parts:
    target = program.by_name[loop.target]
    kept = (*division.outer, *loop.ranges) if by_columns else (*loop.ranges, *division.outer)
    at, shape = tuple(map(Index.of, kept)), tuple(var.size for var in kept)
    strides = [product(shape[place + 1 :]) for place in range(len(shape))]
    buffer = Buffer(f"{loop.target}_parts", target.dtype, shape, tuple(strides), target.device)
    value = with_index(loop.value, division.values)
    for var in division.ragged:
        inside = operation("lt", division.values[var.name], var.size)
        value = Guard(inside, value, Const(neutral(loop.reduction, value.dtype), value.dtype))
    ranges = loop.ranges + division.outer
    first = replace(loop, target=buffer.name, ranges=ranges, index=at, value=value, reduced=division.inner)
    second = replace(loop, value=Load(buffer.name, at, buffer.dtype), reduced=division.outer)
    return Parts(first, second, buffer, not division.ragged)
