"""A kernel's Triton: its arguments, where the points of a program are, and a value for each loop.

Lines are written as they are needed: an expression asks for its loads, and these for the indices that they are at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from compiler.backend.ir import Kernel, Loop, Program
from compiler.backend.ir.expr import Const, Load, Put, parts
from compiler.backend.ir.index import Index, Indirect, Var, atoms_of
from compiler.backend.ir.symbols import symbols_and_checks
from compiler.backend.passes.context import Context
from compiler.backend.triton.text import TYPES, TritonText, bare, identifier, precision
from compiler.backend.triton.tiles import Axis, Tiles, TritonConfig, configs, tile_kernel


def pointer(name: str) -> str:
    """The argument for a buffer."""
    return f"{identifier(name)}_ptr"


class KernelWriter(TritonText):
    """Writes one kernel: its head, where its points are, and values at each point."""

    def __init__(self, kernel: Kernel, program: Program, ctx: Context) -> None:
        self.program, self.ctx = program, ctx
        self.tiles = self.choose_tiles(kernel)
        super().__init__(self.tiles.kernel, program)
        self.configs = self.choices()
        self.precision_of = precision(self.kernel, program)
        self.policy = ""
        self.axis_keys = {axis.var.key for axis in self.axes}
        for loop in self.kernel.loops:
            self.spans[loop.target] = self.span(loop)
        self.ranges = {value.key: name for axis in self.axes for name, value in axis.values.items()}
        self.symbols, self.checks = symbols_and_checks(program, kernel, self.kernel)
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
        """The conversion of indices to 64 bits, "" if 32 are enough."""
        return ".to(tl.int64)" if self.tiles.is_wide else ""

    @property
    def arguments(self) -> list[str]:
        """The function's parameters, as in its head."""
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
        """Write what a program does with its points."""
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
        """The blocks of two axes that share one axis of the grid."""
        first = self.tiles.numbered[0]
        high = f"tl.cdiv({self.index(first.size)}, {first.block})"
        return [f"{program} % {high}", f"{program} // {high}"]

    def outer_axes(self) -> None:
        for start, axis in zip(self.starts(), self.tiles.numbered, strict=True):
            if axis.block:
                self.tile_axis(axis, f"{start} * {axis.block}")
            else:
                self.line(f"{axis.var} = {start}")

    def tile_axis(self, axis: Axis, start: str, wide: str = "") -> None:
        """The points of a block as a row, a column, or all of the tile, and which of them are there."""
        text = f"tl.arange(0, {axis.block}){wide}"
        text = f"{start} + {text}" if start else text
        if len(self.tiles.tiled) > 1:
            place = "[:, None]" if axis is self.tiles.tiled[0] else "[None, :]"
            text = f"({text}){place}" if start else f"{text}{place}"
        self.line(f"{axis.var} = {text}")
        if self.is_masked(axis):
            self.line(f"{mask_of(axis)} = {axis.var} < {self.index(axis.size)}")

    def is_masked(self, axis: Axis) -> bool:
        """Whether a block may reach beyond the last point."""
        size = axis.size.constant
        return bool(axis.block) and (not size or any(size % config.blocks[axis.block] for config in self.configs))

    def span(self, loop: Loop) -> set[str]:
        """The axes of the tile that a loop's value has."""
        is_reduced = loop.reduction and not loop.is_scan and self.tiles.inner
        if loop.is_scan:
            return {axis.var.name for axis in self.axes}
        return {axis.var.name for axis in self.tiles.outer} if is_reduced else self.axes_of(loop.value)

    def mask_for(self, names: Iterable[str], guard: str = "") -> str:
        """The mask of points along these axes, "" if it is always true."""
        masks = [mask_of(axis) for axis in self.axes if axis.var.name in names and self.is_masked(axis)]
        return " & ".join([*masks, *([guard] if guard else [])])

    def shape(self, names: Iterable[str]) -> str:
        """The shape of a tile over these axes."""
        sizes = [axis.block if axis.var.name in names else "1" for axis in self.tiles.tiled]
        return f"[{', '.join(sizes)}]"

    # Values.

    def write_load(self, load: Load) -> str:
        if load.buffer in self.known:
            return self.known[load.buffer]
        place = self.offset(load.buffer, load.index)
        return self.assign(
            f"{load.buffer} + {place.key} {self.guard}", load.buffer, lambda: self.load_text(load, place)
        )

    def load_text(self, load: Load, place: Index) -> str:
        where, axes = self.place(load.buffer, place), self.axes_of(place)
        mask = self.mask_for(axes, self.guard)
        over = self.guarded.get(self.guard, set()) | axes
        if self.shape(over) != self.shape(axes) and self.tiles.tiled:
            where = f"tl.broadcast_to({where}, {self.shape(over)})"
        inner = self.tiles.inner
        policy = f'eviction_policy="{self.policy}"' if self.policy and inner and inner.var.name in axes else ""
        return f"tl.load({', '.join(filter(None, (where, mask, policy)))})"

    def place(self, buffer: str, place: Index) -> str:
        offset = self.index(place)
        if offset == "0":
            return pointer(buffer)
        return f"{pointer(buffer)} + {offset if len(place.terms) == 1 else f'({offset})'}"

    def write_indirect(self, atom: Indirect) -> str:
        """An index that a tensor holds. What is out of range ends the program, as with PyTorch's own kernels."""
        at = self.assign(f"{atom.value.key} {self.guard}", "at", lambda: self.text(atom.value))
        key = f"checked {atom.key} {self.guard}"
        if key not in self.known:
            self.known[key] = at
            inside = f"(0 <= {at}) & ({at} < {self.index(atom.size)})"
            mask = self.mask_for(self.axes_of(atom.value), self.guard)
            outside = f" | ~({mask})" if "&" in mask else f" | ~{mask}" if mask else ""
            self.line(f'tl.device_assert({f"({inside})" if outside else inside}{outside}, "index out of range")')
        return f"{at}.to(tl.int64)" if self.tiles.is_wide and atom.value.dtype != torch.int64 else at

    def value(self, loop: Loop, again: bool = False) -> None:
        """Write one value, stored unless it is local or was stored before."""
        with self.lines_of(loop):
            if isinstance(loop.value, Put):
                self.add(loop, loop.value)
                return
            self.known[loop.target] = self.assign(loop.target, loop.target, lambda: self.value_text(loop))
            if not again:
                self.store(loop)

    def value_text(self, loop: Loop) -> str:
        """A loop's value; a constant that other loops read is written with its dtype."""
        text = self.text(loop.value)
        is_number = isinstance(loop.value, Const) and self.kernel.places(loop.target)
        return f"tl.full([], {text}, tl.{TYPES[loop.value.dtype]})" if is_number else text

    def add(self, loop: Loop, put: Put) -> None:
        """Write a scatter: an atomic addition, or a store that overwrites."""
        place = self.offset(loop.target, put.index)
        value, where = bare(self.text(put.value)), self.place(loop.target, place)
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
        """Mark the lines written inside as the loop's."""
        self.target = loop.target
        self.comment(loop)
        self.uses, self.levels = Counter(part.key for part in parts(loop.value)), self.precision_of[loop.target]
        yield
        self.target = ""

    def store(self, loop: Loop) -> None:
        if loop.target in self.kernel.local:
            return
        place = self.offset(loop.target, loop.index)
        where, mask = self.place(loop.target, place), self.mask_for(var.name for var in loop.stored)
        self.line(f"tl.store({where}, {self.known[loop.target]}{f', {mask}' if mask else ''})")


def mask_of(axis: Axis) -> str:
    """The variable that says which points of a block are there."""
    return f"mask_{axis.var}"
