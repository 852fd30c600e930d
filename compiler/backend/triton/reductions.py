"""Reductions in Triton: persistent, with the whole row in one tile, or looped, tile by tile.

A looped reduction accumulates lane by lane; the lanes are reduced after the loop. A loop that needs a reduction's
result runs in the next sweep over the row: see `sweeps`.

A softmax is an exception (online softmax; Milakov and Gimelshein, 2018): one sweep finds both the maximum and the sum
of exponentials, which saves one read of a long row. The sum is rescaled whenever the running maximum grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from compiler.backend.ir import Kernel, Loop
from compiler.backend.ir.expr import Const, Expr, Guard, Load, Op, loads, parts, with_loads
from compiler.backend.ir.index import Index, Quotient, Remainder, atoms_of
from compiler.backend.ir.scalar import neutral
from compiler.backend.ir.sweeps import Sweep, sweeps
from compiler.backend.triton.kernel import KernelWriter, mask_of
from compiler.backend.triton.text import EXACT, TYPES, bare, identifier, plain
from compiler.backend.triton.tiles import Axis

_COMBINED = {
    "prod": "multiply", "any": "either", "all": "both", "max": "maximum", "min": "minimum",
    "argmax": "first_largest", "argmin": "first_smallest", "cumsum": "plus", "cumprod": "multiply",
}  # fmt: skip
_OF_BOOLS = {"max": "either", "min": "both"}


@dataclass(frozen=True, slots=True)
class Pair:
    """The two reductions of an online softmax: `largest`, and `total`, the sum of exp(value - largest).

    `exponential` is the key of the exp operation. `of` is the target of the loop that contains this operation.
    """

    largest: Loop
    total: Loop
    of: str
    exponential: str


class ReductionWriter(KernelWriter):
    """Writes a pointwise or reduction kernel."""

    pairs: Mapping[str, Pair]

    @property
    def inner(self) -> Axis:
        """The reduced axis of the tile."""
        assert self.tiles.inner is not None
        return self.tiles.inner

    def body(self) -> None:
        if self.tiles.kind == "looped" and self.tiles.inner:
            self.write_looped()
            return
        if self.tiles.inner:
            self.tile_axis(self.inner, "", self.wide)
        if self.tiles.is_read_again:
            self.read_again()
        else:
            self.write_held(self.kernel.loops)

    def write_held(self, loops: Iterable[Loop], again: frozenset[str] = frozenset()) -> None:
        """Write loops over a row that one tile holds. Values in `again` are recomputed and not stored."""
        for loop in loops:
            if loop.is_scan:
                self.scan(loop)
            elif loop.reduction:
                self.reduce(loop)
            else:
                self.value(loop, loop.target in again)

    def read_again(self) -> None:
        """Write the sweeps over a long row, each of which loads the row again.

        This leaves registers for a second program on the multiprocessor. The eviction policies keep the row in the
        cache. As they differ between sweeps, Triton does not merge the loads of two sweeps.
        """
        walks = sweeps(self.kernel)
        for number, walk in enumerate(walks):
            self.write_held(walk.scalars)
            self.policy = "evict_first" if number == len(walks) - 1 else "" if number else "evict_last"
            kept = set(self.known) | {loop.target for loop in walk.body if loop.reduction}
            kept |= {loop.target for loop in walk.body} - self.kernel.local
            self.write_held(walk.body, walk.again)
            self.known = {key: name for key, name in self.known.items() if key in kept}

    def reduce(self, loop: Loop) -> None:
        """Write a reduction over a row that one tile holds."""
        with self.lines_of(loop):
            text = self.text(loop.value)
            if self.tiles.inner:
                self.finish_tile(loop, self.whole(loop, text), self.spread(str(self.inner.var)))
            else:
                self.finish(loop, "tl.full([], 0, tl.int64)" if loop.reduction.startswith("arg") else text)

    def scan(self, loop: Loop, carry: str = "", again: bool = False) -> None:
        """Write a scan over the tile. `carry` is the variable with the state between tiles, "" for a single tile."""
        with self.lines_of(loop):
            value = self.whole(loop, self.text(loop.value))
            if carry:
                text, value = value, self.names.new(f"{identifier(loop.target)}_value")
                self.line(f"{value} = {text}")
            function = self.function_of(loop)
            found = f"tl.associative_scan({value}, {self.along_rows[0]}, {function})"
            name = self.known[loop.target] = self.names.new(loop.target)
            self.line(f"{name} = {f'{function}({carry}, {found})' if carry else found}")
            if carry:
                self.line(f"{carry} = {function}({carry}, {self.reduce_text(value, function)})")
            if not again:
                self.store(loop)

    def carry(self, loop: Loop) -> str:
        """Write the initial state of a scan; returns its variable."""
        shape = "[]" if len(self.tiles.tiled) == 1 else self.shape([axis.var.name for axis in self.tiles.outer])
        return self.accumulator(loop, "before", shape)

    def accumulator(self, loop: Loop, suffix: str, shape: str) -> str:
        """Write a variable that starts as the neutral element of a reduction; returns its name."""
        name, (value, dtype) = self.names.new(f"{identifier(loop.target)}_{suffix}"), _start(loop)
        self.line(f"{name} = tl.full({shape}, {plain(value, dtype)}, tl.{TYPES[dtype]})")
        return name

    def whole(self, loop: Loop, text: str) -> str:
        """Text of a value broadcast to the whole tile, with the neutral element where the mask is false."""
        if loop.value.dtype == torch.bool and loop.reduction.startswith("arg"):
            text = f"({text}).to(tl.int8)"
        text = f"tl.full([], {text}, tl.{TYPES[loop.value.dtype]})" if isinstance(loop.value, Const) else bare(text)
        if self.is_masked(self.inner):
            return f"tl.where({mask_of(self.inner)}, {text}, {self.text(Const(*_start(loop)))})"
        return text if self.inner.var.name in self.axes_of(loop.value) else self.spread(text)

    def spread(self, text: str) -> str:
        return f"tl.broadcast_to({text}, {self.shape([axis.var.name for axis in self.tiles.tiled])})"

    @property
    def along_rows(self) -> str:
        """Arguments of Triton's reductions: the axis to reduce, and `keep_dims` if the tile has two axes."""
        return "0" if len(self.tiles.tiled) == 1 else "1, keep_dims=True"

    def finish_tile(self, loop: Loop, value: str, places: str = "") -> None:
        """Write the reduction of a tile's values to the result. For argmax and argmin, `places` are their indices."""
        if loop.reduction.startswith("arg"):
            best, at = (self.names.new(f"{identifier(loop.target)}_{kind}") for kind in ("value", "at"))
            self.line(f"{best}, {at} = {self.reduce_text(f'({value}, {places})', self.function_of(loop))}")
            found = f"{at}.to(tl.int64)"
        elif loop.reduction == "sum":
            is_small = loop.value.dtype in (torch.uint8, torch.int8, torch.int16)
            found = f"tl.sum({value}, {self.along_rows}){f'.to(tl.{TYPES[loop.value.dtype]})' if is_small else ''}"
        else:
            found = self.reduce_text(value, self.function_of(loop))
        self.finish(loop, found)

    def reduce_text(self, value: str, function: str) -> str:
        axis, *keep = self.along_rows.split(", ")
        return f"tl.reduce({', '.join([value, axis, function, *keep])})"

    def function_of(self, loop: Loop) -> str:
        is_bool = loop.value.dtype == torch.bool and loop.reduction in _OF_BOOLS
        function = (_OF_BOOLS if is_bool else _COMBINED)[loop.reduction]
        self.called.add(function)
        return function

    def finish(self, loop: Loop, text: str) -> None:
        name = self.names.new(loop.target)
        self.line(f"{name} = {bare(text)}")
        self.known[loop.target] = name
        self.store(loop)

    # Looped reductions.

    def write_looped(self) -> None:
        stored: set[str] = set()
        walks, self.pairs = join_sweeps(self.kernel)
        for sweep in walks:
            for loop in sweep.scalars:
                self.value(loop)
            if sweep.body:
                self.sweep(sweep, stored)
            stored |= {loop.target for loop in sweep.body if loop.is_scan or not loop.reduction} - self.kernel.local

    def sweep(self, sweep: Sweep, stored: set[str]) -> None:
        """Write the loop of one sweep over the rows."""
        reductions = [loop for loop in sweep.body if loop.reduction and not loop.is_scan]
        if any(stored & loop.reads for loop in sweep.body):
            self.line("tl.debug_barrier()  # what other threads stored is read")
        totals = {loop.target: self.total(loop) for loop in reductions}
        carries = {loop.target: self.carry(loop) for loop in sweep.body if loop.is_scan}
        self.hoist_loads(sweep)
        before = dict(self.known)
        self.line(f"for start in range(0, {self.end()}, {self.inner.block}):")
        self.depth += 1
        self.tile_axis(self.inner, "start", self.wide)
        paired = {pair.largest.target for pair in self.pairs.values()}
        for loop in sweep.body:
            if loop.target in self.pairs:
                self.take_pair(self.pairs[loop.target], totals)
            elif loop.is_scan:
                self.scan(loop, carries[loop.target], loop.target in sweep.again)
            elif loop.reduction and loop.target not in paired:
                self.take(loop, totals[loop.target])
            elif not loop.reduction:
                self.value(loop, loop.target in sweep.again)
        self.depth -= 1
        self.known = before
        for loop in reductions:
            self.last(loop, totals)

    def end(self) -> str:
        """End of the range of a sweep's loop. Triton reads literals from 2³¹ on as uint32, so these become int64."""
        size = self.index(self.inner.size)
        return f"tl.full([], {size}, tl.int64)" if (self.inner.size.constant or 0) >= 2**31 else size

    def hoist_loads(self, sweep: Sweep) -> None:
        """Hoist loads and parts of indices that are the same for a whole row out of the sweep's loop."""
        for loop in sweep.body:
            with self.lines_of(loop):
                inside = {
                    part for guard in parts(loop.value) if isinstance(guard, Guard) for part in parts(guard.value)
                }
                for load in loads(loop.value):
                    if load.buffer in self.known or load in inside or load.buffer in self.kernel.targets:
                        continue
                    place = self.offset(load.buffer, load.index)
                    if self.inner.var.name not in self.axes_of(place):
                        self.text(load)
                        continue
                    for atom in atoms_of(place):
                        is_ratio = isinstance(atom, Quotient | Remainder)
                        if is_ratio and self.inner.var.name not in self.axes_of(ratio := Index.of(atom)):
                            self.index(ratio)

    def total(self, loop: Loop) -> tuple[str, ...]:
        """Write the accumulators of a reduction and their initial values; returns their names."""
        shape = self.shape([axis.var.name for axis in self.tiles.tiled])
        name = self.accumulator(loop, loop.reduction, shape)
        if not loop.reduction.startswith("arg"):
            return (name,)
        at = self.names.new(f"{name}_at")
        self.line(f"{at} = tl.full({shape}, {self.nowhere}, tl.{'int64' if self.is_wide else 'int32'})")
        return name, at

    @property
    def nowhere(self) -> int:
        """An index larger than all others, to initialize argmax and argmin."""
        return 2 ** (63 if self.is_wide else 31) - 1

    def take(self, loop: Loop, total: tuple[str, ...]) -> None:
        """Write the accumulation of one tile of values in a reduction."""
        state, inner = ", ".join(total), self.inner
        with self.lines_of(loop):
            value = self.whole(loop, self.text(loop.value))
            if loop.reduction == "sum":
                self.line(f"{state} += {value}")
                return
            if loop.reduction.startswith("arg"):
                is_there = self.is_masked(inner)
                place = f"tl.where({mask_of(inner)}, {inner.var}, {self.nowhere})" if is_there else str(inner.var)
                value = f"{value}, {self.spread(place)}"
            self.line(f"{state} = {self.function_of(loop)}({state}, {value})")

    def take_pair(self, pair: Pair, totals: Mapping[str, tuple[str, ...]]) -> None:
        """Write the accumulation of one tile in the maximum and the sum of exponentials of an online softmax."""
        with self.lines_of(pair.largest):
            value = self.whole(pair.largest, self.text(pair.largest.value))
        (largest,), (total,) = totals[pair.largest.target], totals[pair.total.target]
        with self.lines_of(pair.total):
            self.called.add("running_exp_sum")
            state = f"{largest}, {total}"
            self.line(f"{state} = running_exp_sum({state}, {value}, {self.is_rounded(pair)})")

    def is_rounded(self, pair: Pair) -> bool:
        return self.precision_of[pair.of].get(pair.exponential, EXACT) != EXACT

    def last(self, loop: Loop, totals: Mapping[str, tuple[str, ...]]) -> None:
        """Write the reduction of the accumulators of all lanes to the result."""
        total = totals[loop.target]
        if pair := self.pairs.get(loop.target):  # rescale each lane's sum to the row's maximum
            function = "tl.exp" if self.is_rounded(pair) else "libdevice.exp"
            (largest,) = totals[pair.largest.target]
            total = (f"{total[0]} * {function}({largest} - {self.known[pair.largest.target]})",)
        self.target = loop.target
        self.finish_tile(loop, *total)
        self.target = ""


def _start(loop: Loop) -> tuple[bool | int | float, torch.dtype]:
    """The neutral element of a reduction, and the dtype of its accumulator."""
    start, dtype = neutral(loop.reduction, loop.value.dtype), loop.value.dtype
    return (int(start), torch.int8) if dtype == torch.bool and loop.reduction.startswith("arg") else (start, dtype)


def join_sweeps(kernel: Kernel) -> tuple[tuple[Sweep, ...], Mapping[str, Pair]]:
    """The kernel's sweeps, with online softmax if possible, and the softmax pairs, by the target of the sum."""
    found = list(sweeps(kernel))
    pairs: dict[str, Pair] = {}
    for place in range(len(found) - 1):
        first, second = found[place : place + 2]
        ours = _pairs(first, second, kernel)
        if ours:
            pairs.update({pair.total.target: pair for pair in ours})
            found[place] = replace(first, body=(*first.body, *(pair.total for pair in ours)))
            found[place + 1] = Sweep(second.scalars, ())
    return tuple(found), pairs


def _pairs(first: Sweep, second: Sweep, kernel: Kernel) -> list[Pair]:
    """The softmax pairs of two sweeps; empty if the second sweep has other reductions or stores values."""
    largest = {loop.target: loop for loop in first.body if loop.reduction == "max"}
    found = []
    for loop in second.body:
        if loop.reduction:
            pair = _pair(loop, largest, kernel)
            if pair is None:
                return []
            del largest[pair.largest.target]
            found.append(pair)
        elif loop.target not in kernel.local:
            return []
    return found


def _pair(total: Loop, largest: Mapping[str, Loop], kernel: Kernel) -> Pair | None:
    of, value = _expand(total.target, total.value, kernel)
    match value:
        case Op("exp", (argument,), torch.float32) if total.reduction == "sum":
            _, distance = _expand(of, argument, kernel)
        case _:
            return None
    match distance:
        case Op("sub", (minuend, Load(name))) if name in largest:
            loop, whole = largest[name], _whole(minuend, kernel)
        case _:
            return None
    if whole != _whole(loop.value, kernel):
        return None
    if {load.buffer for load in loads(whole)}.intersection(kernel.targets, kernel.reads):
        return None  # it may be overwritten between the two sweeps
    return Pair(loop, total, of, value.key)


def _loops_by_value(kernel: Kernel) -> dict[str, Loop]:
    """Loops without a reduction, by target, except those that overwrite a buffer that the kernel reads."""
    return {loop.target: loop for loop in kernel.loops if not loop.reduction and loop.target not in kernel.reads}


def _expand(of: str, value: Expr, kernel: Kernel) -> tuple[str, Expr]:
    """If `value` loads another loop's value, that loop's target and expression; else `of` and `value` unchanged."""
    loops = _loops_by_value(kernel)
    while isinstance(value, Load) and value.buffer in loops:
        of, value = value.buffer, loops[value.buffer].value
    return of, value


def _whole(value: Expr, kernel: Kernel) -> Expr:
    """The expression with the kernel's own values inlined in place of their loads."""
    loops = _loops_by_value(kernel)
    return with_loads(value, lambda load: _whole(loops[load.buffer].value, kernel) if load.buffer in loops else None)
