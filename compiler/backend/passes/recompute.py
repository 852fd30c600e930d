"""Pass, for GPUs: recompute a value in the kernels that load it, instead of storing it, if that moves fewer bytes.

Fused kernels often load the operands of a value anyway, such as both an input and the normalized input, or a masked
gradient and its mask. The readers then get copies of the loops that compute the value, and its kernel does not store
it. Only cheap values without reductions are recomputed, by all readers or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import count

from compiler.backend.ir import Buffer, Kernel, Loop, Program
from compiler.backend.ir.expr import Expr, Put, Shape, cost, is_indirect, loads, rename_buffers, with_index, with_loads
from compiler.backend.ir.index import Index, Var, is_bijective, substitute
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import traffic
from compiler.backend.passes.fit import values_at
from compiler.backend.passes.simplify import fold


def recompute(program: Program, ctx: Context) -> Program:
    """Recompute values in their readers if that moves fewer bytes."""
    if not ctx.processors:
        return program
    tried: set[str] = set()
    candidates = _candidates(program, tried)
    while (found := next(candidates, None)) is not None:
        tried.add(found.target)
        if (changed := _recompute(program, found, ctx)) is not None:
            program, candidates = changed, _candidates(changed, tried)
    return program


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored value that may be recomputed.

    maker    kernel that computes and stores it
    loops    loops that are needed to recompute it, its own loop last
    readers  kernels that load it
    """

    maker: Kernel
    loops: tuple[Loop, ...]
    readers: tuple[Kernel, ...]

    @property
    def target(self) -> str:
        """Name of the buffer that holds the value."""
        return self.loops[-1].target


def _candidates(program: Program, tried: set[str]) -> Iterator[Candidate]:
    """Values that are computed by pointwise loops and read only by kernels, in program order."""
    readers: dict[str, list[Kernel]] = {}
    kept = program.returned | program.mutated | program.passed | program.taken
    for kernel in program.kernels:
        for name in kernel.reads:
            readers.setdefault(name, []).append(kernel)
    for kernel in program.kernels:
        for loop in kernel.loops:
            if loop.target in kept or loop.target in tried or loop.target not in readers:
                continue
            loops = _needed_loops(loop, kernel)
            if loops and not any(is_indirect(one.value) or one.reads & program.mutated for one in loops):
                yield Candidate(kernel, loops, tuple(readers[loop.target]))


def _needed_loops(last: Loop, kernel: Kernel) -> tuple[Loop, ...]:
    """The loop, preceded by the loops of local values that it needs; () if one of them is a reduction or a scatter."""
    found: list[Loop] = []
    needed = {last.target}
    for loop in reversed(kernel.loops):
        if loop.target in needed:
            if loop.reduction or isinstance(loop.value, Put):
                return ()
            found.append(loop)
            needed |= loop.reads & kernel.local
    return tuple(reversed(found))


def _recompute(program: Program, found: Candidate, ctx: Context) -> Program | None:
    """Recompute a value in its readers; None if that is impossible or costs more."""
    price = sum(cost(loop.value) for loop in found.loops)
    if price > ctx.thresholds.recompute_cost:
        return None
    made: dict[int, Kernel] = {}
    buffers: list[Buffer] = []
    for reader in found.readers:
        again = _with_loops(reader, found, program, ctx, {*program.by_name, *(buffer.name for buffer in buffers)})
        if again is not None:
            made[id(reader)], extra = again
            buffers += extra
        elif (inlined := _with_value(reader, found, program, ctx)) is not None:
            made[id(reader)] = inlined
        else:
            return None
    made[id(found.maker)] = replace(found.maker, local=found.maker.local | {found.target}).without_unused_loops()
    extended = replace(program, buffers=program.buffers + tuple(buffers))
    changed = extended.replace_steps({old: (kernel,) if kernel.loops else () for old, kernel in made.items()})
    before = sum(traffic(kernel, program, ctx) for kernel in (found.maker, *found.readers))
    after = sum(traffic(kernel, extended, ctx) for kernel in made.values())
    if after >= before:
        return None
    names = (found.target, *(reader.name for reader in found.readers))
    ctx.decide(names, "computed again", f"saves {before - after:,} bytes, costs {price}", bytes=before - after)
    return changed


def _with_loops(
    reader: Kernel, found: Candidate, program: Program, ctx: Context, taken: Set[str]
) -> tuple[Kernel, tuple[Buffer, ...]] | None:
    """A reader with the value's loops inserted, and their new buffers; None if that is not possible.

    `taken` are names of other buffers.
    """
    places = reader.places(found.target)
    shape = program.by_name[found.target].shape
    first = next(number for number, loop in enumerate(reader.loops) if found.target in loop.reads)
    spaces = dict.fromkeys((reader.ranges, reader.ranges + reader.reduced))
    at = places.pop()
    space = next((space for space in spaces if is_bijective(at, shape, space)), None)
    if places or space is None or len(reader.loops) + len(found.loops) > ctx.thresholds.fused_loops:
        return None
    if (values := values_at(found.loops[-1], at)) is None:
        return None
    names = {loop.target: _name(loop.target, reader, taken) for loop in found.loops}
    own = {names[loop.target]: program.by_name[loop.target] for loop in found.loops}
    moved = tuple(_move_loop(loop, space, values, names) for loop in found.loops)
    if not all(is_bijective(loop.index, own[loop.target].shape, space) for loop in moved):
        return None
    there = {loop.target: loop.index for loop in reader.loops}
    if any(there.get(loop.target, loop.index) != loop.index for loop in moved):
        return None  # the reader already has it, at another index
    new = {found.target: names[found.target]}
    reading = tuple(replace(loop, value=rename_buffers(loop.value, new)) for loop in reader.loops)
    early = {loop.target for loop in reading[:first]}
    inserted = tuple(loop for loop in moved if loop.target not in early)
    late = tuple(loop for loop in reading[first:] if loop.target not in own.keys() - early)
    loops = reading[:first] + inserted + late
    buffers = tuple(replace(buffer, name=name) for name, buffer in own.items() if name not in there)
    return replace(reader, loops=loops, local=reader.local.union(own)), buffers


def _name(target: str, reader: Kernel, taken: Set[str]) -> str:
    """Name of a recomputed value in a reader: the existing name if the reader already recomputes it."""
    names = (f"{target}_again{f'_{number}' if number else ''}" for number in count())
    return next(name for name in names if name in reader.targets or name not in taken)


def _with_value(reader: Kernel, found: Candidate, program: Program, ctx: Context) -> Kernel | None:
    """Inline the value into a reader with a single load of it, such as a pad or a slice; None for other readers."""
    sites = [(loop, load) for loop in reader.loops for load in loads(loop.value) if load.buffer == found.target]
    (loop, load), last = sites[0], found.loops[-1]
    if len(sites) > 1 or ctx.points(loop.space) > 2 * ctx.number(program.by_name[found.target].size):
        return None
    if (values := values_at(last, load.index)) is None:
        return None
    whole: dict[str, Expr] = {}
    for one in found.loops:
        whole[one.target] = with_loads(one.value, lambda part: whole.get(part.buffer))
    value = with_index(whole[last.target], values)
    changed = replace(loop, value=fold(with_loads(loop.value, lambda part: value if part == load else None)))
    return replace(reader, loops=tuple(changed if one is loop else one for one in reader.loops))


def _move_loop(loop: Loop, space: tuple[Var, ...], values: Mapping[str, Index], names: Mapping[str, str]) -> Loop:
    """Move a loop to another kernel: over the kernel's ranges, with a new target."""
    index: Shape = tuple(substitute(place, values) for place in loop.index)
    value = rename_buffers(with_index(loop.value, values), names)
    return replace(loop, target=names[loop.target], ranges=space, index=index, value=value)
