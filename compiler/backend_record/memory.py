"""What a program's call does to memory, step by step: it allocates, takes over what is no longer needed, frees."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.backend.ir import Extern, Program, Step, Strided
from compiler.backend.passes.context import Context
from compiler.torch_api.memory_lines import MemoryFacts, MemoryLine


def memory_facts(program: Program, ctx: Context) -> MemoryFacts:
    """Of a scheduled program; symbolic sizes count as in the explored call."""
    known = program.by_name
    inputs = tuple((name, _bytes(program, ctx, name)) for name in program.inputs if name in known)
    outputs = tuple(value.buffer if isinstance(value, Strided) else "" for value in program.outputs)
    return MemoryFacts(inputs, tuple(_lines(program, ctx)), outputs)


def _lines(program: Program, ctx: Context) -> Iterator[MemoryLine]:
    for step, freed in zip(program.steps, program.frees or ((),) * len(program.steps), strict=True):
        yield from _allocations(program, ctx, step)
        yield from (MemoryLine("free", name) for name in freed)


def _allocations(program: Program, ctx: Context, step: Step) -> Iterator[MemoryLine]:
    for name in step.targets if isinstance(step, Extern) else step.writes:
        size = _bytes(program, ctx, name)
        if name in program.mutated:
            continue
        if before := program.by_name[name].reuses:
            yield MemoryLine("reuse", name, size, before)
        elif isinstance(step, Extern) and step.aliases and step.reads:
            yield MemoryLine("alias", name, size, step.reads[0])
        else:
            yield MemoryLine("allocate", name, size)


def _bytes(program: Program, ctx: Context, name: str) -> int:
    buffer = program.by_name[name]
    return ctx.number(buffer.size) * buffer.dtype.itemsize
