"""Tile a kernel for Triton: choose the axes of its tiles, the part of each axis that one program takes, and its warps.

    pointwise    one axis over all points; or two, if accesses are contiguous along different ranges
    persistent   a program holds whole rows of the reduction
    looped       a program loops over its rows, tile by tile
    product      tiles of a matmul (see matmul.py)

An axis is one variable that replaces several ranges, so that a tiled kernel is again a kernel of the IR.

`configs` returns blocks and warps for a tiled kernel: the heuristics' choice first, then others that `max-autotune`
times. The numbers follow Inductor's heuristics: a thread takes about eight elements, every multiprocessor gets
programs, and a warp takes about a kilobyte of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from compiler.backend.ir import Kernel, Program
from compiler.backend.ir.index import Index, Var, factor_of, product
from compiler.backend.ir.sweeps import sweeps
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import LEAST_BLOCK, LINE, distinct_accesses, fits_32, is_by_columns, walked_places

Kind = Literal["pointwise", "persistent", "looped", "product"]

MOST_PROGRAMS = 2**16 - 1
"""Maximum number of programs along the second axis of a grid, for CUDA and HIP."""
_PROCESSORS = 132
_MOST_WARPS = 32
_EVEN = 8
"""Number of two-byte elements that a thread loads at once."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a kernel's tiles.

    var     the axis's variable; its size is the number of points
    block   name of the constexpr with the number of points that a program takes; "" for one point
    values  index of each of the kernel's ranges, as a function of `var`
    """

    var: Var
    block: str
    values: Mapping[str, Index]

    @property
    def size(self) -> Index:
        """Number of points."""
        return self.var.size


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tiled kernel: `kernel` has one range for each axis in `outer`, and `inner` as its reduced range.

    inner          the reduced axis; None without a reduction, or if only one element is reduced
    by_columns     whether adjacent elements in memory belong to adjacent results
    is_wide        whether indices need 64 bits
    is_read_again  whether a program loads its row anew in each sweep
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
        """The outer axes in the order of the grid's axes, the fastest first.

        If a pointwise kernel has two axes, the shorter is first: programs that share pages of memory then run at about
        the same time.
        """
        sizes = [axis.size.constant or 0 for axis in self.outer]
        is_swapped = self.kind == "pointwise" and len(sizes) == 2 and 0 < sizes[1] < sizes[0]
        return self.outer[::-1] if is_swapped else self.outer

    @property
    def is_folded(self) -> bool:
        """Whether two outer axes share one axis of the grid, as the second may exceed the grid's limit."""
        size = self.numbered[1].size.constant if self.kind == "pointwise" and len(self.outer) == 2 else 0
        return size is None or size > MOST_PROGRAMS * LEAST_BLOCK

    @property
    def tiled(self) -> tuple[Axis, ...]:
        """The axes along which a program takes a block, in the order of the tile's dimensions."""
        axes = (*self.outer, self.inner) if self.inner else self.outer
        return tuple(axis for axis in axes if axis.block)


def tile_kernel(kernel: Kernel, program: Program, ctx: Context) -> Tiles:
    """Choose the axes and the kind of a kernel's tiles."""
    is_wide = not fits_32(kernel, program, ctx)
    if not kernel.reduced and not any(loop.reduction for loop in kernel.loops):
        groups = zip("yx", _two(kernel, program, ctx) or ((), kernel.ranges), strict=True)
        outer = tuple(axis for name, group in groups if (axis := _axis(name, group)))
        return Tiles(kernel_on_axes(kernel, outer, None), "pointwise", outer, None, False, is_wide)
    by_columns = is_by_columns(kernel, program, ctx)
    inner = _axis("r", kernel.reduced)
    row = inner.size.constant if inner else 1
    kind: Kind = "persistent" if row is not None and row <= _longest(kernel, by_columns, ctx) else "looped"
    is_alone = not by_columns and (kind == "looped" or row is None or _fills_a_program(row, kernel, program, ctx))
    x = _axis("x", kernel.ranges, is_tiled=not is_alone)
    outer = (x,) if x else ()
    again = kind == "persistent" and (row or 0) > ctx.thresholds.long_row and _may_be_read_again(kernel, program)
    return Tiles(kernel_on_axes(kernel, outer, inner), kind, outer, inner, by_columns, is_wide, again)


def _may_be_read_again(kernel: Kernel, program: Program) -> bool:
    """Whether a program may load its row anew in each sweep instead of keeping it in registers.

    The kernel has several sweeps and no scan, and does not overwrite its inputs. Inputs have at most 2 bytes per
    element, half of float32 in registers, so that the rows of two programs on a multiprocessor stay in the cache.
    """
    read = {name for name, _ in walked_places(kernel) if name not in kernel.targets}
    is_short = all(program.by_name[name].dtype.itemsize <= 2 for name in read)
    is_written = not read.isdisjoint(kernel.writes) or any(loop.is_scan for loop in kernel.loops)
    return is_short and not is_written and len(sweeps(kernel)) > 1


def _longest(kernel: Kernel, by_columns: bool, ctx: Context) -> int:
    """Maximum length of a row or column that a program holds whole, in elements."""
    if by_columns:
        return ctx.thresholds.longest_column
    if len(sweeps(kernel)) < 2:
        return ctx.thresholds.longest_row_once
    read = sum(buffer not in kernel.targets for buffer, _ in walked_places(kernel))
    return ctx.thresholds.longest_row >> min(max(read, 1), 3) - 1


def _fills_a_program(row: int, kernel: Kernel, program: Program, ctx: Context) -> bool:
    bytes_ = row * sum(program.by_name[buffer].dtype.itemsize for buffer, _ in walked_places(kernel))
    return row > ctx.thresholds.program_row and bytes_ >= ctx.thresholds.program_bytes


def _axis(name: str, ranges: Sequence[Var], is_tiled: bool = True) -> Axis | None:
    """An axis over some ranges; None if they have only one point."""
    var = Var(name, product(one.size for one in ranges))
    if var.size.constant == 1:
        return None
    values, rest = {}, Index.of(var)
    for one in reversed(ranges):
        values[one.name] = rest % one.size
        rest = rest // one.size
    return Axis(var, f"{name.upper()}BLOCK" if is_tiled else "", values)


def kernel_on_axes(kernel: Kernel, outer: tuple[Axis, ...], inner: Axis | None) -> Kernel:
    """The kernel with the axes of its tiles as ranges."""
    values: dict[str, Index] = {var.name: Index.of(0) for var in kernel.ranges + kernel.reduced}
    for axis in (*outer, *([inner] if inner else [])):
        values.update(axis.values)
    return kernel.with_ranges(tuple(axis.var for axis in outer), (inner.var,) if inner else (), values)


def _two(kernel: Kernel, program: Program, ctx: Context) -> tuple[tuple[Var, ...], tuple[Var, ...]] | None:
    """Split the ranges into two groups if accesses are contiguous along the last range of each group; else None."""
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


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """Configuration of a kernel: values of its constexprs (`blocks`), and a program's warps and pipeline stages."""

    blocks: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1


def configs(tiles: Tiles, program: Program, ctx: Context) -> tuple[TritonConfig, ...]:
    """Distinct configurations; the first is the heuristics' choice."""
    found = {"pointwise": _pointwise, "persistent": _persistent, "looped": _looped_configs}[tiles.kind](
        tiles, program, ctx
    )
    return tuple({repr(config): config for config in found}.values())


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`, and at least 1."""
    return 1 << max(0, number - 1).bit_length()


def _warps(elements: int, each: int = 256) -> int:
    return max(1, min(_MOST_WARPS, next_power_of_two(elements // each)))


def processors(ctx: Context) -> int:
    """The number of multiprocessors to generate code for: an H200's if unknown."""
    return ctx.processors or _PROCESSORS


def _pointwise(tiles: Tiles, program: Program, ctx: Context) -> Iterator[TritonConfig]:
    if not tiles.outer:
        yield TritonConfig({}, 1)
    elif len(tiles.outer) == 1:
        yield from _lines(ctx.number(tiles.outer[0].size), ctx)
    else:
        yield from _squares(tiles, program, ctx)


def _lines(points: int, ctx: Context) -> Iterator[TritonConfig]:
    first = max(128, min(1024, next_power_of_two(points // (4 * processors(ctx)))))
    for most, each in ((first, 256), (1024, 256), (1024, 128), (2048, 256), (512, 128), (512, 256), (256, 128)):
        block = min(most, next_power_of_two(points))
        yield TritonConfig({"XBLOCK": block}, _warps(block, each))


def _squares(tiles: Tiles, program: Program, ctx: Context) -> Iterator[TritonConfig]:
    y, x = (next_power_of_two(ctx.number(axis.size)) for axis in tiles.outer)
    is_narrow = _width(tiles, program, ctx) < 4
    first = (64, 32) if is_narrow and y * x < 4096 * processors(ctx) else (64, 64)
    for rows, columns in (first, (64, 64), (32, 32), (64, 32), (32, 64), (128, 32), (16, 128), (128, 16)):
        wide = min(columns, x)
        high = min(max(rows, 512 // wide), y)
        yield TritonConfig({"YBLOCK": high, "XBLOCK": wide}, min(8 if is_narrow else 16, _warps(high * wide)))


def _rows(tiles: Tiles, ctx: Context) -> int:
    return ctx.number(tiles.outer[0].size) if tiles.outer else 1


def _width(tiles: Tiles, program: Program, ctx: Context) -> int:
    """Size of an element of the kernel's largest buffers, in bytes."""
    buffers = [program.by_name[name] for name in {*tiles.kernel.reads, *tiles.kernel.writes}]
    most = max((ctx.number(buffer.size) for buffer in buffers), default=0)
    return max((buffer.dtype.itemsize for buffer in buffers if ctx.number(buffer.size) == most), default=4)


def _persistent(tiles: Tiles, program: Program, ctx: Context) -> Iterator[TritonConfig]:
    width = _width(tiles, program, ctx)
    elements = ctx.thresholds.warp_bytes // width
    row = next_power_of_two(tiles.inner.size.constant or 0) if tiles.inner else 1
    for block in _row_blocks(tiles, row, width, ctx):
        blocks = {"XBLOCK": block} if tiles.outer and tiles.outer[0].block else {}
        size = row * block
        each = {"RBLOCK": row} if tiles.inner else {}
        first = min(_most_warps(tiles, row, ctx), _warps(size, elements))
        for warps in (first, _warps(size, elements // 2), _warps(size, 2 * elements)):
            yield TritonConfig({**blocks, **each}, warps)


def _most_warps(tiles: Tiles, row: int, ctx: Context) -> int:
    """Maximum number of warps of a program: 16 for long rows, so that two programs share a multiprocessor.

    Unaligned rows that are read again have no such limit: their loads are narrow, which needs more threads.
    """
    is_even = not tiles.inner or (tiles.inner.size.constant or 0) % _EVEN == 0
    return 16 if row > ctx.thresholds.long_row and (is_even or not tiles.is_read_again) else _MOST_WARPS


def _row_blocks(tiles: Tiles, row: int, width: int, ctx: Context) -> Iterable[int]:
    """Candidates for the number of rows (or columns) per program, the heuristics' choice first.

    The choice leaves several programs for each multiprocessor. Columns fill a cache line, if possible.
    """
    if not tiles.outer or not tiles.outer[0].block:
        return (1,)
    rows = _rows(tiles, ctx)
    least = min(32, next_power_of_two(rows)) if tiles.by_columns else 1
    line = LINE // width if tiles.by_columns else 1
    most = max(least, min(next_power_of_two(rows), max(line, 2048 // row)))
    first = most
    while first > least and rows // first < 4 * processors(ctx):
        first //= 2
    return tuple(dict.fromkeys((first, most, max(least, first // 2))))


def _looped_configs(tiles: Tiles, program: Program, ctx: Context) -> Iterator[TritonConfig]:
    row = next_power_of_two(ctx.number(tiles.inner.size)) if tiles.inner else 1
    if tiles.by_columns:
        buffers = (program.by_name[name] for name in {*tiles.kernel.reads, *tiles.kernel.writes})
        lanes = 32 if max((buffer.dtype.itemsize for buffer in buffers), default=4) >= 4 else 64
        if _rows(tiles, ctx) < 2 * lanes * processors(ctx):
            lanes = 16
        sizes = [(lanes, 2048 // lanes), (lanes, 1024 // lanes), (2 * lanes, 2048 // lanes), (16, 64), (128, 16)]
        for columns, rows in sizes:
            wide, high = min(columns, next_power_of_two(_rows(tiles, ctx))), min(rows, row)
            yield TritonConfig({"XBLOCK": wide, "RBLOCK": high}, _warps(wide * high))
        return
    many = len(walked_places(tiles.kernel)) > 6
    first = 1024 if many else 4096 if row >= ctx.thresholds.long_row else 2048
    each = 128 if row >= ctx.thresholds.long_row and len(sweeps(tiles.kernel)) > 1 else 256
    yield TritonConfig({"RBLOCK": min(first, row)}, _warps(min(first, row), each))
    for most in (first, 1024, 2048, 4096, 8192):
        block = min(most, row)
        yield TritonConfig({"RBLOCK": block}, _warps(block))
    yield TritonConfig({"RBLOCK": min(2048, row)}, _warps(min(2048, row), 128))
