"""How many bytes a kernel moves: what a program costs where memory is what bounds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compiler.backend.ir import Kernel, Product, Program, strided_views
from compiler.backend.ir.expr import Shape, variables_in
from compiler.backend.ir.index import Index, Var, factor_of, product
from compiler.backend.passes.context import Context

LINE = 128
"""Bytes of a line of a GPU's cache."""

SLOWEST = 4
"""What lies in runs shorter than a line is read or written so many times slower at most: about four times, for runs of
8 to 32 bytes, on an H200.
"""

LAUNCH = 2**23
"""Bytes that a GPU moves in the time that one more launch takes."""


def traffic(kernel: Kernel, program: Program, ctx: Context) -> int:
    """Bytes that a kernel reads and writes, each element of a buffer counted once."""
    return sum(moved(name, kernel, program, ctx) for name in {*kernel.reads, *kernel.writes})


def moved(name: str, kernel: Kernel, program: Program, ctx: Context) -> int:
    """The bytes of one buffer that a kernel touches; what it both reads and writes counts twice."""
    buffer = program.by_name[name]
    size, read = ctx.number(buffer.size), 0
    if name in kernel.reads:
        views = strided_views(kernel.call.args) if isinstance(kernel, Product) else ()
        points = [_points(place, ctx) for place in kernel.places(name)]
        points += [ctx.number(product(view.shape)) for view in views if view.buffer == name]
        read = min(size, sum(points))
    return (read + size * (name in kernel.writes)) * buffer.dtype.itemsize


def run_along(place: Index, along: Iterable[Var], ctx: Context) -> int:
    """How many neighbours in memory are met at a place, given as an offset, where these variables have all values."""
    steps = {ctx.number(factor_of(place, var)): ctx.number(var.size) for var in along}
    run = 1
    while (size := steps.get(run, 1)) > 1:
        run *= size
    return run


def run_walked(place: Index, walked: Sequence[Var], ctx: Context) -> int:
    """How many neighbours in memory are met one after another where variables are walked, the last one fastest."""
    run = 1
    for var in reversed(walked):
        if ctx.number(factor_of(place, var)) != run:
            break
        run *= ctx.number(var.size)
    return run


def slowness(run: int) -> float:
    """How many times as long memory takes where it is met in runs of so many bytes."""
    return min(SLOWEST, max(1.0, LINE / run))


def _points(place: Shape, ctx: Context) -> int:
    """How many different elements places of this form can be: as many as the variables in it have values."""
    found = {var for index in place for var in variables_in(index)}
    return ctx.number(product(var.size for var in found))


@dataclass(frozen=True, slots=True)
class Totals:
    """What programs cost where memory and launches bound them: `bytes` are those that their kernels move."""

    kernels: int = 0
    calls: int = 0
    bytes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.kernels + other.kernels, self.calls + other.calls, self.bytes + other.bytes)


def totals(program: Program, ctx: Context) -> Totals:
    """Of one program."""
    kernels = program.kernels
    moved = sum(traffic(kernel, program, ctx) for kernel in kernels)
    return Totals(len(kernels), len(program.steps) - len(kernels), moved)
