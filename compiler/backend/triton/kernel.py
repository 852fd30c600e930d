"""A kernel's Triton: its arguments, where the points of a program are, and a value for each loop.

Lines are written as they are needed: an expression asks for its loads, and these for the indices that they are at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from compiler.backend.ir import Kernel, Loop, Program
from compiler.backend.ir.code_lines import Lines
from compiler.backend.ir.expr import Const, Expr, Load, Put, indices, parts
from compiler.backend.ir.index import Index, Indirect, Var
from compiler.backend.ir.index_maps import atoms_of, indirects
from compiler.backend.ir.symbols import kernel_indices, symbols_and_checks
from compiler.backend.passes.context import Context
from compiler.backend.triton.configs import TritonConfig, configs
from compiler.backend.triton.precision import precision
from compiler.backend.triton.text import TYPES, Names, Text, bare, identifier
from compiler.backend.triton.tiles import Axis, Tiles, tile_kernel


def pointer(name: str) -> str:
    """The argument for a buffer."""
    return f"{identifier(name)}_ptr"


class TritonLines(Lines):
    """Lines of Triton."""

    def head(self, start: str, arguments: list[str], end: str) -> None:
        """A function's head, or a call."""
        if len(start) + sum(len(argument) + 2 for argument in arguments) < 110:
            self.line(f"{start}{', '.join(arguments)}{end}")
            return
        self.line(start)
        row = ""
        for argument in arguments:
            if len(row) + len(argument) > 100:
                self.line(f"    {row.rstrip()}")
                row = ""
            row += f"{argument}, "
        self.line(f"    {row.rstrip()}")
        self.line(end)


class KernelWriter(TritonLines):
    """Writes one kernel: its head, where its points are, and values at each point."""

    def __init__(self, kernel: Kernel, program: Program, ctx: Context) -> None:
        super().__init__()
        self.program, self.ctx = program, ctx
        self.tiles = self.choose_tiles(kernel)
        self.kernel = self.tiles.kernel
        self.configs = self.choices()
        self.levels = precision(self.kernel, program)
        self.policy = ""
        self.names = Names()
        self.called: set[str] = set()
        self.known: dict[str, str] = {}
        self.given: dict[str, str] = {}
        self.guarded: dict[str, set[str]] = {}
        self.spans: dict[str, set[str]] = {}
        for loop in self.kernel.loops:
            self.spans[loop.target] = self.span(loop)
        self.ranges = {value.key: name for axis in self.axes for name, value in axis.values.items()}
        self.text = Text(self)
        own = (*kernel_indices(kernel, program), *kernel_indices(self.kernel, program))
        self.symbols, self.checks = symbols_and_checks(own)
        self.names.taken |= set(self.symbols)
        self.buffers = kernel.buffers
        self.name = f"kernel_{identifier(kernel.name)}"

    def choose_tiles(self, kernel: Kernel) -> Tiles:
        """The kernel on tiles."""
        return tile_kernel(kernel, self.program, self.ctx)

    def choices(self) -> tuple[TritonConfig, ...]:
        """Its configurations: the first is the one to take without measuring."""
        return configs(self.tiles, self.program, self.ctx)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.tiles.outer, *([self.tiles.inner] if self.tiles.inner else []))

    @property
    def wide(self) -> str:
        """What makes Triton's own indices those of 64 bits, "" where 32 are enough."""
        return ".to(tl.int64)" if self.tiles.is_wide else ""

    @property
    def arguments(self) -> list[str]:
        """What the function is given, as its head says it."""
        blocks = (f"{name}: tl.constexpr" for name in self.configs[0].blocks)
        return [*map(pointer, self.buffers), *self.symbols, *blocks]

    def write(self) -> list[str]:
        """The function's lines."""
        self.line("@triton.jit")
        self.head(f"def {self.name}(", self.arguments, "):")
        self.depth = 1
        self.outer_axes()
        self.body()
        return self.lines

    def body(self) -> None:
        """All that a program does with its points."""
        for loop in self.kernel.loops:
            self.value(loop)

    # The axes: where a program's points are.

    def starts(self) -> list[str]:
        """Which block of each numbered axis is the program's."""
        if not self.tiles.is_folded:
            return [f"tl.program_id({place}){self.wide}" for place in range(len(self.tiles.numbered))]
        program = self.names.new("program")
        self.line(f"{program} = tl.program_id(0){self.wide}")
        return self.unfold_program(program)

    def unfold_program(self, program: str) -> list[str]:
        """The same of two axes where the grid has one for both."""
        first = self.tiles.numbered[0]
        high = f"tl.cdiv({self.text.index(first.size)}, {first.block})"
        return [f"{program} % {high}", f"{program} // {high}"]

    def outer_axes(self) -> None:
        for start, axis in zip(self.starts(), self.tiles.numbered, strict=True):
            if not axis.block:
                self.line(f"{axis.var} = {start}")
            else:
                self.line(f"{axis.var} = {self.block_points(axis, f'{start} * {axis.block}')}")
                self.mask(axis)

    def inner_axis(self, axis: Axis, start: str) -> None:
        self.line(f"{axis.var} = {self.block_points(axis, start, self.wide)}")
        self.mask(axis)

    def block_points(self, axis: Axis, start: str, wide: str = "") -> str:
        """The points of a block as a row, a column, or all of the tile."""
        text = f"tl.arange(0, {axis.block}){wide}"
        text = f"{start} + {text}" if start else text
        if len(self.tiles.tiled) == 1:
            return text
        text = f"({text})" if start else text
        return text + ("[:, None]" if axis is self.tiles.tiled[0] else "[None, :]")

    def mask(self, axis: Axis) -> None:
        if self.is_masked(axis):
            self.line(f"{mask_of(axis)} = {axis.var} < {self.text.index(axis.size)}")

    def is_masked(self, axis: Axis) -> bool:
        """Whether a block may reach beyond the last point."""
        size = axis.size.constant
        return bool(axis.block) and (not size or any(size % config.blocks[axis.block] for config in self.configs))

    def axes_of(self, value: Expr | Index) -> set[str]:
        """The names of the axes that a value depends on."""
        if isinstance(value, Index):
            own = {axis.var.key for axis in self.axes}
            found = {atom.name for atom in atoms_of(value) if isinstance(atom, Var) and atom.key in own}
            return found.union(*(self.axes_of(held.value) for held in indirects(value)))
        found = set()
        for part in parts(value):
            if isinstance(part, Load) and part.buffer in self.spans:
                found |= self.spans[part.buffer]
            else:
                found = found.union(*map(self.axes_of, indices(part)))
        return found

    def span(self, loop: Loop) -> set[str]:
        """The axes of the tile that a loop's value has."""
        is_reduced = loop.reduction and not loop.is_scan and self.tiles.inner
        if loop.is_scan:
            return {axis.var.name for axis in self.axes}
        return {axis.var.name for axis in self.tiles.outer} if is_reduced else self.axes_of(loop.value)

    def mask_for(self, names: Iterable[str], guard: str = "") -> str:
        """The condition under which points of these axes are there, "" if they always are."""
        masks = [mask_of(axis) for axis in self.axes if axis.var.name in names and self.is_masked(axis)]
        return " & ".join([*masks, *([guard] if guard else [])])

    def shape(self, names: Iterable[str]) -> str:
        """The shape of a tile over these axes."""
        sizes = [axis.block if axis.var.name in names else "1" for axis in self.tiles.tiled]
        return f"[{', '.join(sizes)}]"

    # Values.

    def assign(self, key: str, wanted: str, text: Callable[[], str]) -> str:
        if key not in self.known:
            made = bare(text())
            if made.isidentifier():
                return made
            name = self.given.get(key) or self.names.new(self.ranges.get(f"1*{key}", wanted))
            self.given[key] = name
            self.line(f"{name} = {made}")
            self.known[key] = name
        return self.known[key]

    def load(self, load: Load, guard: str) -> str:
        """An element: a value that the kernel has at hand, or from memory."""
        if load.buffer in self.known:
            return self.known[load.buffer]
        place = self.program.by_name[load.buffer].offset(load.index)
        return self.assign(
            f"{load.buffer} + {place.key} {guard}", load.buffer, lambda: self.load_text(load, place, guard)
        )

    def load_text(self, load: Load, place: Index, guard: str) -> str:
        where, axes = self.place(load.buffer, place, guard), self.axes_of(place)
        mask = self.mask_for(axes, guard)
        over = self.guarded.get(guard, set()) | axes
        if self.shape(over) != self.shape(axes) and self.tiles.tiled:
            where = f"tl.broadcast_to({where}, {self.shape(over)})"
        inner = self.tiles.inner
        policy = f'eviction_policy="{self.policy}"' if self.policy and inner and inner.var.name in axes else ""
        return f"tl.load({', '.join(filter(None, (where, mask, policy)))})"

    def guards(self, guard: str, condition: Expr, outer: str) -> None:
        self.guarded[guard] = self.axes_of(condition) | self.guarded.get(outer, set())

    def place(self, buffer: str, place: Index, guard: str = "") -> str:
        offset = self.text.index(place, guard)
        if offset == "0":
            return pointer(buffer)
        return f"{pointer(buffer)} + {offset if len(place.terms) == 1 else f'({offset})'}"

    def checked_index(self, atom: Indirect, guard: str) -> str:
        """An index that a tensor holds. What is out of range ends the program, as with PyTorch's own kernels."""
        at = self.assign(f"{atom.value.key} {guard}", "at", lambda: self.text.value(atom.value, guard))
        key = f"checked {atom.key} {guard}"
        if key not in self.known:
            self.known[key] = at
            inside = f"(0 <= {at}) & ({at} < {self.text.index(atom.size)})"
            mask = self.mask_for(self.axes_of(atom.value), guard)
            outside = f" | ~({mask})" if "&" in mask else f" | ~{mask}" if mask else ""
            self.line(f'tl.device_assert({f"({inside})" if outside else inside}{outside}, "index out of range")')
        return f"{at}.to(tl.int64)" if self.tiles.is_wide and atom.value.dtype != torch.int64 else at

    def value(self, loop: Loop, again: bool = False) -> None:
        """One value, stored unless it is local, or was stored before."""
        with self.lines_of(loop):
            if isinstance(loop.value, Put):
                self.add(loop, loop.value)
                return
            self.known[loop.target] = self.assign(loop.target, loop.target, lambda: self.value_text(loop))
            if not again:
                self.store(loop)

    def value_text(self, loop: Loop) -> str:
        """A loop's value; a number that others compute with has its type, which Python's has not."""
        text = self.text.value(loop.value)
        is_number = isinstance(loop.value, Const) and self.kernel.places(loop.target)
        return f"tl.full([], {text}, tl.{TYPES[loop.value.dtype]})" if is_number else text

    def add(self, loop: Loop, put: Put) -> None:
        """Values added to elements that other points may meet too, or put in their place."""
        place = self.program.by_name[loop.target].offset(put.index)
        value, where = bare(self.text.value(put.value)), self.place(loop.target, place)
        over = {var.name for var in loop.ranges}
        if self.tiles.tiled and not over <= {atom.name for atom in atoms_of(place) if isinstance(atom, Var)}:
            where = f"tl.broadcast_to({where}, {self.shape(over)})"
        mask = self.mask_for(over)
        more = f", {mask}" if mask else ""
        self.line(
            f'tl.atomic_add({where}, {value}{more}, sem="relaxed")' if put.adds else f"tl.store({where}, {value}{more})"
        )

    @contextmanager
    def lines_of(self, loop: Loop) -> Iterator[None]:
        """Lines inside belong to the loop."""
        self.target = loop.target
        self.comment(loop)
        self.text = Text(self, loop.value, self.levels[loop.target])
        yield
        self.target = ""

    def store(self, loop: Loop) -> None:
        if loop.target in self.kernel.local:
            return
        place = self.program.by_name[loop.target].offset(loop.index)
        where, mask = self.place(loop.target, place), self.mask_for(var.name for var in loop.stored)
        self.line(f"tl.store({where}, {self.known[loop.target]}{f', {mask}' if mask else ''})")


def mask_of(axis: Axis) -> str:
    """The variable that says which points of a block are there."""
    return f"mask_{axis.var}"
