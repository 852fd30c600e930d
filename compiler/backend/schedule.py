"""Pass: which buffers are freed after each step, and which take over the memory of one that is not needed any more.

On a GPU the order of steps changes where less is held at once in another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from compiler.backend.context import Context
from compiler.backend.expr import loads
from compiler.backend.index import Index
from compiler.backend.ir import Buffer, Extern, Kernel, Loop, Product, Program, Step
from compiler.backend.lower.value import contiguous
from compiler.backend.sequence import sequences
from compiler.backend.sweeps import in_order
from compiler.backend.together import Together

Frees: TypeAlias = Sequence[Sequence[str]]
Sizes: TypeAlias = Mapping[str, int]
"""The bytes of each buffer."""
WORTHWHILE = 0.98
"""Steps stay in their order where another one holds more than this share of what it holds."""

_FRESH = tuple(
    f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
)
"""Calls whose results are new memory, as large as their shapes say, whatever their arguments are."""


def schedule(program: Program, ctx: Context) -> Program:
    """The program with its memory planned."""
    sizes = {buffer.name: ctx.number(buffer.size) * buffer.dtype.itemsize for buffer in program.buffers}
    program = _least_held(program, sizes, ctx)
    frees = lifetimes(program)
    taken = _reuse(program, frees, sizes, ctx)
    for new, old in taken.items():
        ctx.decide((new, old), "reused", f"{new} takes over the memory of {old}", bytes=sizes[new])
    over = {*taken.values(), *program.taken}
    kept = tuple(tuple(name for name in names if name not in over) for names in frees)
    buffers = tuple(
        replace(buffer, reuses=taken[buffer.name]) if buffer.name in taken else buffer for buffer in program.buffers
    )
    return replace(program, buffers=buffers, frees=kept)


def _least_held(program: Program, sizes: Sizes, ctx: Context) -> Program:
    """The program with its steps in the order that needs least memory at once, of those that are tried."""
    if not ctx.processors or len(program.steps) < 3:
        return program
    most = _most_held(program, sizes, ctx)
    best, least = program, int(most * WORTHWHILE)
    if least <= _needed(program, sizes, ctx):
        return program
    for other in sequences(program, sizes, ctx.given):
        if (held := _most_held(other, sizes, ctx)) < least:
            best, least = other, held
    if best is not program:
        names = tuple(step.targets[-1] for step in best.steps if step.targets)
        ctx.decide(names, "reordered", f"{least:,} bytes are held at once, not {most:,}", bytes=most - least)
    return best


def _needed(program: Program, sizes: Sizes, ctx: Context) -> int:
    """The bytes that any order holds at once: of what one call of PyTorch reads and makes."""
    made = {name for step in program.steps for name in step.targets} | ctx.given
    calls = (step for step in program.steps if isinstance(step, Extern))
    return max(
        (sum(sizes[name] for name in made.intersection((*call.targets, *call.reads))) for call in calls), default=0
    )


def _most_held(program: Program, sizes: Sizes, ctx: Context) -> int:
    return max(_written_over(program, lifetimes(program), sizes, ctx)[2], default=0)


def lifetimes(program: Program) -> tuple[tuple[str, ...], ...]:
    """For each step the buffers in memory that no later step and no output needs."""
    seen = set(program.returned) | set(program.constants)
    frees: list[tuple[str, ...]] = []
    for step in reversed(program.steps):
        hidden = step.local if isinstance(step, Kernel) else frozenset()
        named = {*step.reads, *step.targets} - hidden - seen
        seen |= named
        frees.append(tuple(sorted(named)))
    return tuple(reversed(frees))


def _reuse(program: Program, frees: Frees, sizes: Sizes, ctx: Context) -> dict[str, str]:
    """For buffers that kernels write: a buffer that is freed at that step or before, as large and of the same dtype.
    One is kept for a later step only where that does not make the most that is held at once any more.
    """
    taken, spare, held = _written_over(program, frees, sizes, ctx)
    most = max(held, default=0)
    free: dict[str, list[tuple[str, int]]] = {}
    for number, step in enumerate(program.steps):
        for name in _made(step, program):
            older = free.get(_kind(program.by_name[name]), []) if name not in taken else []
            size = sizes[name]
            while older and name not in taken:
                old, since = older.pop()
                if not _has_room(program.by_name[old].span, program.by_name[name].span):
                    continue
                if all(bytes_ + size <= most for bytes_ in held[since + 1 : number]):
                    held[since + 1 : number] = [bytes_ + size for bytes_ in held[since + 1 : number]]
                    taken[name] = old
        for name in spare[number]:
            free.setdefault(_kind(program.by_name[name]), []).append((name, number))
    return taken


def _written_over(
    program: Program, frees: Frees, sizes: Sizes, ctx: Context
) -> tuple[dict[str, str], list[list[str]], list[int]]:
    """For buffers that kernels write: one that the same kernel reads for the last time. What else is freed at each step
    and may be taken over; and the bytes that are held while each step runs.
    """
    fixed = _fixed(program, ctx)
    spare = [[name for name in freed if name not in fixed] for freed in frees]
    held = held_bytes(program, frees, sizes, ctx.given)
    taken: dict[str, str] = {}
    for number, step in enumerate(program.steps):
        for name in _made(step, program):
            if (old := _in_place(step, name, spare[number], program, ctx)) is not None:
                spare[number].remove(old)
                taken[name] = old
                held[number] -= sizes[name]
    return taken, spare, held


def _made(step: Step, program: Program) -> list[str]:
    """What a kernel writes to memory that is to be found for it."""
    if not isinstance(step, Kernel):
        return []
    return [name for name in step.writes if name not in program.mutated and not program.by_name[name].reuses]


def held_bytes(program: Program, frees: Frees, sizes: Sizes, given: frozenset[str]) -> list[int]:
    """The bytes that are held while each step runs: of what steps made or what was given, and is still to be read."""
    found: list[int] = []
    made = set(given)
    now = sum(sizes[name] for name in made)
    for step, freed in zip(program.steps, frees, strict=True):
        new = {*(step.writes if isinstance(step, Kernel) else step.targets)} - program.mutated
        made |= new
        now += sum(sizes[name] for name in new)
        found.append(now)
        now -= sum(sizes[name] for name in made.intersection(freed))
    return found


def _in_place(step: Step, name: str, spare: Sequence[str], program: Program, ctx: Context) -> str | None:
    """A buffer that the same kernel reads for the last time, if each element is read before its place is written."""
    assert isinstance(step, Kernel)
    is_of_library = program.by_name[name].device == "cpu" and any(other.device != "cpu" for other in program.buffers)
    if is_of_library or not ctx.processors:
        return None  # in C++ what is read and what is written is `__restrict`: different memory
    if isinstance(step, Product):  # all of its operands are read by several programs, at any time
        if name == step.made:
            return None
        spare = [old for old in spare if old not in step.call.reads]
    if isinstance(step, Together):  # programs of one part may run before or after those of another
        spare = [old for old in spare if sum(old in part.reads for part in step.parts) < 2]
        (step,) = (part for part in step.parts if name in part.targets)
    wanted = _kind(program.by_name[name])
    for old in sorted(set(spare).intersection(step.reads), key=lambda old: (old in ctx.given, old)):
        if _kind(program.by_name[old]) == wanted and _reads_first(step, name, old, program):
            return old
    return None


def _reads_first(kernel: Kernel, name: str, old: str, program: Program) -> bool:
    """Whether nothing of the kernel after the loop that writes `name` reads `old`, and none reads it at another place
    in memory. Both orders of its loops count: their own, and that of the walks over what it reduces.
    """
    before, after = program.by_name[old], program.by_name[name]
    (index,) = (loop.index for loop in kernel.loops if loop.target == name)
    at = {before.offset(load.index) for loop in kernel.loops for load in loads(loop.value) if load.buffer == old}
    if at != {after.offset(index)}:
        return False
    return not any(_is_read_late(order, name, old) for order in (kernel.loops, in_order(kernel)))


def _is_read_late(loops: Sequence[Loop], name: str, old: str) -> bool:
    written = next(number for number, loop in enumerate(loops) if loop.target == name)
    return any(load.buffer == old for loop in loops[written + 1 :] for load in loads(loop.value))


def _is_dense(buffer: Buffer) -> bool:
    """Whether its elements lie side by side, in whatever order; with sizes that are not known, row by row."""
    if any(size.constant is None for size in (*buffer.shape, *buffer.strides)):
        return buffer.strides == contiguous(buffer.shape)
    pairs = zip(buffer.strides, buffer.shape, strict=True)
    filled = 1
    for stride, size in sorted((stride.constant or 0, size.constant or 0) for stride, size in pairs):
        if size != 1 and stride != filled:
            return False
        filled *= size
    return True


def _has_room(old: Index, new: Index) -> bool:
    """Whether memory for as many elements is enough, whatever the symbols are."""
    return old == new or (old.constant is not None and new.constant is not None and old.constant > new.constant)


def _kind(buffer: Buffer) -> str:
    return f"{buffer.dtype} {buffer.device} {buffer.size.key}"


def _fixed(program: Program, ctx: Context) -> set[str]:
    """Buffers whose memory is not ours to give away: inputs, and what calls of PyTorch made or may still refer to."""
    given = {name for name in ctx.given if _is_dense(program.by_name[name])}
    fixed = {*program.taken, *program.inputs} - given
    fixed |= {*program.constants, *program.returned, *program.mutated}
    for step in program.steps:
        if isinstance(step, Extern):
            fixed.update(() if step.name in _FRESH else step.targets)
            fixed.update(step.reads if step.aliases else ())
    return fixed
