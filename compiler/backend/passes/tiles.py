"""How a kernel's points become Triton programs: which of its ranges make an axis, and what a program does of each.

    pointwise    one axis, over all points; or two, where memory is walked along different ranges
    persistent   a program holds whole rows of what is reduced
    looped       a program walks its rows in steps
    product      tiles of a product of matrices (see triton_product.py)

An axis has one variable in place of the ranges that it is made of, so that a kernel on tiles is a kernel of the IR too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from compiler.backend.ir import Kernel, Program
from compiler.backend.ir.expr import Shape
from compiler.backend.ir.index import Index, Var, factor_of, product
from compiler.backend.ir.index_maps import variables
from compiler.backend.ir.sweeps import sweeps
from compiler.backend.passes.context import Context
from compiler.backend.passes.order import accesses, points_along, sort_ranges
from compiler.backend.passes.traffic import run_along, run_walked, slowness

Kind = Literal["pointwise", "persistent", "looped", "product"]

MOST_32 = 2**31 - 2**17
"""Indices below it are int32: what a block reaches beyond the last point still is."""

MOST_PROGRAMS = 2**16 - 1
"""As many as CUDA allows along a grid's second axis. HIP has the same limit."""

LEAST_BLOCK = 16
"""The fewest points of a block of the second axis."""

LONGEST_ROWS = (32768, 16384, 8192)
"""Rows that a program holds whole if it reads those of one tensor, of two, or of more: registers are what bounds it."""

_LONGEST_ROW_READ_ONCE = 1024
_LONGEST_COLUMN = 64
_ALONE = 512
_BYTES_OF_PROGRAM = 4096
"""Programs that move less take less time than it takes a GPU to start them."""

LONG_ROW = 8192
"""Of more elements a program that holds them leaves few registers to another."""

_LEAST_TILED = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a kernel's tiles. A program takes `block` of its points (a constexpr's name), or one where that is "".
    `values` are the kernel's ranges by the axis's variable.
    """

    var: Var
    block: str
    values: Mapping[str, Index]

    @property
    def size(self) -> Index:
        """Its number of points."""
        return self.var.size


@dataclass(frozen=True, slots=True)
class Tiles:
    """A kernel on tiles: `kernel` has one range for each axis of `outer`, and `reduced` as `inner`, None for none or
    where only one element is reduced. `by_columns` says that neighbours in memory belong to neighbouring results,
    `is_read_again` that a program reads its row anew for each walk over it.
    """

    kernel: Kernel
    kind: Kind
    outer: tuple[Axis, ...]
    inner: Axis | None
    by_columns: bool
    is_wide: bool
    is_read_again: bool = False

    @property
    def numbered(self) -> tuple[Axis, ...]:
        """The outer axes in the order of a grid's, of which the first counts fastest: of the two of a pointwise kernel
        the shorter one, so that programs that share pages of memory run at about the same time.
        """
        sizes = [axis.size.constant or 0 for axis in self.outer]
        is_swapped = self.kind == "pointwise" and len(sizes) == 2 and 0 < sizes[1] < sizes[0]
        return self.outer[::-1] if is_swapped else self.outer

    @property
    def is_folded(self) -> bool:
        """Whether the second axis may have more programs than a grid's second axis can: then the grid has one axis for
        both.
        """
        size = self.numbered[1].size.constant if self.kind == "pointwise" and len(self.outer) == 2 else 0
        return size is None or size > MOST_PROGRAMS * LEAST_BLOCK

    @property
    def tiled(self) -> tuple[Axis, ...]:
        """The axes of a tile, in the order of its dimensions."""
        axes = (*self.outer, self.inner) if self.inner else self.outer
        return tuple(axis for axis in axes if axis.block)


def tiled(kernel: Kernel, program: Program, ctx: Context) -> Tiles:
    """How the kernel runs as Triton."""
    is_wide = not fits_32(kernel, program, ctx)
    if not kernel.reduced and not any(loop.reduction for loop in kernel.loops):
        outer = _group_axes(_two(kernel, program, ctx) or (kernel.ranges,), ("YBLOCK", "XBLOCK"))
        return Tiles(moved(kernel, outer, None), "pointwise", outer, None, False, is_wide)
    by_columns = is_by_columns(kernel, program, ctx)
    inner = _axis("r", kernel.reduced, "RBLOCK")
    row = inner.size.constant if inner else 1
    kind: Kind = "persistent" if row is not None and row <= _longest(kernel, by_columns) else "looped"
    is_alone = not by_columns and (kind == "looped" or row is None or _fills_a_program(row, kernel, program))
    x = _axis("x", kernel.ranges, "" if is_alone else "XBLOCK")
    outer = (x,) if x else ()
    again = kind == "persistent" and (row or 0) > LONG_ROW and _may_be_read_again(kernel, program)
    return Tiles(moved(kernel, outer, inner), kind, outer, inner, by_columns, is_wide, again)


def _may_be_read_again(kernel: Kernel, program: Program) -> bool:
    """Whether it walks its rows more than once, and memory has them in half of the bytes that registers would hold, as
    these are of float32. The cache has as much as is read again while two programs share a multiprocessor.
    """
    read = {name for name, _ in walked_places(kernel) if name not in kernel.targets}
    is_short = all(program.by_name[name].dtype.itemsize <= 2 for name in read)
    is_written = not read.isdisjoint(kernel.writes) or any(loop.is_scan for loop in kernel.loops)
    return is_short and not is_written and len(sweeps(kernel)) > 1


def _longest(kernel: Kernel, by_columns: bool) -> int:
    """The longest row, or column, that a program holds whole."""
    if by_columns:
        return _LONGEST_COLUMN
    if len(sweeps(kernel)) < 2:
        return _LONGEST_ROW_READ_ONCE
    read = sum(buffer not in kernel.targets for buffer, _ in walked_places(kernel))
    return LONGEST_ROWS[min(max(read, 1), len(LONGEST_ROWS)) - 1]


def _fills_a_program(row: int, kernel: Kernel, program: Program) -> bool:
    bytes_ = row * sum(program.by_name[buffer].dtype.itemsize for buffer, _ in walked_places(kernel))
    return row > _ALONE and bytes_ >= _BYTES_OF_PROGRAM


def walked_places(kernel: Kernel) -> set[tuple[str, Shape]]:
    """The buffers and the places in them that differ from one point of what is reduced to the next."""
    inner = {*kernel.reduced}
    places = {(load.buffer, load.index) for load in kernel.loads if load.buffer not in kernel.targets}
    places |= {(loop.target, loop.place) for loop in kernel.loops if loop.target not in kernel.local}
    return {(buffer, at) for buffer, at in places if any(inner & variables(index) for index in at)}


def _group_axes(groups: Sequence[Sequence[Var]], blocks: Sequence[str]) -> tuple[Axis, ...]:
    names = ("y", "x")[-len(groups) :]
    made = (_axis(name, group, block) for name, group, block in zip(names, groups, blocks[-len(groups) :], strict=True))
    return tuple(axis for axis in made if axis)


def _axis(name: str, ranges: Sequence[Var], block: str) -> Axis | None:
    """An axis over some ranges; None for those of one point."""
    var = Var(name, product(one.size for one in ranges))
    if var.size.constant == 1:
        return None
    values, rest = {}, Index.of(var)
    for one in reversed(ranges):
        values[one.name] = rest % one.size
        rest = rest // one.size
    return Axis(var, block, values)


def moved(kernel: Kernel, outer: tuple[Axis, ...], inner: Axis | None) -> Kernel:
    """The kernel over the axes."""
    values: dict[str, Index] = {var.name: Index.of(0) for var in kernel.ranges + kernel.reduced}
    for axis in (*outer, *([inner] if inner else [])):
        values.update(axis.values)
    return kernel.over(tuple(axis.var for axis in outer), (inner.var,) if inner else (), values)


def _accesses(kernel: Kernel, program: Program) -> list[tuple[Index, int]]:
    """Where it reads and writes memory, in elements, each place once, and the bytes of an element there."""
    found = accesses(kernel, program)
    return [*{f"{at.name} + {place.key}": (place, at.dtype.itemsize) for at, place in found}.values()]


def is_by_columns(kernel: Kernel, program: Program, ctx: Context) -> bool:
    """Whether neighbours in memory belong to neighbouring results, not to one result: in most places that are read or
    written, or in any large one where rows are walked once, as tiles of both are then as good for the other places.
    """
    if not kernel.ranges or not kernel.reduced:
        return False
    places = [place for place, _ in _accesses(kernel, program)]
    across, along = (points_along(places, var, ctx) for var in (kernel.ranges[-1], kernel.reduced[-1]))
    if across > along or 8 * across < along:
        return across > along
    is_long = min(ctx.number(var.size) for var in (kernel.ranges[-1], kernel.reduced[-1])) >= LEAST_BLOCK
    return is_long and sum(bool(sweep.body) for sweep in sweeps(kernel)) < 2


def lost_in_rows(kernel: Kernel, program: Program, ctx: Context) -> Mapping[str, int]:
    """The buffers that a kernel of long rows meets in shorter runs than tiles would, and how many bytes are moved in
    the time that this takes more: a program walks its rows in one order, and what lies in memory in another one is met
    in runs as short as that order leaves. None where a program takes neighbouring columns.
    """
    if ctx.points(kernel.reduced) < _ALONE:
        return {}
    rows = sort_ranges(kernel, program, replace(ctx, decisions=[]))
    lost: dict[str, int] = {}
    for buffer, place in accesses(rows, program):
        own = variables(place)
        if not own.isdisjoint(rows.reduced):
            runs = run_walked(place, rows.reduced, ctx), run_along(place, own, ctx)
            walked_places, tiled = (slowness(run * buffer.dtype.itemsize) for run in runs)
            bytes_ = int((walked_places - tiled) * ctx.points(own) * buffer.dtype.itemsize)
            lost[buffer.name] = max(lost.get(buffer.name, 0), bytes_)
    return lost if any(lost.values()) and not is_by_columns(rows, program, ctx) else {}


def _two(kernel: Kernel, program: Program, ctx: Context) -> tuple[tuple[Var, ...], tuple[Var, ...]] | None:
    """The ranges in two groups, where some memory is walked along the last range of each; None if one does for all."""
    if len(kernel.ranges) < 2 or any(var.size.constant == 0 for var in kernel.ranges):
        return None
    x = kernel.ranges[-1]
    bytes_along: dict[Var, int] = {}
    for place, size in _accesses(kernel, program):
        if ctx.number(factor_of(place, x)) in (0, 1):
            continue
        for var in kernel.ranges[:-1]:
            if ctx.number(factor_of(place, var)) == 1:
                bytes_along[var] = bytes_along.get(var, 0) + size
    if not bytes_along:
        return None
    y = max(bytes_along, key=lambda var: bytes_along[var])
    if min(ctx.number(x.size), ctx.number(y.size)) < _LEAST_TILED:
        return None
    return (*(var for var in kernel.ranges if var not in (x, y)), y), (x,)


def fits_32(kernel: Kernel, program: Program, ctx: Context) -> bool:
    """Whether all that the kernel counts and addresses is certain to be below 2³¹: sizes are known, or were guarded."""
    sizes = [program.by_name[name].span for name in {*kernel.reads, *kernel.writes}]
    sizes += [product(var.size for var in group) for group in (kernel.ranges, kernel.reduced)]
    return all((ctx.is_small or size.constant is not None) and ctx.number(size) < MOST_32 for size in sizes)
