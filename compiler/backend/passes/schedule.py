"""Pass: plan which buffers are freed after each step, and which reuse the memory of a dead buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from compiler.backend.ir import Buffer, ComboKernel, Extern, Kernel, MatmulKernel, Program, Step
from compiler.backend.ir.sweeps import in_order
from compiler.backend.lower.value import contiguous
from compiler.backend.passes.context import Context

Frees: TypeAlias = Sequence[Sequence[str]]
Sizes: TypeAlias = Mapping[str, int]
"""Size of each buffer, in bytes."""

_FRESH = tuple(
    f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
)
"""Extern calls whose results are always new memory without gaps, never views of arguments."""


def schedule(program: Program, ctx: Context) -> Program:
    """Plan the memory of a program."""
    sizes = bytes_of_buffers(program, ctx)
    frees = lifetimes(program)
    taken = _reuse(program, frees, sizes, ctx)
    for new, old in taken.items():
        ctx.decide((new, old), "reused", f"{new} reuses the memory of {old}", bytes=sizes[new])
    gone = {*taken.values(), *program.taken}
    kept = tuple(tuple(name for name in names if name not in gone) for names in frees)
    buffers = (replace(buffer, reuses=taken.get(buffer.name, buffer.reuses)) for buffer in program.buffers)
    return replace(program, buffers=tuple(buffers), frees=kept)


def bytes_of_buffers(program: Program, ctx: Context) -> Sizes:
    """Size of each buffer, in bytes."""
    return {buffer.name: ctx.number(buffer.size) * buffer.dtype.itemsize for buffer in program.buffers}


def peak_bytes(program: Program, sizes: Sizes, ctx: Context) -> int:
    """Peak memory of a program, in bytes."""
    return max(_reuse_buffers(program, lifetimes(program), sizes, ctx)[2], default=0)


def lifetimes(program: Program) -> tuple[tuple[str, ...], ...]:
    """Buffers to free after each step: no later step and no output needs them."""
    seen = set(program.returned) | set(program.constants)
    frees: list[tuple[str, ...]] = []
    for step in reversed(program.steps):
        hidden = step.local if isinstance(step, Kernel) else frozenset()
        named = {*step.reads, *step.targets} - hidden - seen
        seen |= named
        frees.append(tuple(sorted(named)))
    return tuple(reversed(frees))


def _reuse(program: Program, frees: Frees, sizes: Sizes, ctx: Context) -> dict[str, str]:
    """Buffers that outputs of kernels reuse, by output: in place, or a dead buffer of the same size and dtype.

    A dead buffer is kept for a later step only if that does not raise peak memory.
    """
    taken, spare, held = _reuse_buffers(program, frees, sizes, ctx)
    most = max(held, default=0)
    free: dict[str, list[tuple[str, int]]] = {}
    for number, step in enumerate(program.steps):
        for name in _buffers_to_allocate(step, program):
            older = free.get(_kind(program.by_name[name]), [])
            while older and name not in taken:
                old, since = older.pop()
                between = [bytes_ + sizes[name] for bytes_ in held[since + 1 : number]]
                if _has_room(program.by_name[old], program.by_name[name]) and max(between, default=0) <= most:
                    held[since + 1 : number] = between
                    taken[name] = old
        for name in spare[number]:
            free.setdefault(_kind(program.by_name[name]), []).append((name, number))
    return taken


def _reuse_buffers(
    program: Program, frees: Frees, sizes: Sizes, ctx: Context
) -> tuple[dict[str, str], list[list[str]], list[int]]:
    """Buffers that are reused in place, by output: a kernel overwrites a buffer that it reads for the last time.

    Also returns the other buffers that die at each step and may be reused, and the live bytes at each step.
    """
    fixed = _buffers_not_ours(program, ctx)
    spare = [[name for name in freed if name not in fixed] for freed in frees]
    held = held_bytes(program, frees, sizes, ctx.donated)
    taken: dict[str, str] = {}
    for number, step in enumerate(program.steps):
        for name in _buffers_to_allocate(step, program):
            if (old := _in_place(step, name, spare[number], program, ctx)) is not None:
                spare[number].remove(old)
                taken[name] = old
                held[number] -= sizes[name]
    return taken, spare, held


def _buffers_to_allocate(step: Step, program: Program) -> list[str]:
    """Outputs of a kernel that need an allocation; [] for an extern call."""
    if not isinstance(step, Kernel):
        return []
    return [name for name in step.writes if name not in program.mutated and not program.by_name[name].reuses]


def held_bytes(program: Program, frees: Frees, sizes: Sizes, given: frozenset[str]) -> list[int]:
    """Live bytes while each step runs; `given` are donated inputs."""
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
    """A buffer that can be overwritten in place, as the kernel reads each element before it writes there; else None."""
    assert isinstance(step, Kernel)
    is_of_library = program.by_name[name].device == "cpu" and any(other.device != "cpu" for other in program.buffers)
    if is_of_library or not ctx.processors:
        return None  # C++ pointers are `__restrict`: inputs and outputs must not overlap
    if isinstance(step, MatmulKernel):  # several programs read its operands, at any time
        if name == step.made:
            return None
        spare = [old for old in spare if old not in step.call.reads]
    if isinstance(step, ComboKernel):  # programs of different parts run in any order
        spare = [old for old in spare if sum(old in part.reads for part in step.parts) < 2]
        (step,) = (part for part in step.parts if name in part.targets)
    wanted = _kind(program.by_name[name])
    for old in sorted(set(spare).intersection(step.reads), key=lambda old: (old in ctx.donated, old)):
        if _kind(program.by_name[old]) == wanted and _reads_first(step, name, old, program):
            return old
    return None


def _reads_first(kernel: Kernel, name: str, old: str, program: Program) -> bool:
    """Whether every read of `old` comes before the loop that writes `name`, and at the same offset.

    This must hold in the order of the loops and in the order of the sweeps over reduced ranges.
    """
    before, after = program.by_name[old], program.by_name[name]
    (index,) = (loop.index for loop in kernel.loops if loop.target == name)
    if {*map(before.offset, kernel.places(old))} != {after.offset(index)}:
        return False
    for loops in (kernel.loops, in_order(kernel)):
        written = [loop.target for loop in loops].index(name)
        if any(old in loop.reads for loop in loops[written + 1 :]):
            return False
    return True


def _is_dense(buffer: Buffer) -> bool:
    """Whether a buffer has no gaps, in any order of dimensions; with symbolic sizes, whether it is row-major."""
    if any(size.constant is None for size in (*buffer.shape, *buffer.strides)):
        return buffer.strides == contiguous(buffer.shape)
    pairs = zip(buffer.strides, buffer.shape, strict=True)
    filled = 1
    for stride, size in sorted((stride.constant or 0, size.constant or 0) for stride, size in pairs):
        if size != 1 and stride != filled:
            return False
        filled *= size
    return True


def _has_room(old: Buffer, new: Buffer) -> bool:
    """Whether a buffer is proven to be large enough for another one."""
    have, need = old.span.constant, new.span.constant
    return old.span == new.span or (have is not None and need is not None and have > need)


def _kind(buffer: Buffer) -> str:
    return f"{buffer.dtype} {buffer.device} {buffer.size.key}"


def _buffers_not_ours(program: Program, ctx: Context) -> set[str]:
    """Buffers whose memory can't be reused: inputs that are not donated, constants, mutated buffers, outputs, and
    arguments and results of extern calls that may be aliases.
    """
    given = {name for name in ctx.donated if _is_dense(program.by_name[name])}
    fixed = {*program.taken, *program.inputs} - given
    fixed |= {*program.constants, *program.returned, *program.mutated}
    for step in program.steps:
        if isinstance(step, Extern):
            fixed.update(() if step.name in _FRESH else step.targets)
            fixed.update(step.reads if step.aliases else ())
    return fixed
