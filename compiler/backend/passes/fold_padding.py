"""Pass: fold padding for a library call into the kernel that produces the value; readers use the padded buffer.

A matmul may read a zero-padded copy of an operand (`lower/library_calls.py`). If the operand has other readers too,
such as a gradient that is also summed or a low-precision weight that is saved for the backward, it would be computed
or stored twice. Elements have the same coordinates in the operand and in its padded copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compiler.backend.ir import Extern, Kernel, Loop, Program, Step, Strided, map_leaves
from compiler.backend.ir.expr import Guard, Load, Put, rebuilt, rename_buffers
from compiler.backend.lower.indexing import guard_bounds
from compiler.backend.passes.context import Context
from compiler.backend.passes.simplify import fold, value_at


def fold_padding(program: Program, ctx: Context) -> Program:
    """Replace values by the padded copies that extern calls read. Each kernel must have one loop."""
    for name in [kernel.targets[0] for kernel in program.kernels if program.passed.issuperset(kernel.targets)]:
        padding = next(kernel.loops[0] for kernel in program.kernels if name in kernel.targets)
        if (maker := _maker(padding, program)) is not None:
            ctx.decide((maker.target, padding.target), "padded", f"computed in its padded copy {padding.target}")
            program = _move_copy(program, maker, padding)
    return program


def _maker(padding: Loop, program: Program) -> Loop | None:
    """Loop of a padded copy's value, if the value has other readers and all can read the copy; else None."""
    source = padding.value.value if isinstance(padding.value, Guard) else None
    if not isinstance(source, Load) or source.index != padding.index:
        return None
    value, copy = program.by_name[source.buffer], program.by_name[padding.target]
    if padding.value != fold(guard_bounds(padding.index, value.shape, source, 0)) or value.dtype != copy.dtype:
        return None
    loop = next((kernel.loops[0] for kernel in program.kernels if kernel.targets == (value.name,)), None)
    if loop is None or loop.reduction or isinstance(loop.value, Put):
        return None
    calls = (call for call in program.calls if call.aliases or call.writes)
    shared = program.mutated.union(name for call in calls for name in (*call.reads, *call.writes))
    if shared.intersection((value.name, copy.name, *loop.reads)):
        return None
    by_memory = value.name in program.returned | program.passed
    readers = [kernel for kernel in program.kernels if value.name in kernel.reads]
    if copy.name in program.returned or (by_memory and value.strides != copy.strides):
        return None
    return loop if by_memory or len(readers) > 1 else None


def _move_copy(program: Program, maker: Loop, padding: Loop) -> Program:
    """Compute the padded copy instead of the value, and redirect all readers to the copy."""
    old, new = maker.target, padding.target
    source = padding.value.value if isinstance(padding.value, Guard) else None
    value = rebuilt(padding.value, lambda part: value_at(maker, padding.index) if part is source else None)
    origins = (*maker.origins, *padding.origins)
    loop = replace(padding, value=fold(value), origins=origins, source=maker.source, operator=maker.operator)
    made = Kernel(new, loop.ranges, (), (loop,))
    kept = (step for step in program.steps if new not in step.targets)
    steps = tuple(made if old in step.targets else _replace_buffer(step, old, new) for step in kept)
    return replace(program, outputs=_replace_views(program.outputs, old, new)).with_steps(steps)


def _replace_buffer(step: Step, old: str, new: str) -> Step:
    """Replace reads of the buffer `old` in a step by reads of `new`."""
    if old not in step.reads:
        return step
    if isinstance(step, Extern):
        args, kwargs = _replace_views((step.args, step.kwargs), old, new)
        return replace(step, args=args, kwargs=kwargs)
    loops = (replace(loop, value=rename_buffers(loop.value, {old: new})) for loop in step.loops)
    return replace(step, loops=tuple(loops))


def _replace_views(value: Any, old: str, new: str) -> Any:
    """Replace views of one buffer by views of another, in arguments or outputs."""

    def change(leaf: Any) -> Any:
        return replace(leaf, buffer=new) if isinstance(leaf, Strided) and leaf.buffer == old else leaf

    return map_leaves(value, change)
