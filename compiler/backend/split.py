"""Pass, for GPUs: a long reduction with few results becomes two, so that all multiprocessors have work.

The first reduces parts of what was reduced, each to one value in a buffer, the second these values. Where sizes allow
it the parts are equal: a whole loop, or a divisor of one; then what comes before the reduction can still be fused with
the first. Else the last part is shorter, and a guard says where it ends. Places (`argmax`) are found whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch

from compiler.backend.context import Context
from compiler.backend.index import Index, Var, divisors, factor_of, product
from compiler.backend.ir import At, Buffer, Const, Guard, Kernel, Load, Loop, Program, Step, operation, with_index
from compiler.backend.order import offsets, with_reduced_sorted

COLUMNS = 32
"""So many neighbouring results are one program's where neighbours in memory belong to different results."""

ENOUGH = 8
"""Equal parts are made if they are at least one in so many of those that were wanted."""


def split(program: Program, ctx: Context) -> Program:
    """The program with its long reductions in two steps."""
    if not ctx.processors:
        return program
    steps: list[Step] = []
    buffers: list[Buffer] = []
    for step in program.steps:
        parts = _parts(step, program, ctx) if isinstance(step, Kernel) else None
        if parts is None:
            steps.append(step)
        else:
            buffers.append(parts.buffer)
            steps += [_kernel(parts.first), _kernel(parts.second)]
    return replace(program, steps=tuple(steps), buffers=program.buffers + tuple(buffers)) if buffers else program


@dataclass(frozen=True, slots=True)
class Parts:
    """A reduction in two loops, and the buffer between them."""

    first: Loop
    second: Loop
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Division:
    """How reduced ranges are divided: `outer` count the parts, `inner` walk one. `values` says where that is in the
    ranges as they were. `ragged` are those of them that the last part may walk beyond.
    """

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    values: dict[str, Index]
    ragged: tuple[Var, ...] = ()


def _kernel(loop: Loop) -> Kernel:
    return Kernel(loop.target, loop.ranges, loop.reduced, (loop,))


def _parts(kernel: Kernel, program: Program, ctx: Context) -> Parts | None:
    """The two loops, if it is one reduction that is worth it."""
    if len(kernel.loops) != 1 or not kernel.reduced or kernel.loops[0].reduction.startswith("arg"):
        return None
    kernel = with_reduced_sorted(kernel, program, ctx)
    (loop,) = kernel.loops
    by_columns = _is_by_columns(kernel, program, ctx)
    wanted = _wanted(loop, by_columns, ctx)
    if wanted < 2:
        return None
    division = _divided(loop.reduced, wanted, ctx)
    made = _two_loops(loop, division, program, by_columns)
    rows, length, count = (_points(group, ctx) for group in (loop.ranges, loop.reduced, division.outer))
    why = f"{rows:,} results of {length:,} elements each leave multiprocessors idle: each is made of {count:,} parts"
    ctx.decide((loop.target, made.buffer.name), "split", why, parts=count, bytes=ctx.number(made.buffer.size))
    return made


def _points(group: Sequence[Var], ctx: Context) -> int:
    return ctx.number(product(var.size for var in group))


def _is_by_columns(kernel: Kernel, program: Program, ctx: Context) -> bool:
    """Whether neighbours in what it reads belong to neighbouring results."""
    places = [*offsets(kernel, program)][:-1]

    def beside(group: Sequence[Var]) -> int:
        return sum(ctx.number(factor_of(place, var)) == 1 for place in places for var in group)

    return beside(kernel.ranges) > beside(kernel.reduced)


def _wanted(loop: Loop, by_columns: bool, ctx: Context) -> int:
    """How many parts each result should be made of."""
    rows, length = _points(loop.ranges, ctx), _points(loop.reduced, ctx)
    wide = COLUMNS if by_columns else 1
    programs, limits = -(-rows // wide), ctx.thresholds
    if length < limits.split_length:
        return 1
    return min(-(-ctx.processors * limits.programs // max(programs, 1)), length * wide // limits.split_part)


def _divided(reduced: Sequence[Var], wanted: int, ctx: Context) -> Division:
    """Ranges from the outermost one on become counts of parts, until there are enough."""
    outer: list[Var] = []
    inner: list[Var] = []
    values: dict[str, Index] = {}
    ragged: tuple[Var, ...] = ()
    for var in reduced:
        size = ctx.number(var.size)
        count = -(-wanted // max(_points(outer, ctx), 1))
        length = _length(var.size, count, ctx) if 1 < count < size else None
        if count < 2 or (length is None and outer and count <= ENOUGH):
            inner.append(var)
        elif size <= count:
            outer.append(var)
        else:
            length = length or (var.size + count - 1) // count
            high = Var(f"{var.name}s", (var.size + length - 1) // length)
            low = Var(var.name, length)
            ragged = () if high.size * length == var.size else (var,)
            values[var.name] = Index.of(high) * length + low
            outer.append(high)
            inner.append(low)
    return Division(tuple(outer), tuple(inner), values, ragged)


def _length(size: Index, count: int, ctx: Context) -> Index | None:
    """How long parts of a range are, so that all are equal and there are about as many as wanted, if that can be."""
    best = ctx.number(size) / count
    exact = [length for length in _divisors(size) if best / 2 <= ctx.number(length) <= best * 2]
    return min(exact, key=lambda length: abs(ctx.number(length) - best), default=None)


def _divisors(size: Index) -> Iterator[Index]:
    """What divides a size whatever its symbols are."""
    if len(size.terms) != 1:
        return
    ((atoms, factor),) = size.terms
    for count in range(len(atoms) + 1):
        for some in combinations(atoms, count):
            symbols = product(map(Index.of, some))
            yield from (symbols * number for number in (1, *divisors(factor)))


def _two_loops(loop: Loop, division: Division, program: Program, by_columns: bool) -> Parts:
    target = program.by_name[loop.target]
    kept = (*division.outer, *loop.ranges) if by_columns else (*loop.ranges, *division.outer)
    at, shape = tuple(map(Index.of, kept)), tuple(var.size for var in kept)
    strides = [product(shape[place + 1 :]) for place in range(len(shape))]
    buffer = Buffer(f"{loop.target}_parts", target.dtype, shape, tuple(strides), target.device)
    value = with_index(loop.value, division.values)
    for var in division.ragged:
        inside = operation("lt", At(division.values[var.name]), At(var.size))
        value = Guard(inside, value, Const(neutral(loop.reduction, value.dtype), value.dtype))
    ranges = loop.ranges + division.outer
    first = replace(loop, target=buffer.name, ranges=ranges, index=at, value=value, reduced=division.inner)
    second = replace(loop, value=Load(buffer.name, at, buffer.dtype), reduced=division.outer)
    return Parts(first, second, buffer)


def neutral(reduction: str, dtype: torch.dtype) -> bool | int | float:
    """The value that changes nothing in a reduction."""
    if reduction in ("sum", "any"):
        return torch.zeros((), dtype=dtype).item()
    if reduction in ("prod", "all"):
        return torch.ones((), dtype=dtype).item()
    if dtype == torch.bool:
        return reduction == "min"
    if dtype.is_floating_point:
        return float("-inf") if reduction == "max" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if reduction == "max" else limits.max
