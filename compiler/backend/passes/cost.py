"""Cost model of memory accesses on a GPU, for passes and code generation.

The cost of a memory-bound kernel is the bytes that it moves, times a penalty for contiguous runs shorter than a cache
line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler.backend.ir import Buffer, Kernel, Program
from compiler.backend.ir.expr import Shape, loads, variables_in
from compiler.backend.ir.index import Index, Var, factor_of, product, variables
from compiler.backend.ir.sweeps import sweeps
from compiler.backend.passes.context import Context

LINE = 128
"""Size of a GPU's cache line, in bytes."""

SLOWEST = 4
"""Largest slowdown of accesses in runs shorter than a cache line, measured for 8 to 32 bytes on an H200."""

MOST_32 = 2**31 - 2**17
"""Limit of int32 indices, with a margin for blocks that reach beyond the last point."""

LEAST_BLOCK = 16
"""Smallest block size along a tile's second axis."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Cost of a program: number of kernels, number of extern calls, and bytes that the kernels move."""

    kernels: int = 0
    calls: int = 0
    bytes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.kernels + other.kernels, self.calls + other.calls, self.bytes + other.bytes)


def totals(program: Program, ctx: Context) -> Totals:
    """Total cost of a program."""
    kernels = program.kernels
    moved = sum(traffic(kernel, program, ctx) for kernel in kernels)
    return Totals(len(kernels), len(program.steps) - len(kernels), moved)


def traffic(kernel: Kernel, program: Program, ctx: Context) -> int:
    """Bytes that a kernel reads and writes, if it loads and stores each element of a buffer once."""
    return sum(bytes_moved(name, kernel, program, ctx) for name in {*kernel.reads, *kernel.writes})


def bytes_moved(name: str, kernel: Kernel, program: Program, ctx: Context) -> int:
    """Bytes that a kernel reads from one buffer and writes to it, in total."""
    buffer = program.by_name[name]
    size, read = ctx.number(buffer.size), 0
    if name in kernel.reads:
        points = [_points_at(place, ctx) for place in kernel.places(name)]
        points += [ctx.number(product(view.shape)) for view in kernel.operands if view.buffer == name]
        read = min(size, sum(points))
    return (read + size * (name in kernel.writes)) * buffer.dtype.itemsize


def contiguous_run(place: Index, along: Iterable[Var], ctx: Context) -> int:
    """Length, in elements, of the contiguous run at an offset if the variables take all their values."""
    steps = {ctx.number(factor_of(place, var)): ctx.number(var.size) for var in along}
    run = 1
    while (size := steps.get(run, 1)) > 1:
        run *= size
    return run


def walked_run(place: Index, walked: Sequence[Var], ctx: Context) -> int:
    """Length, in elements, of the contiguous run that a loop nest accesses in order, with the last variable fastest."""
    run = 1
    for var in reversed(walked):
        if ctx.number(factor_of(place, var)) != run:
            break
        run *= ctx.number(var.size)
    return run


def access_slowdown(run: int) -> float:
    """Slowdown of memory accesses in contiguous runs of this many bytes."""
    return min(SLOWEST, max(1.0, LINE / run))


def _points_at(place: Shape, ctx: Context) -> int:
    """Number of distinct elements that an index reaches: the product of the sizes of its variables."""
    found = {var for index in place for var in variables_in(index)}
    return ctx.number(product(var.size for var in found))


def offsets(kernel: Kernel, program: Program) -> Iterator[Index]:
    """Offsets at which a kernel reads and writes memory, in elements."""
    return (offset for _, offset in accesses(kernel, program))


def points_along(places: Iterable[Index], var: Var, ctx: Context) -> int:
    """Total number of points of the accesses that are contiguous along a variable."""
    return sum(ctx.points(variables(place)) for place in places if ctx.number(factor_of(place, var)) == 1)


def accesses(kernel: Kernel, program: Program) -> Iterator[tuple[Buffer, Index]]:
    """Accesses of a kernel to memory: each buffer that it reads or writes, and the offset in elements."""
    for loop in kernel.loops:
        places = [(load.buffer, load.index) for load in loads(loop.value)]
        for name, index in (*places, (loop.target, loop.place)):
            if name not in kernel.local:
                buffer = program.by_name[name]
                yield buffer, buffer.offset(index)


def walked_places(kernel: Kernel) -> set[tuple[str, Shape]]:
    """Buffers and indices of the accesses that vary along the reduced ranges."""
    inner = {*kernel.reduced}
    places = {(load.buffer, load.index) for load in kernel.loads if load.buffer not in kernel.targets}
    places |= {(loop.target, loop.place) for loop in kernel.loops if loop.target not in kernel.local}
    return {(buffer, at) for buffer, at in places if any(inner & variables(index) for index in at)}


def distinct_accesses(kernel: Kernel, program: Program) -> list[tuple[Index, int]]:
    """Distinct offsets of all accesses, with the element size in bytes."""
    found = accesses(kernel, program)
    return [*{f"{at.name} + {place.key}": (place, at.dtype.itemsize) for at, place in found}.values()]


def is_by_columns(kernel: Kernel, program: Program, ctx: Context) -> bool:
    """Whether adjacent elements in memory belong to adjacent results, rather than to one result.

    The majority of accesses decides. With a single sweep, a large minority of accesses by columns is enough, as tiles
    over both axes are as good for the other accesses.
    """
    if not kernel.ranges or not kernel.reduced:
        return False
    places = [place for place, _ in distinct_accesses(kernel, program)]
    across, along = (points_along(places, var, ctx) for var in (kernel.ranges[-1], kernel.reduced[-1]))
    if across > along or 8 * across < along:
        return across > along
    is_long = min(ctx.number(var.size) for var in (kernel.ranges[-1], kernel.reduced[-1])) >= LEAST_BLOCK
    return is_long and sum(bool(sweep.body) for sweep in sweeps(kernel)) < 2


def strided_access_penalty(kernel: Kernel, program: Program, ctx: Context) -> Mapping[str, int]:
    """Extra cost of short runs in a reduction over long rows, compared with tiles: bytes by buffer.

    A program walks its rows in the order of the kernel's ranges, so it accesses buffers with another memory order in
    short runs. Empty if rows are short or the kernel runs by columns.
    """
    if ctx.points(kernel.reduced) < ctx.thresholds.program_row:
        return {}
    lost: dict[str, int] = {}
    for buffer, place in accesses(kernel, program):
        own = variables(place)
        if not own.isdisjoint(kernel.reduced):
            runs = walked_run(place, kernel.reduced, ctx), contiguous_run(place, own, ctx)
            walked, tiled = (access_slowdown(run * buffer.dtype.itemsize) for run in runs)
            bytes_ = int((walked - tiled) * ctx.points(own) * buffer.dtype.itemsize)
            lost[buffer.name] = max(lost.get(buffer.name, 0), bytes_)
    return lost if any(lost.values()) and not is_by_columns(kernel, program, ctx) else {}


def fits_32(kernel: Kernel, program: Program, ctx: Context) -> bool:
    """Whether int32 is proven to be enough for the indices and offsets of a kernel: sizes are static or guarded."""
    sizes = [program.by_name[name].span for name in {*kernel.reads, *kernel.writes}]
    sizes += [product(var.size for var in group) for group in (kernel.ranges, kernel.reduced)]
    return all((ctx.is_small or size.constant is not None) and ctx.number(size) < MOST_32 for size in sizes)
