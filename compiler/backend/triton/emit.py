"""Triton for GPUs: one module for a program, one function for each kernel.

A program of a kernel takes a tile of its points: see `tiles`. What lies on a tile is a variable named after what
it is in the graph; each load is done once, in the first line that needs it, under the mask of the axes that it depends
on. No mask is written for an axis that all blocks divide.

    pointers    <buffer>_ptr, in the order of TritonFunction.buffers
    indices     x and y are a kernel's points, r is what it reduces; i0, r1 … are the program's own ranges
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from compiler.backend.ir import ComboKernel, Kernel, MatmulKernel, Program
from compiler.backend.ir.index import Index
from compiler.backend.ir.scalar import DTYPES
from compiler.backend.passes.context import Context
from compiler.backend.triton.canonical import canonical_program
from compiler.backend.triton.combo import ComboWriter
from compiler.backend.triton.configs import TritonConfig
from compiler.backend.triton.kernel import KernelWriter, pointer
from compiler.backend.triton.matmul import MatmulWriter
from compiler.backend.triton.reductions import ReductionWriter
from compiler.backend.triton.text import functions

IMPORTS = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"


@dataclass(frozen=True, slots=True)
class TritonFunction:
    """A kernel's function. It takes a pointer to each of `buffers`, an int for each of `symbols`, then constexprs. The
    ints have the type `index`, "i32" or "i64".

    `grid` has for each axis the number of points and the constexpr that divides it, "" for one program a point; where
    it `is_folded` the launch has one axis with the programs of all. The first of `configs` is the heuristics' choice,
    the others are for tuning. One that `checks` has assertions (`tl.device_assert`): it is compiled with `debug=True,
    sanitize_overflow=False` for these to be there. `lines` are its first and its last in the module's text, from 1.
    """

    name: str
    kernel: str
    buffers: tuple[str, ...]
    symbols: tuple[str, ...]
    grid: tuple[tuple[Index, str], ...]
    configs: tuple[TritonConfig, ...]
    checks: bool
    lines: tuple[int, int]
    index: str = "i32"
    is_folded: bool = False
    canonical: Callable[[], CanonicalCode] | None = field(default=None, compare=False, repr=False)

    def programs(self, points: Callable[[Index], int], blocks: Mapping[str, int]) -> tuple[int, int, int]:
        """How many programs there are along each axis of a launch, given what a size is in numbers."""
        grid = [-(-points(size) // blocks.get(block, 1)) for size, block in self.grid]
        x, y, z = (*([math.prod(grid)] if self.is_folded else grid), 1, 1)[:3]
        return x, y, z


@dataclass(frozen=True, slots=True)
class CanonicalCode:
    """A kernel's code that is the same for all kernels that do the same, as in a model's layers.

    `starts` are the buffers of which one element alone is read, so many elements from where they start: the function is
    given a pointer to that. Each layer has its own in a graph's seeds of random numbers.
    """

    program: Program
    code: TritonCode
    starts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TritonCode:
    """A module. `lines` says for a line of the text which loop's value it computes."""

    text: str
    functions: tuple[TritonFunction, ...]
    lines: Mapping[int, str] = field(default_factory=dict)


def emit(program: Program, ctx: Context) -> TritonCode:
    """The program's kernels in Triton, in their order."""
    writers = [_writer(kernel, program, ctx) for kernel in program.kernels]
    bodies = ["\n".join(writer.write()) for writer in writers]
    called = {name for writer in writers for name in writer.called}
    head = "\n\n\n".join([f'"""{program.name}"""\n\n{IMPORTS}'.rstrip(), *functions(called)])
    number, lines, made = head.count("\n") + 4, {}, []
    known: dict[Program, TritonCode] = {}
    for kernel, writer in zip(program.kernels, writers, strict=True):
        lines.update({number + line: target for line, target in writer.targets.items()})
        canonical = cache(partial(emit_canonical, kernel, program, ctx, known))
        made.append(replace(_function(writer, number), canonical=canonical))
        number += len(writer.lines) + 2
    return TritonCode("\n\n\n".join([head, *bodies]) + "\n", tuple(made), lines)


def signature(program: Program, function: TritonFunction) -> Mapping[str, str]:
    """Triton's types of the function's arguments, in their order."""
    blocks = function.configs[0].blocks
    return {
        **{pointer(name): DTYPES[program.by_name[name].dtype].pointer for name in function.buffers},
        **dict.fromkeys(function.symbols, function.index),
        **dict.fromkeys(blocks, "constexpr"),
    }


def emit_canonical(kernel: Kernel, program: Program, ctx: Context, known: dict[Program, TritonCode]) -> CanonicalCode:
    """The code of a kernel under names that do not tell it from kernels alike. `known` is what was emitted before."""
    renamed, starts = canonical_program(kernel, program)
    if renamed not in known:
        known[renamed] = emit(renamed, ctx)
    return CanonicalCode(renamed, known[renamed], starts)


def _writer(kernel: Kernel, program: Program, ctx: Context) -> KernelWriter | ComboWriter:
    if isinstance(kernel, ComboKernel):
        return ComboWriter(kernel, program, ctx)
    if isinstance(kernel, MatmulKernel):
        return MatmulWriter(kernel, program, ctx)
    return ReductionWriter(kernel, program, ctx)


def _function(writer: KernelWriter | ComboWriter, first: int) -> TritonFunction:
    grid = tuple((axis.size, axis.block) for axis in writer.tiles.numbered) or ((Index.of(1), ""),)
    return TritonFunction(
        writer.name, writer.kernel.name, writer.buffers, writer.symbols, grid, writer.configs, writer.checks,
        (first, first + len(writer.lines) - 1), "i64" if writer.tiles.is_wide else "i32", writer.tiles.is_folded,
    )  # fmt: skip
