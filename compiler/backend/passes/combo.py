"""Pass, for GPUs: merge small independent pointwise kernels into one launch, in which each has its own programs.

In the few microseconds of a launch a GPU moves megabytes. Most kernels that cast a weight to low precision, or the
gradient of a weight, move less. Kernels that read only the graph's inputs move up to the first such kernel; kernels
whose results only the caller reads move down to the last such kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.backend.ir import ComboKernel, Kernel, Loop, Program, Step
from compiler.backend.ir.expr import Put, is_indirect
from compiler.backend.ir.index import product
from compiler.backend.ir.symbols import symbols_and_checks
from compiler.backend.passes.context import Context
from compiler.backend.passes.names import unique, without_number


def combine(program: Program, ctx: Context) -> Program:
    """Merge small independent kernels into combo kernels."""
    if not ctx.processors:
        return program
    given, read = {*program.inputs, *program.constants}, {name for step in program.steps for name in step.reads}
    small = [kernel for kernel in program.kernels if _is_small(kernel, program, ctx)]
    early = [kernel for kernel in small if given.issuperset(kernel.reads)]
    late = [kernel for kernel in small if read.isdisjoint(kernel.writes) and not given.issuperset(kernel.reads)]
    new: dict[int, tuple[Step, ...]] = {}
    taken = {kernel.name for kernel in program.kernels}
    for kernels, place in ((early, 0), (late, -1)):
        for group in _groups(kernels, program, ctx):
            one = combine_kernels(group, taken)
            new |= dict.fromkeys(map(id, group), ()) | {id(group[place]): (one,)}
            ctx.decide(one.writes, "combined", f"{len(group)} independent kernels in one launch")
    return program.replace_steps(new)


def combine_kernels(kernels: Sequence[Kernel], taken: set[str]) -> ComboKernel:
    """Make a combo kernel, named after the first kernel; `taken` are the names of other kernels."""
    loops = tuple(loop for kernel in kernels for loop in kernel.loops)
    local = frozenset(name for kernel in kernels for name in kernel.local)
    name = unique(f"{without_number(kernels[0].name)}_and_{len(kernels) - 1}_more", taken)
    return ComboKernel(name, (), (), loops, local, parts=tuple(kernels))


def _is_small(kernel: Kernel, program: Program, ctx: Context) -> bool:
    """Whether a kernel takes less time than a launch, and is pointwise with static sizes and direct indices."""
    points = product(var.size for var in kernel.ranges).constant or 0
    if type(kernel) is not Kernel or kernel.reduced or not 0 < points <= ctx.thresholds.shared_points:
        return False
    if symbols_and_checks(program, kernel)[0]:
        return False
    names = {*kernel.reads, *kernel.targets}
    gpus = {buffer.device for buffer in program.buffers} - {"cpu"} or {"cpu"}  # GPU code may target CPU buffers
    on_gpu = gpus.issuperset(program.by_name[name].device for name in names)
    return on_gpu and names.isdisjoint(program.mutated) and all(map(_is_pointwise, kernel.loops))


def _is_pointwise(loop: Loop) -> bool:
    return not loop.reduction and not isinstance(loop.value, Put) and not is_indirect(loop.value)


def _groups(kernels: Sequence[Kernel], program: Program, ctx: Context) -> list[list[Kernel]]:
    """Groups of two or more kernels on one device; each group is within the limits of a combo kernel."""
    found: dict[str, list[list[Kernel]]] = {}
    for kernel in kernels:
        groups = found.setdefault(program.by_name[kernel.targets[0]].device, [[]])
        if _exceeds_limits([*groups[-1], kernel], ctx):
            groups.append([])
        groups[-1].append(kernel)
    return [group for groups in found.values() for group in groups if len(group) > 1]


def _exceeds_limits(group: Sequence[Kernel], ctx: Context) -> bool:
    limits = ctx.thresholds
    points = sum(ctx.points(kernel.ranges) for kernel in group)
    buffers = {name for kernel in group for name in (*kernel.reads, *kernel.writes)}
    loops = sum(len(kernel.loops) for kernel in group)
    return points > 2 * limits.shared_points or len(buffers) > limits.fused_buffers or loops > limits.fused_loops
