"""Pass, for GPUs: split a reduction kernel again if it would access memory in short runs.

Loops that no reduction needs become a pointwise kernel, which accesses memory in tiles.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.backend.ir import Kernel, Loop, Program, Step
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import bytes_moved, strided_access_penalty
from compiler.backend.passes.fuse import localize
from compiler.backend.passes.order import merge_ranges, sort_ranges


def fission(program: Program, ctx: Context) -> Program:
    """Split kernels whose short runs cost more than loading their inputs twice."""
    if not ctx.processors:
        return program
    steps = [part for step in program.steps for part in _split_kernel(step, program, ctx)]
    return program.with_steps(localize(steps, program)) if len(steps) > len(program.steps) else program


def _split_kernel(step: Step, program: Program, ctx: Context) -> tuple[Step, ...]:
    """Split a step into a reduction kernel and a pointwise kernel, or return it unchanged if that costs more."""
    if not isinstance(step, Kernel) or not step.reduced or step.taken or not program.mutated.isdisjoint(step.targets):
        return (step,)
    needed: set[str] = set()
    for loop in reversed(step.loops):
        if loop.reduction or len(loop.ranges) == len(step.ranges) or loop.target in needed:
            needed |= {loop.target, *loop.reads}
    rows = replace(step, loops=tuple(loop for loop in step.loops if loop.target in needed))
    late = tuple(loop for loop in step.loops if loop.target not in needed)
    sorted_rows = sort_ranges(step, program, ctx.without_decisions())
    lost = strided_access_penalty(sorted_rows, program, ctx) if late else {}
    later = {name: bytes_ for name, bytes_ in lost.items() if name not in rows.reads and name not in rows.targets}
    again = sum(bytes_moved(name, rows, program, ctx) for name in rows.reads)
    if sum(later.values()) <= again + ctx.thresholds.launch_bytes:
        return (step,)
    most = max(later, key=lambda name: later[name])
    why = f"rows would meet {most} in short runs, for the time of {sum(later.values()):,} bytes more"
    ctx.decide((step.targets[-1],), "fission", f"{why}; {again:,} are read again", bytes=again)
    return rows, _over_points(step, late, program, ctx)


def _over_points(step: Kernel, late: tuple[Loop, ...], program: Program, ctx: Context) -> Kernel:
    """Make a pointwise kernel of some loops of a reduction kernel.

    It keeps the loops in `late`. Ranges are merged only if the accesses of all pointwise loops of the reduction
    kernel allow it, as other values may be recomputed later. Accesses to small buffers do not count.
    """
    whole = tuple(loop for loop in step.loops if not loop.reduction and len(loop.ranges) > len(step.ranges))
    points = Kernel(step.name, step.ranges + step.reduced, (), whole)
    count, kept = ctx.points(points.ranges), {loop.target for loop in late}
    small = {name for name in points.reads if 2 * ctx.number(program.by_name[name].size) < count}
    merged = merge_ranges(points, program, small)
    return replace(merged, loops=tuple(loop for loop in merged.loops if loop.target in kept))
