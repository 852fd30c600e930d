"""Triton for GPUs: one module for a program, one function for each kernel.

A program of a kernel takes a tile of its points: see `triton_tiles`. What lies on a tile is a variable named after what
it is in the graph; each load is done once, in the first line that needs it, under the mask of the axes that it depends
on. No mask is written for an axis that all blocks divide.

    pointers    <buffer>_ptr, in the order of TritonFunction.buffers
    indices     x and y are a kernel's points, r is what it reduces; i0, r1 … are the program's own ranges
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from compiler.backend.context import Context
from compiler.backend.index import Index, Indirect, Quotient, Remainder, Var, atoms_of
from compiler.backend.ir import Expr, Guard, Kernel, Load, Loop, Program, Put, indices, loads, parts
from compiler.backend.sweeps import Sweep, sweeps
from compiler.backend.symbols import kernel_indices, symbols_of
from compiler.backend.triton_configs import TritonConfig, configs
from compiler.backend.triton_precision import precision
from compiler.backend.triton_text import POINTERS, TYPES, Names, Text, bare, constant, functions, identifier
from compiler.backend.triton_tiles import Axis, Tiles, tiled

__all__ = ["TritonCode", "TritonConfig", "TritonFunction", "emit", "signature"]

IMPORTS = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
_COMBINED = {
    "prod": "multiply", "any": "either", "all": "both", "max": "maximum", "min": "minimum",
    "argmax": "first_largest", "argmin": "first_smallest",
}  # fmt: skip
_OF_BOOLS = {"max": "either", "min": "both"}


@dataclass(frozen=True, slots=True)
class TritonFunction:
    """A kernel's function. It takes a pointer to each of `buffers`, an int for each of `symbols`, then constexprs. The
    ints have the type `index`, "i32" or "i64".

    `grid` has for each axis the number of points and the constexpr that divides it, "" for one program a point. The
    first of `configs` is the heuristics' choice, the others are for tuning. One that `checks` has assertions
    (`tl.device_assert`): it is compiled with `debug=True, sanitize_overflow=False` for these to be there. `lines` are
    its first and its last in the module's text, from 1.
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


@dataclass(frozen=True, slots=True)
class TritonCode:
    """A module. `lines` says for a line of the text which loop's value it computes."""

    text: str
    functions: tuple[TritonFunction, ...]
    lines: Mapping[int, str] = field(default_factory=dict)


def emit(program: Program, ctx: Context) -> TritonCode:
    """The program's kernels in Triton, in their order."""
    writers = [_Writer(kernel, program, ctx) for kernel in program.kernels]
    bodies = ["\n".join(writer.written()) for writer in writers]
    head = "\n\n\n".join([f'"""{program.name}"""\n\n{IMPORTS}'.rstrip(), *functions("\n".join(bodies))])
    number, lines, made = head.count("\n") + 4, {}, []
    for writer in writers:
        lines.update({number + line: target for line, target in writer.targets.items()})
        made.append(writer.function(number, number + len(writer.lines) - 1))
        number += len(writer.lines) + 2
    return TritonCode("\n\n\n".join([head, *bodies]) + "\n", tuple(made), lines)


def signature(program: Program, function: TritonFunction) -> Mapping[str, str]:
    """Triton's types of the function's arguments, in their order."""
    blocks = function.configs[0].blocks
    return {
        **{pointer(name): POINTERS[program.by_name[name].dtype] for name in function.buffers},
        **dict.fromkeys(function.symbols, function.index),
        **dict.fromkeys(blocks, "constexpr"),
    }


def pointer(name: str) -> str:
    """The argument for a buffer."""
    return f"{identifier(name)}_ptr"


class _Writer:
    """Writes one kernel."""

    def __init__(self, kernel: Kernel, program: Program, ctx: Context) -> None:
        self.program, self.ctx = program, ctx
        self.tiles: Tiles = tiled(kernel, program, ctx)
        self.kernel = self.tiles.kernel
        self.configs = configs(self.tiles, program, ctx)
        self.levels = precision(self.kernel, program)
        self.lines: list[str] = []
        self.targets: dict[int, str] = {}
        self.depth, self.source, self.target = 0, "", ""
        self.names = Names()
        self.known: dict[str, str] = {}
        self.given: dict[str, str] = {}
        self.guarded: dict[str, set[str]] = {}
        self.ranges = {value.key: name for axis in self.axes for name, value in axis.values.items()}
        self.text = Text(self)
        own = set(kernel_indices(kernel, program)) | set(kernel_indices(self.kernel, program))
        self.symbols = tuple(sorted({name for index in own for name in symbols_of(index)}))
        self.names.taken |= set(self.symbols)
        self.checks = any(isinstance(atom, Indirect) for index in own for atom in atoms_of(index))
        self.buffers = kernel.buffers
        self.name = f"kernel_{identifier(kernel.name)}"

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.tiles.outer, *([self.tiles.inner] if self.tiles.inner else []))

    def function(self, first: int, last: int) -> TritonFunction:
        grid = tuple((axis.size, axis.block) for axis in self.tiles.outer) or ((Index.of(1), ""),)
        index = "i64" if self.tiles.is_wide else "i32"
        return TritonFunction(
            self.name,
            self.kernel.name,
            self.buffers,
            self.symbols,
            grid,
            self.configs,
            self.checks,
            (first, last),
            index,
        )

    def written(self) -> list[str]:
        """The function's lines."""
        arguments = [*map(pointer, self.buffers), *self.symbols]
        arguments += [f"{name}: tl.constexpr" for name in self.configs[0].blocks]
        self.line("@triton.jit")
        self.head(f"def {self.name}(", arguments)
        self.depth = 1
        self.outer_axes()
        if self.tiles.kind == "looped" and self.tiles.inner:
            self.looped(self.tiles.inner)
        else:
            if self.tiles.inner:
                self.inner_axis(self.tiles.inner, "")
            for loop in self.kernel.loops:
                self.reduce(loop) if loop.reduction else self.value(loop)
        return self.lines

    def line(self, text: str) -> None:
        if self.target:
            self.targets[len(self.lines)] = self.target
        self.lines.append("    " * self.depth + text)

    def head(self, start: str, arguments: list[str]) -> None:
        if len(start) + sum(len(argument) + 2 for argument in arguments) < 110:
            self.line(f"{start}{', '.join(arguments)}):")
            return
        self.line(start)
        row = ""
        for argument in arguments:
            if len(row) + len(argument) > 100:
                self.line(f"    {row.rstrip()}")
                row = ""
            row += f"{argument}, "
        self.line(f"    {row.rstrip()}")
        self.line("):")

    # The axes: where a program's points are.

    def outer_axes(self) -> None:
        wide = ".to(tl.int64)" if self.tiles.is_wide else ""
        for place, axis in enumerate(self.tiles.outer):
            start = f"tl.program_id({place}){wide}"
            if not axis.block:
                self.line(f"{axis.var} = {start}")
            else:
                self.line(f"{axis.var} = {self.along(axis, f'{start} * {axis.block}')}")
                self.mask(axis)

    def inner_axis(self, axis: Axis, start: str) -> None:
        self.line(f"{axis.var} = {self.along(axis, start)}")
        self.mask(axis)

    def along(self, axis: Axis, start: str) -> str:
        """The points of a block as a row, a column, or all of the tile."""
        text = f"tl.arange(0, {axis.block})"
        text = f"{start} + {text}" if start else text
        if len(self.tiles.tiled) == 1:
            return text
        text = f"({text})" if start else text
        return text + ("[:, None]" if axis is self.tiles.tiled[0] else "[None, :]")

    def mask(self, axis: Axis) -> None:
        if self.is_masked(axis):
            self.line(f"{_mask(axis)} = {axis.var} < {self.text.index(axis.size)}")

    def is_masked(self, axis: Axis) -> bool:
        """Whether a block may reach beyond the last point."""
        size = axis.size.constant
        return bool(axis.block) and (not size or any(size % config.blocks[axis.block] for config in self.configs))

    def axes_of(self, value: Expr | Index) -> set[str]:
        """The names of the axes that a value depends on."""
        if isinstance(value, Index):
            own = {axis.var.key for axis in self.axes}
            found = {atom.name for atom in atoms_of(value) if isinstance(atom, Var) and atom.key in own}
            held = (atom.value for atom in atoms_of(value) if isinstance(atom, Indirect))
            return found.union(*map(self.axes_of, held))
        made = {loop.target: loop for loop in self.kernel.loops}
        found = set()
        for part in parts(value):
            for index in indices(part):
                found |= self.axes_of(index)
            if isinstance(part, Load) and part.buffer in made:
                found |= {var.name for var in made[part.buffer].ranges}
        return found

    def masked(self, names: Iterable[str], guard: str = "") -> str:
        """The condition under which points of these axes are there, "" if they always are."""
        masks = [_mask(axis) for axis in self.axes if axis.var.name in names and self.is_masked(axis)]
        return " & ".join([*masks, *([guard] if guard else [])])

    def shape(self, names: Iterable[str]) -> str:
        """The shape of a tile over these axes."""
        sizes = [axis.block if axis.var.name in names else "1" for axis in self.tiles.tiled]
        return f"[{', '.join(sizes)}]"

    # Values.

    def named(self, key: str, wanted: str, text: Callable[[], str]) -> str:
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
        return self.named(f"{load.buffer} + {place.key} {guard}", load.buffer, lambda: self.loaded(load, place, guard))

    def loaded(self, load: Load, place: Index, guard: str) -> str:
        where, axes = self.place(load.buffer, place, guard), self.axes_of(place)
        mask = self.masked(axes, guard)
        over = self.guarded.get(guard, set()) | axes
        if self.shape(over) != self.shape(axes) and self.tiles.tiled:
            where = f"tl.broadcast_to({where}, {self.shape(over)})"
        return f"tl.load({where}, {mask})" if mask else f"tl.load({where})"

    def guards(self, guard: str, condition: Expr, outer: str) -> None:
        self.guarded[guard] = self.axes_of(condition) | self.guarded.get(outer, set())

    def place(self, buffer: str, place: Index, guard: str = "") -> str:
        offset = self.text.index(place, guard)
        if offset == "0":
            return pointer(buffer)
        return f"{pointer(buffer)} + {offset if len(place.terms) == 1 else f'({offset})'}"

    def checked(self, atom: Indirect, guard: str) -> str:
        """An index that a tensor holds. What is out of range ends the program, as with PyTorch's own kernels."""
        at = self.named(f"{atom.value.key} {guard}", "at", lambda: self.text.value(atom.value, guard))
        key = f"checked {atom.key} {guard}"
        if key not in self.known:
            self.known[key] = at
            inside = f"(0 <= {at}) & ({at} < {self.text.index(atom.size)})"
            mask = self.masked(self.axes_of(atom.value), guard)
            outside = f" | ~({mask})" if "&" in mask else f" | ~{mask}" if mask else ""
            self.line(f'tl.device_assert({f"({inside})" if outside else inside}{outside}, "index out of range")')
        return f"{at}.to(tl.int64)" if self.tiles.is_wide and atom.value.dtype != torch.int64 else at

    def comment(self, loop: Loop) -> None:
        if loop.source and loop.source != self.source:
            self.source = loop.source
            self.line(f"# {loop.source}")

    def value(self, loop: Loop, again: bool = False) -> None:
        """One value, stored unless it is local, or was stored before."""
        with self.at(loop):
            if isinstance(loop.value, Put):
                self.add(loop, loop.value)
                return
            self.known[loop.target] = self.named(loop.target, loop.target, lambda: self.text.value(loop.value))
            if not again:
                self.store(loop)

    def add(self, loop: Loop, put: Put) -> None:
        """Values added to elements that other points may meet too."""
        place = self.program.by_name[loop.target].offset(put.index)
        value, where = bare(self.text.value(put.value)), self.place(loop.target, place)
        over = {var.name for var in loop.ranges}
        if self.tiles.tiled and self.shape(over) != self.shape(self.axes_of(place)):
            where = f"tl.broadcast_to({where}, {self.shape(over)})"
        mask = self.masked(over)
        self.line(f'tl.atomic_add({where}, {value}{f", {mask}" if mask else ""}, sem="relaxed")')

    @contextmanager
    def at(self, loop: Loop) -> Iterator[None]:
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
        where, mask = self.place(loop.target, place), self.masked(var.name for var in loop.ranges)
        self.line(f"tl.store({where}, {self.known[loop.target]}{f', {mask}' if mask else ''})")

    # Reductions.

    def reduce(self, loop: Loop) -> None:
        """A reduction of values that the tile holds."""
        with self.at(loop):
            text = self.text.value(loop.value)
            if not self.tiles.inner:
                text = "tl.full([], 0, tl.int64)" if loop.reduction.startswith("arg") else text
                self.finish(loop, text)
                return
            value = self.whole(loop, text)
            if loop.reduction.startswith("arg"):
                self.finish(loop, self.position(loop, value, self.spread(self.position_of())))
            else:
                self.finish(loop, self.combined(loop, value))

    def whole(self, loop: Loop, text: str) -> str:
        """The value over the whole tile, with what changes nothing where there are no points."""
        if loop.value.dtype == torch.bool and loop.reduction.startswith("arg"):
            text = f"({text}).to(tl.int8)"
        inner = self.tiles.inner
        assert inner is not None
        text = bare(text)
        if self.is_masked(inner):
            return f"tl.where({_mask(inner)}, {text}, {self.first(loop)})"
        return text if inner.var.name in self.axes_of(loop.value) else self.spread(text)

    def spread(self, text: str) -> str:
        return f"tl.broadcast_to({text}, {self.shape([axis.var.name for axis in self.tiles.tiled])})"

    def position_of(self) -> str:
        inner = self.tiles.inner
        assert inner is not None
        return str(inner.var)

    @property
    def along_rows(self) -> str:
        """Which axis of the tile is reduced, for Triton's functions."""
        return "0" if len(self.tiles.tiled) == 1 else "1, keep_dims=True"

    def combined(self, loop: Loop, value: str) -> str:
        if loop.reduction == "sum":
            is_small = loop.value.dtype in (torch.uint8, torch.int8, torch.int16)
            found = f"tl.sum({value}, {self.along_rows})"
            return f"{found}.to(tl.{TYPES[loop.value.dtype]})" if is_small else found
        return self.reduced(value, self.function_of(loop))

    def reduced(self, value: str, function: str) -> str:
        axis, *keep = self.along_rows.split(", ")
        return f"tl.reduce({', '.join([value, axis, function, *keep])})"

    def function_of(self, loop: Loop) -> str:
        is_bool = loop.value.dtype == torch.bool
        return _OF_BOOLS[loop.reduction] if is_bool and loop.reduction in _OF_BOOLS else _COMBINED[loop.reduction]

    def position(self, loop: Loop, value: str, places: str) -> str:
        best = self.names.new(f"{identifier(loop.target)}_value")
        at = self.names.new(f"{identifier(loop.target)}_at")
        self.line(f"{best}, {at} = {self.reduced(f'({value}, {places})', self.function_of(loop))}")
        return f"{at}.to(tl.int64)"

    def finish(self, loop: Loop, text: str) -> None:
        name = self.names.new(loop.target)
        self.line(f"{name} = {bare(text)}")
        self.known[loop.target] = name
        self.store(loop)

    def first(self, loop: Loop) -> str:
        """What a reduction starts from."""
        return constant(*_start(loop))

    # Rows that are walked in steps.

    def looped(self, inner: Axis) -> None:
        stored: set[str] = set()
        for sweep in sweeps(self.kernel):
            for loop in sweep.scalars:
                self.value(loop)
            if sweep.body:
                self.sweep(sweep, inner, stored)
            stored |= {loop.target for loop in sweep.body if not loop.reduction} - set(self.kernel.local)

    def sweep(self, sweep: Sweep, inner: Axis, stored: set[str]) -> None:
        """One walk over the rows."""
        reductions = [loop for loop in sweep.body if loop.reduction]
        if stored & {load.buffer for loop in sweep.body for load in loads(loop.value)}:
            self.line("tl.debug_barrier()  # what other threads stored is read")
        totals = {loop.target: self.total(loop) for loop in reductions}
        self.before(sweep, inner)
        before = dict(self.known)
        self.line(f"for start in range(0, {self.text.index(inner.size)}, {inner.block}):")
        self.depth += 1
        self.inner_axis(inner, "start")
        for loop in sweep.body:
            if loop.reduction:
                self.take(loop, totals[loop.target])
            else:
                self.value(loop, loop.target in sweep.again)
        self.depth -= 1
        self.known = before
        for loop in reductions:
            self.last(loop, totals[loop.target])

    def before(self, sweep: Sweep, inner: Axis) -> None:
        """Loads, and parts of indices, that are the same for a whole row come before the walk."""
        for loop in sweep.body:
            with self.at(loop):
                inside = {
                    part for guard in parts(loop.value) if isinstance(guard, Guard) for part in parts(guard.value)
                }
                for load in loads(loop.value):
                    if load.buffer in self.known or load in inside or load.buffer in self.kernel.targets:
                        continue
                    place = self.program.by_name[load.buffer].offset(load.index)
                    if inner.var.name not in self.axes_of(place):
                        self.load(load, "")
                    else:
                        self.ratios(place, inner)

    def ratios(self, place: Index, inner: Axis) -> None:
        for atom in atoms_of(place):
            index = Index.of(atom)
            if isinstance(atom, Quotient | Remainder) and inner.var.name not in self.axes_of(index):
                self.text.index(index)

    def total(self, loop: Loop) -> tuple[str, ...]:
        """Tiles of what is reduced so far."""
        name = self.names.new(f"{identifier(loop.target)}_{loop.reduction}")
        value, dtype = _start(loop)
        shape = self.shape([axis.var.name for axis in self.tiles.tiled])
        self.line(f"{name} = tl.full({shape}, {constant_in(value, dtype)}, tl.{TYPES[dtype]})")
        if not loop.reduction.startswith("arg"):
            return (name,)
        at = self.names.new(f"{name}_at")
        self.line(f"{at} = tl.full({shape}, {2**31 - 1}, tl.{'int64' if self.tiles.is_wide else 'int32'})")
        return name, at

    def take(self, loop: Loop, total: tuple[str, ...]) -> None:
        """One more tile of values."""
        with self.at(loop):
            value = self.text.value(loop.value)
            if loop.reduction.startswith("arg"):
                self.take_position(loop, value, *total)
                return
            value = self.whole(loop, value)
            if loop.reduction == "sum":
                self.line(f"{total[0]} += {value}")
            else:
                self.line(f"{total[0]} = {self.function_of(loop)}({total[0]}, {value})")

    def take_position(self, loop: Loop, value: str, best: str, at: str) -> None:
        value = self.whole(loop, value)
        inner = self.tiles.inner
        assert inner is not None
        place = f"tl.where({_mask(inner)}, {inner.var}, {2**31 - 1})" if self.is_masked(inner) else str(inner.var)
        self.line(f"{best}, {at} = {self.function_of(loop)}({best}, {at}, {value}, {self.spread(place)})")

    def last(self, loop: Loop, total: tuple[str, ...]) -> None:
        """The result, of all that the tiles hold."""
        self.target = loop.target
        if loop.reduction.startswith("arg"):
            self.finish(loop, self.position(loop, *total))
        else:
            self.finish(loop, self.combined(loop, total[0]))
        self.target = ""


def _mask(axis: Axis) -> str:
    return f"mask_{axis.var}"


def _start(loop: Loop) -> tuple[bool | int | float, torch.dtype]:
    """What changes nothing, and the dtype that is reduced in."""
    dtype = loop.value.dtype
    if loop.reduction in ("sum", "prod", "any", "all"):
        return {"sum": 0, "prod": 1, "any": False, "all": True}[loop.reduction], dtype
    is_most = loop.reduction in ("max", "argmax")
    if dtype == torch.bool:
        return (not is_most, dtype) if not loop.reduction.startswith("arg") else (0 if is_most else 1, torch.int8)
    if dtype.is_floating_point:
        return float("-inf") if is_most else float("inf"), dtype
    limits = torch.iinfo(dtype)
    return limits.min if is_most else limits.max, dtype


def constant_in(value: bool | int | float, dtype: torch.dtype) -> str:
    """A number where the dtype is said beside it."""
    text = constant(value, dtype)
    return text.removeprefix("tl.full([], ").partition(", ")[0]
