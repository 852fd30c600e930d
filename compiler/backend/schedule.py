"""Pass: which buffers are freed after each step, and which take over the memory of one that is not needed any more.

The order of steps stays as it is, but for kernels and externs of which nothing depends on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.backend.context import Context
from compiler.backend.ir import Buffer, Extern, Kernel, Product, Program, Step, loads

_FRESH = tuple(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm"))
"""Calls whose result is new memory, as large as its shape says, whatever their arguments are."""


def schedule(program: Program, ctx: Context) -> Program:
    """The program with its memory planned."""
    frees = lifetimes(program)
    taken = _reuse(program, frees, ctx)
    for new, old in taken.items():
        size = ctx.number(program.by_name[new].size) * program.by_name[new].dtype.itemsize
        ctx.decide((new, old), "reused", f"{new} takes over the memory of {old}", bytes=size)
    over = {*taken.values(), *program.taken}
    kept = tuple(tuple(name for name in names if name not in over) for names in frees)
    buffers = tuple(
        replace(buffer, reuses=taken[buffer.name]) if buffer.name in taken else buffer for buffer in program.buffers
    )
    return replace(program, buffers=buffers, frees=kept)


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


def _reuse(program: Program, frees: tuple[tuple[str, ...], ...], ctx: Context) -> dict[str, str]:
    """For buffers that kernels write: a buffer that is freed at that step or before, as large and of the same dtype."""
    fixed = _fixed(program)
    free: dict[str, list[str]] = {}
    taken: dict[str, str] = {}
    for step, freed in zip(program.steps, frees, strict=True):
        spare = [name for name in freed if name not in fixed]
        for name in step.writes if isinstance(step, Kernel) else ():
            if name in program.mutated or program.by_name[name].reuses:
                continue
            if (old := _in_place(step, name, spare, program, ctx)) is not None:
                spare.remove(old)
                taken[name] = old
            elif older := free.get(_kind(program.by_name[name])):
                taken[name] = older.pop()
        for name in spare:
            free.setdefault(_kind(program.by_name[name]), []).append(name)
    return taken


def _in_place(step: Step, name: str, spare: Sequence[str], program: Program, ctx: Context) -> str | None:
    """A buffer that the same kernel reads for the last time, if each element is read before its place is written."""
    assert isinstance(step, Kernel)
    if step.reduced or any(loop.reduction for loop in step.loops) or not ctx.processors:
        return None  # in C++ what is read and what is written is `__restrict`: different memory
    buffer = program.by_name[name]
    if isinstance(step, Product):  # all of its operands are read by several programs, at any time
        if name == step.made:
            return None
        spare = [old for old in spare if old not in step.call.reads]
    for old in spare:
        before = program.by_name[old]
        alike = (before.shape, before.strides) == (buffer.shape, buffer.strides) and _kind(before) == _kind(buffer)
        if alike and old in step.reads and _reads_first(step, name, old):
            return old
    return None


def _reads_first(kernel: Kernel, name: str, old: str) -> bool:
    """Whether no loop after the one that writes `name` reads `old`, and none reads it at another place."""
    place = [loop.target for loop in kernel.loops].index(name)
    index = kernel.loops[place].index
    at = {load.index for loop in kernel.loops for load in loads(loop.value) if load.buffer == old}
    late = any(load.buffer == old for loop in kernel.loops[place + 1 :] for load in loads(loop.value))
    return at == {index} and not late


def _kind(buffer: Buffer) -> str:
    return f"{buffer.dtype} {buffer.device} {buffer.size.key}"


def _fixed(program: Program) -> set[str]:
    """Buffers whose memory is not ours to give away: inputs, and what calls of PyTorch made or may still refer to."""
    fixed = {*program.taken, *program.inputs, *program.constants, *program.returned, *program.mutated}
    for step in program.steps:
        if isinstance(step, Extern):
            fixed.update(() if step.name in _FRESH else step.targets)
            fixed.update(step.reads if step.aliases else ())
    return fixed
