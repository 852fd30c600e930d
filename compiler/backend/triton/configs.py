"""Blocks and warps for a kernel on tiles: what the heuristics choose, then what `max-autotune` tries besides.

The numbers follow what Inductor's heuristics have learnt: a thread takes about eight elements, there are programs for
every multiprocessor, a warp takes about a kilobyte of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from compiler.backend.ir import Program
from compiler.backend.ir.sweeps import sweeps
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import LINE, walked_places
from compiler.backend.triton.tiles import Tiles

_PROCESSORS = 132
_MOST_WARPS = 32
_BYTES_OF_WARP = 1024
_EVEN = 8
"""Elements of two bytes that a thread loads at once."""


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """Values of a kernel's constexprs, and how many warps run a program."""

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
    """The least power of two that is not less, 1 at least."""
    return 1 << max(0, number - 1).bit_length()


def _warps(elements: int, each: int = 256) -> int:
    return max(1, min(_MOST_WARPS, next_power_of_two(elements // each)))


def processors(ctx: Context) -> int:
    """How many multiprocessors the code is for: an H200's where that is not known."""
    return ctx.processors or _PROCESSORS


def _widest(tiles: Tiles, program: Program) -> int:
    """Bytes of the widest element that the kernel reads or writes."""
    names = {*tiles.kernel.reads, *tiles.kernel.writes}
    return max((program.by_name[name].dtype.itemsize for name in names), default=4)


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
    """Bytes of an element of its largest buffers."""
    buffers = [program.by_name[name] for name in {*tiles.kernel.reads, *tiles.kernel.writes}]
    most = max((ctx.number(buffer.size) for buffer in buffers), default=0)
    return max((buffer.dtype.itemsize for buffer in buffers if ctx.number(buffer.size) == most), default=4)


def _persistent(tiles: Tiles, program: Program, ctx: Context) -> Iterator[TritonConfig]:
    width = _width(tiles, program, ctx)
    elements = _BYTES_OF_WARP // width
    row = next_power_of_two(tiles.inner.size.constant or 0) if tiles.inner else 1
    for block in _row_blocks(tiles, row, width, ctx):
        blocks = {"XBLOCK": block} if tiles.outer and tiles.outer[0].block else {}
        size = row * block
        each = {"RBLOCK": row} if tiles.inner else {}
        first = min(_most_warps(tiles, row, ctx), _warps(size, elements))
        for warps in (first, _warps(size, elements // 2), _warps(size, 2 * elements)):
            yield TritonConfig({**blocks, **each}, warps)


def _most_warps(tiles: Tiles, row: int, ctx: Context) -> int:
    """With fewer warps two programs of long rows share a multiprocessor; but where rows begin anywhere in memory, loads
    are so narrow that it takes more threads.
    """
    is_even = not tiles.inner or (tiles.inner.size.constant or 0) % _EVEN == 0
    return 16 if row > ctx.thresholds.long_row and (is_even or not tiles.is_read_again) else _MOST_WARPS


def _row_blocks(tiles: Tiles, row: int, width: int, ctx: Context) -> Iterable[int]:
    """How many rows, or columns, a program takes: as many as leave each processor several programs; of columns a line
    of the cache, if it can.
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
        lanes = 32 if _widest(tiles, program) >= 4 else 64
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
