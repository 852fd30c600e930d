"""Pass: which buffers are freed after each step, and which take over the memory of one that is not needed any more.

The order of steps stays as it is, but for kernels and externs of which nothing depends on each other.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.backend.context import Context
from compiler.backend.ir import Buffer, Extern, Kernel, Program


def schedule(program: Program, ctx: Context) -> Program:
    """The program with its memory planned."""
    frees = lifetimes(program)
    taken = _reuse(program, frees)
    for new, old in taken.items():
        size = ctx.number(program.by_name[new].size) * program.by_name[new].dtype.itemsize
        ctx.decide((new, old), "reused", f"{new} takes over the memory of {old}", bytes=size)
    over = set(taken.values())
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


def _reuse(program: Program, frees: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    """For buffers that kernels write: a buffer that is freed at that step or before, as large and of the same dtype."""
    fixed = _fixed(program)
    free: dict[str, list[str]] = {}
    taken: dict[str, str] = {}
    for step, freed in zip(program.steps, frees, strict=True):
        for name in step.writes if isinstance(step, Kernel) else ():
            if name in program.mutated:
                continue
            if spare := free.get(_kind(program.by_name[name])):
                taken[name] = spare.pop()
        for name in freed:
            if name not in fixed:
                free.setdefault(_kind(program.by_name[name]), []).append(name)
    return taken


def _kind(buffer: Buffer) -> str:
    return f"{buffer.dtype} {buffer.device} {buffer.size.key}"


def _fixed(program: Program) -> set[str]:
    """Buffers whose memory is not ours to give away: inputs, and what calls of PyTorch made or may still refer to."""
    fixed = {*program.inputs, *program.constants, *program.returned, *program.mutated}
    for step in program.steps:
        if isinstance(step, Extern):
            fixed.update(step.targets)
            fixed.update(step.reads if step.aliases else ())
    return fixed
