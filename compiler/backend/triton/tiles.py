"""How a kernel's points become Triton programs: which of its ranges make an axis, and what a program does of each.

    pointwise    one axis, over all points; or two, where memory is walked along different ranges
    persistent   a program holds whole rows of what is reduced
    looped       a program walks its rows in steps
    product      tiles of a product of matrices (see matmul.py)

An axis has one variable in place of the ranges that it is made of, so that a kernel on tiles is a kernel of the IR too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from compiler.backend.ir import Kernel, Program
from compiler.backend.ir.index import Index, Var, factor_of, product
from compiler.backend.ir.sweeps import sweeps
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import LEAST_BLOCK, distinct_accesses, fits_32, is_by_columns, walked_places

Kind = Literal["pointwise", "persistent", "looped", "product"]

MOST_PROGRAMS = 2**16 - 1
"""As many as CUDA allows along a grid's second axis. HIP has the same limit."""


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


def tile_kernel(kernel: Kernel, program: Program, ctx: Context) -> Tiles:
    """Choose the axes and the kind of a kernel's tiles."""
    is_wide = not fits_32(kernel, program, ctx)
    if not kernel.reduced and not any(loop.reduction for loop in kernel.loops):
        outer = _group_axes(_two(kernel, program, ctx) or (kernel.ranges,), ("YBLOCK", "XBLOCK"))
        return Tiles(kernel_on_axes(kernel, outer, None), "pointwise", outer, None, False, is_wide)
    by_columns = is_by_columns(kernel, program, ctx)
    inner = _axis("r", kernel.reduced, "RBLOCK")
    row = inner.size.constant if inner else 1
    kind: Kind = "persistent" if row is not None and row <= _longest(kernel, by_columns, ctx) else "looped"
    is_alone = not by_columns and (kind == "looped" or row is None or _fills_a_program(row, kernel, program, ctx))
    x = _axis("x", kernel.ranges, "" if is_alone else "XBLOCK")
    outer = (x,) if x else ()
    again = kind == "persistent" and (row or 0) > ctx.thresholds.long_row and _may_be_read_again(kernel, program)
    return Tiles(kernel_on_axes(kernel, outer, inner), kind, outer, inner, by_columns, is_wide, again)


def _may_be_read_again(kernel: Kernel, program: Program) -> bool:
    """Whether it walks its rows more than once, and memory has them in half of the bytes that registers would hold, as
    these are of float32. The cache has as much as is read again while two programs share a multiprocessor.
    """
    read = {name for name, _ in walked_places(kernel) if name not in kernel.targets}
    is_short = all(program.by_name[name].dtype.itemsize <= 2 for name in read)
    is_written = not read.isdisjoint(kernel.writes) or any(loop.is_scan for loop in kernel.loops)
    return is_short and not is_written and len(sweeps(kernel)) > 1


def _longest(kernel: Kernel, by_columns: bool, ctx: Context) -> int:
    """The longest row, or column, that a program holds whole."""
    if by_columns:
        return ctx.thresholds.longest_column
    if len(sweeps(kernel)) < 2:
        return ctx.thresholds.longest_row_once
    read = sum(buffer not in kernel.targets for buffer, _ in walked_places(kernel))
    return ctx.thresholds.longest_row >> min(max(read, 1), 3) - 1


def _fills_a_program(row: int, kernel: Kernel, program: Program, ctx: Context) -> bool:
    bytes_ = row * sum(program.by_name[buffer].dtype.itemsize for buffer, _ in walked_places(kernel))
    return row > ctx.thresholds.program_row and bytes_ >= ctx.thresholds.program_bytes


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


def kernel_on_axes(kernel: Kernel, outer: tuple[Axis, ...], inner: Axis | None) -> Kernel:
    """The kernel over the axes."""
    values: dict[str, Index] = {var.name: Index.of(0) for var in kernel.ranges + kernel.reduced}
    for axis in (*outer, *([inner] if inner else [])):
        values.update(axis.values)
    return kernel.with_ranges(tuple(axis.var for axis in outer), (inner.var,) if inner else (), values)


def _two(kernel: Kernel, program: Program, ctx: Context) -> tuple[tuple[Var, ...], tuple[Var, ...]] | None:
    """The ranges in two groups, if memory is contiguous along the last range of either; else None."""
    if len(kernel.ranges) < 2 or any(var.size.constant == 0 for var in kernel.ranges):
        return None
    x = kernel.ranges[-1]
    bytes_along: dict[Var, int] = {}
    for place, size in distinct_accesses(kernel, program):
        if ctx.number(factor_of(place, x)) in (0, 1):
            continue
        for var in kernel.ranges[:-1]:
            if ctx.number(factor_of(place, var)) == 1:
                bytes_along[var] = bytes_along.get(var, 0) + size
    if not bytes_along:
        return None
    y = max(bytes_along, key=lambda var: bytes_along[var])
    if min(ctx.number(x.size), ctx.number(y.size)) < ctx.thresholds.tiled_size:
        return None
    return (*(var for var in kernel.ranges if var not in (x, y)), y), (x,)
