"""Several kernels in one Triton function: each has a function of its own, and each program of the launch calls one."""

from __future__ import annotations

from compiler.backend.ir import ComboKernel, Kernel, Program
from compiler.backend.ir.index import Index, Var
from compiler.backend.passes.context import Context
from compiler.backend.triton.configs import TritonConfig, next_power_of_two
from compiler.backend.triton.kernel import TritonLines, pointer
from compiler.backend.triton.reductions import ReductionWriter
from compiler.backend.triton.text import identifier
from compiler.backend.triton.tiles import Axis, Tiles

_POINTS = 1024
_SIDE = 32
_WARPS = 4


class PartWriter(ReductionWriter):
    """Writes one part of a combo kernel as a function of the program's number in it."""

    def __init__(self, name: str, kernel: Kernel, program: Program, ctx: Context) -> None:
        super().__init__(kernel, program, ctx)
        self.name = name
        self.names.taken.add("program")
        self.programs = 1
        for axis in self.tiles.outer:
            self.programs *= -(-ctx.number(axis.size) // self.configs[0].blocks[axis.block])

    def choices(self) -> tuple[TritonConfig, ...]:
        sizes = [next_power_of_two(self.ctx.number(axis.size)) for axis in self.tiles.outer]
        if len(sizes) == 2:
            wide = min(_SIDE, sizes[1])
            return (TritonConfig({"YBLOCK": min(_POINTS // wide, sizes[0]), "XBLOCK": wide}, _WARPS),)
        return (TritonConfig({"XBLOCK": min(_POINTS, *sizes)} if sizes else {}, _WARPS),)

    @property
    def arguments(self) -> list[str]:
        return ["program", *super().arguments]

    def starts(self) -> list[str]:
        program = f"program{self.wide}"
        return self.unfold_program(program) if len(self.tiles.outer) == 2 else [program] * len(self.tiles.outer)


class ComboWriter(TritonLines):
    """Writes the parts of a combo kernel, and the function that is launched."""

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
        """The functions' lines."""
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
