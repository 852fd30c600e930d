"""Generate Triton for GPUs: one module for a program, one function for each kernel.

Each Triton program computes a tile: see `tiles`. Variables on a tile are named after the values of the graph. Each load
is done once, in the first line that needs it, with the mask of the axes that it depends on. An axis needs no mask if
its size is a multiple of the block in all configurations.

    pointers    <buffer>_ptr, in the order of TritonFunction.buffers
    indices     x and y are outer axes, r is the reduced axis; i0, r1 … are the ranges of the IR

A combo kernel has a function for each of its parts, and each program of the launch calls one of them. Kernels that
differ in names only, such as those of a model's layers, are equal under canonical names, so they are compiled and
loaded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from compiler.backend.ir import ComboKernel, Kernel, Loop, MatmulKernel, Program, Strided, map_leaves
from compiler.backend.ir.expr import rename_buffers
from compiler.backend.ir.index import Index, Var
from compiler.backend.ir.kernel_text import Lines
from compiler.backend.ir.scalar import DTYPES
from compiler.backend.passes.context import Context
from compiler.backend.passes.names import without_number
from compiler.backend.triton.kernel import KernelWriter, pointer
from compiler.backend.triton.matmul import MatmulWriter
from compiler.backend.triton.reductions import ReductionWriter
from compiler.backend.triton.text import functions, identifier
from compiler.backend.triton.tiles import Axis, Tiles, TritonConfig, next_power_of_two

IMPORTS = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
_SIDE = 32
_WARPS = 4


@dataclass(frozen=True, slots=True)
class TritonFunction:
    """A kernel's function. Its arguments are pointers to `buffers`, the ints `symbols`, then constexprs.

    index      type of the ints: "i32" or "i64"
    grid       for each axis, the number of points, and the name of the block's constexpr ("": one program per point)
    is_folded  whether the programs of all axes are launched along a single axis
    configs    configurations: the heuristics' choice first, then those for autotuning only
    checks     whether it has assertions (`tl.device_assert`), which need `debug=True, sanitize_overflow=False`
    lines      its first and last line in the module's text, from 1
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
        """Number of programs along each axis of a launch; `points` evaluates a size."""
        grid = [-(-points(size) // blocks.get(block, 1)) for size, block in self.grid]
        x, y, z = (*([math.prod(grid)] if self.is_folded else grid), 1, 1)[:3]
        return x, y, z


@dataclass(frozen=True, slots=True)
class CanonicalCode:
    """A kernel's code under canonical names, shared by kernels that differ only in names, as in a model's layers.

    For each buffer of which the kernel reads a single element, `starts` has the element's offset, in elements: the
    function gets a pointer to it. For example, each layer reads its own seed of random numbers.
    """

    program: Program
    code: TritonCode
    starts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TritonCode:
    """A module of kernels. `lines` maps a line number of the text to the target of the loop that the line computes."""

    text: str
    functions: tuple[TritonFunction, ...]
    lines: Mapping[int, str] = field(default_factory=dict)


def emit(program: Program, ctx: Context) -> TritonCode:
    """Generate Triton for a program's kernels, in order."""
    writers: list[KernelWriter | ComboWriter] = [_WRITERS[type(k)](k, program, ctx) for k in program.kernels]
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
    """Triton types of the function's arguments by name, in order."""
    blocks = function.configs[0].blocks
    return {
        **{pointer(name): DTYPES[program.by_name[name].dtype].pointer for name in function.buffers},
        **dict.fromkeys(function.symbols, function.index),
        **dict.fromkeys(blocks, "constexpr"),
    }


def emit_canonical(kernel: Kernel, program: Program, ctx: Context, known: dict[Program, TritonCode]) -> CanonicalCode:
    """Generate a kernel's code under canonical names. `known` caches the code by canonical program."""
    renamed, starts = canonical_program(kernel, program)
    if renamed not in known:
        known[renamed] = emit(renamed, ctx)
    return CanonicalCode(renamed, known[renamed], starts)


def _function(writer: KernelWriter | ComboWriter, first: int) -> TritonFunction:
    grid = tuple((axis.size, axis.block) for axis in writer.tiles.numbered) or ((Index.of(1), ""),)
    return TritonFunction(
        writer.name, writer.kernel.name, writer.buffers, writer.symbols, grid, writer.configs, writer.checks,
        (first, first + len(writer.lines) - 1), "i64" if writer.tiles.is_wide else "i32", writer.tiles.is_folded,
    )  # fmt: skip


class PartWriter(ReductionWriter):
    """Writes one part of a combo kernel as a function whose first argument is the program's index in the part."""

    def __init__(self, name: str, kernel: Kernel, program: Program, ctx: Context) -> None:
        super().__init__(kernel, program, ctx)
        self.name = name
        self.names.taken.add("program")
        self.programs = 1
        for axis in self.tiles.outer:
            self.programs *= -(-ctx.number(axis.size) // self.configs[0].blocks[axis.block])

    def choices(self) -> tuple[TritonConfig, ...]:
        sizes = [next_power_of_two(self.ctx.number(axis.size)) for axis in self.tiles.outer]
        points = self.ctx.thresholds.combo_block
        if len(sizes) == 2:
            wide = min(_SIDE, sizes[1])
            return (TritonConfig({"YBLOCK": min(points // wide, sizes[0]), "XBLOCK": wide}, _WARPS),)
        return (TritonConfig({"XBLOCK": min(points, *sizes)} if sizes else {}, _WARPS),)

    @property
    def arguments(self) -> list[str]:
        return ["program", *super().arguments]

    def starts(self) -> list[str]:
        program = f"program{self.wide}"
        return self.unfold_program(program) if len(self.tiles.outer) == 2 else [program] * len(self.tiles.outer)


class ComboWriter(Lines):
    """Writes a combo kernel: a function for each part, and the function that is launched, which calls the parts."""

    def __init__(self, kernel: ComboKernel, program: Program, ctx: Context) -> None:
        super().__init__()
        self.kernel, self.buffers, self.name = kernel, kernel.buffers, f"kernel_{identifier(kernel.name)}"
        names = (f"part_{number}_of_{identifier(kernel.parts[0].name)}" for number in range(len(kernel.parts)))
        self.parts = [PartWriter(name, part, program, ctx) for name, part in zip(names, kernel.parts, strict=True)]
        axis = Axis(Var("program", Index.of(sum(part.programs for part in self.parts))), "", {})
        self.tiles = Tiles(kernel, "pointwise", (axis,), None, False, False)
        self.configs = (TritonConfig({}, _WARPS),)
        self.symbols: tuple[str, ...] = ()
        self.called: set[str] = set()
        self.checks = False

    def write(self) -> list[str]:
        """Write all functions; returns their lines."""
        for part in self.parts:
            written = part.write()
            self.called |= part.called
            self.targets.update({len(self.lines) + line: target for line, target in part.targets.items()})
            self.lines += [*written, "", ""]
        self.line("@triton.jit")
        self.head(f"def {self.name}(", [*map(pointer, self.buffers)], "):")
        self.depth = 1
        self.line("program = tl.program_id(0)")
        first = 0
        for part in self.parts:
            end = first + part.programs
            self.line(f"if ({first} <= program) & (program < {end}):" if first else f"if program < {end}:")
            self.depth = 2
            blocks = [f"{name}={size}" for name, size in part.configs[0].blocks.items()]
            number = f"program - {first}" if first else "program"
            self.head(f"{part.name}(", [number, *map(pointer, part.buffers), *blocks], ")")
            self.depth, first = 1, end
        return self.lines


def canonical_program(kernel: Kernel, program: Program) -> tuple[Program, Mapping[str, int]]:
    """A program with only this kernel, under canonical names, and offsets of single elements, by buffer.

    If the kernel reads a single element of a buffer, the canonical kernel reads the buffer's first element instead.
    """
    starts = dict(_single_elements(kernel, program))
    names = {name: f"b{number}" for number, name in enumerate(dict.fromkeys(_names_in_order(kernel)))}
    renamed = _Renaming(names, starts).kernel(kernel)
    buffers = (replace(program.by_name[name], name=new, reuses="") for name, new in names.items())
    return Program("", tuple(buffers), (), (renamed,), ()), starts


def _names_in_order(kernel: Kernel) -> Iterator[str]:
    yield from (view.buffer for view in kernel.operands)
    yield from (*kernel.buffers, *kernel.targets, *kernel.taken)


def _single_elements(kernel: Kernel, program: Program) -> Iterator[tuple[str, int]]:
    own = {*kernel.targets, *kernel.taken, *(view.buffer for view in kernel.operands)}
    for name in kernel.reads:
        places = {program.by_name[name].offset(index).constant for index in kernel.places(name)}
        if name not in own and len(places) == 1 and (start := places.pop()) is not None:
            yield name, start


class _Renaming:
    def __init__(self, names: Mapping[str, str], starts: Mapping[str, int]) -> None:
        self.names, self.starts = names, starts

    def kernel(self, kernel: Kernel) -> Kernel:
        loops = tuple(self.loop(loop, order) for order, loop in enumerate(kernel.loops))
        local = frozenset(map(self.names.__getitem__, kernel.local))
        found = replace(kernel, name=without_number(kernel.name), loops=loops, local=local)
        if isinstance(found, ComboKernel):
            return replace(found, parts=tuple(map(self.kernel, found.parts)))
        if isinstance(found, MatmulKernel):
            args = map_leaves(found.call.args, self.argument)
            call = replace(found.call, args=args, origins=(), source="", outputs=self.names[found.made])
            return replace(found, call=call)
        return found

    def argument(self, leaf: object) -> object:
        return replace(leaf, buffer=self.names[leaf.buffer]) if isinstance(leaf, Strided) else leaf

    def loop(self, loop: Loop, order: int) -> Loop:
        value, target = rename_buffers(loop.value, self.names, self.starts), self.names[loop.target]
        return replace(loop, target=target, value=value, order=order, origins=(), source="", operator="")


_WRITERS: Mapping[type, Any] = {Kernel: ReductionWriter, MatmulKernel: MatmulWriter, ComboKernel: ComboWriter}
"""The writer of each class of kernel."""
