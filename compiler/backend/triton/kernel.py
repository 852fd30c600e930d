"""Write a kernel in Triton: its arguments, the indices of a program's points, and a value for each loop.

Lines are written on demand: an expression writes its loads first, and a load writes its indices.
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
    """Name of a buffer's pointer argument."""
    return f"{identifier(name)}_ptr"


class KernelWriter(TritonText):
    """Writes one kernel: its signature, the indices of its points, and the values at each point."""

    def __init__(self, kernel: Kernel, program: Program, ctx: Context) -> None:
        self.program, self.ctx = program, ctx
        self.tiles = self.choose_tiles(kernel)
        super().__init__(self.tiles.kernel, program)
        self.is_wide = self.tiles.is_wide
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
        """Choose the kernel's tiles."""
        return tile_kernel(kernel, self.program, self.ctx)

    def choices(self) -> tuple[TritonConfig, ...]:
        """The kernel's configurations; the first is the heuristics' choice."""
        return configs(self.tiles, self.program, self.ctx)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.tiles.outer, *([self.tiles.inner] if self.tiles.inner else []))

    @property
    def wide(self) -> str:
        """Suffix that converts indices to int64, "" if 32 bits are enough."""
        return ".to(tl.int64)" if self.is_wide else ""

    @property
    def arguments(self) -> list[str]:
        """Parameters of the function, as in its signature."""
        blocks = (f"{name}: tl.constexpr" for name in self.configs[0].blocks)
        return [*map(pointer, self.buffers), *self.symbols, *blocks]

    def write(self) -> list[str]:
        """Write the function; returns its lines."""
        self.line("@triton.jit")
        self.head(f"def {self.name}(", self.arguments, "):")
        self.depth = 1
        self.outer_axes()
        self.body()
        return self.lines

    def body(self) -> None:
        """Write the function's body, after its outer axes."""
        for loop in self.kernel.loops:
            self.value(loop)

    # The axes: indices of a program's points.

    def starts(self) -> list[str]:
        """The program's index along each outer axis, as Triton text."""
        if not self.tiles.is_folded:
            return [f"tl.program_id({place}){self.wide}" for place in range(len(self.tiles.numbered))]
        program = self.names.new("program")
        self.line(f"{program} = tl.program_id(0){self.wide}")
        return self.unfold_program(program)

    def unfold_program(self, program: str) -> list[str]:
        """The indices along two outer axes that share one axis of the grid, as Triton text."""
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
        """Write the indices of a block along an axis, shaped to broadcast in the tile, and their mask."""
        text = f"tl.arange(0, {axis.block}){wide}"
        text = f"{start} + {text}" if start else text
        if len(self.tiles.tiled) > 1:
            place = "[:, None]" if axis is self.tiles.tiled[0] else "[None, :]"
            text = f"({text}){place}" if start else f"{text}{place}"
        self.line(f"{axis.var} = {text}")
        if self.is_masked(axis):
            self.line(f"{mask_of(axis)} = {axis.var} < {self.index(axis.size)}")

    def is_masked(self, axis: Axis) -> bool:
        """Whether an axis's last block may be out of bounds."""
        size = axis.size.constant
        return bool(axis.block) and (not size or any(size % config.blocks[axis.block] for config in self.configs))

    def span(self, loop: Loop) -> set[str]:
        """Names of the axes along which a loop's value varies."""
        is_reduced = loop.reduction and not loop.is_scan and self.tiles.inner
        if loop.is_scan:
            return {axis.var.name for axis in self.axes}
        return {axis.var.name for axis in self.tiles.outer} if is_reduced else self.axes_of(loop.value)

    def mask_for(self, names: Iterable[str], guard: str = "") -> str:
        """The mask over these axes, combined with a guard; "" if it is always true."""
        masks = [mask_of(axis) for axis in self.axes if axis.var.name in names and self.is_masked(axis)]
        return " & ".join([*masks, *([guard] if guard else [])])

    def shape(self, names: Iterable[str]) -> str:
        """Shape of a tile over these axes, as text; its size along other axes is 1."""
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
        """Text of an index that is a tensor's element. Also writes an assertion that it is in range."""
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
        """Write a loop's value, and store it unless it is local or only recomputed (`again`)."""
        with self.lines_of(loop):
            if isinstance(loop.value, Put):
                self.add(loop, loop.value)
                return
            self.known[loop.target] = self.assign(loop.target, loop.target, lambda: self.value_text(loop))
            if not again:
                self.store(loop)

    def value_text(self, loop: Loop) -> str:
        """A loop's value as text. A constant that other loops read gets an explicit dtype."""
        text = self.text(loop.value)
        is_number = isinstance(loop.value, Const) and self.kernel.places(loop.target)
        return f"tl.full([], {text}, tl.{TYPES[loop.value.dtype]})" if is_number else text

    def add(self, loop: Loop, put: Put) -> None:
        """Write a scatter: an atomic add, or a store that overwrites."""
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
        """Attribute the lines that are written in the block to a loop."""
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
    """Name of an axis's mask variable."""
    return f"mask_{axis.var}"
