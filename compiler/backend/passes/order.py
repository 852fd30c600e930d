"""Pass: sort and merge the ranges of loops so that they access memory in order.

The range along which most accesses are contiguous becomes the innermost; the others are sorted by stride. Adjacent
ranges are merged if each access has the strides of a single range.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import pairwise, permutations

from compiler.backend.ir import Kernel, MatmulKernel, Program
from compiler.backend.ir.expr import Guard, Put, indices, parts, variables_in
from compiler.backend.ir.index import Index, Var, atoms_of, factor_of, is_bijective
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import accesses


def order(program: Program, ctx: Context) -> Program:
    """Sort and merge the ranges of all kernels."""
    sorted_kernels = {id(kernel): sort_ranges(kernel, program, ctx) for kernel in program.kernels}
    return program.replace_steps({key: (kernel,) for key, kernel in sorted_kernels.items() if id(kernel) != key})


def sort_ranges(kernel: Kernel, program: Program, ctx: Context) -> Kernel:
    """Sort and merge a kernel's ranges. Matmul kernels and kernels without points are returned unchanged."""
    if isinstance(kernel, MatmulKernel) or _is_empty(kernel):
        return kernel
    kernel = merge_ranges(kernel, program)
    ranges, reduced = (_sort_group(group, kernel, program, ctx) for group in (kernel.ranges, kernel.reduced))
    reduced = _short_last(reduced, kernel, program, ctx)
    if any(loop.reduction.startswith("arg") for loop in kernel.loops):
        reduced = kernel.reduced
    if (ranges, reduced) != (kernel.ranges, kernel.reduced):
        ctx.decide((kernel.name,), "reordered", f"loops over {', '.join(map(str, ranges + reduced))}")
        kernel = kernel.with_ranges(ranges, reduced, {})
    return kernel


def _is_empty(kernel: Kernel) -> bool:
    return any(var.size.constant == 0 for var in kernel.ranges + kernel.reduced)


def merge_ranges(kernel: Kernel, program: Program, passing: Set[str] = frozenset()) -> Kernel:
    """Merge ranges if each access has the strides of a single range; accesses to `passing` buffers don't count."""
    while (pair := _mergeable(kernel, program, passing)) is not None:
        kernel = _merge_pair(kernel, *pair)
    return kernel


def sort_reduced_ranges(kernel: Kernel, program: Program, ctx: Context) -> Kernel:
    """Sort only the reduced ranges of a kernel."""
    if _is_empty(kernel):
        return kernel
    return kernel.with_ranges(kernel.ranges, _sort_group(kernel.reduced, kernel, program, ctx), {})


def _sort_group(group: tuple[Var, ...], kernel: Kernel, program: Program, ctx: Context) -> tuple[Var, ...]:
    """Sort ranges by their average stride, largest first; accesses are weighted by the size of the buffer.

    Ranges with stride 1 in most accesses, by the same weight, come last.
    """
    if len(group) < 2:
        return group
    places = [(ctx.number(buffer.size), offset) for buffer, offset in accesses(kernel, program)]
    most = sum(size for size, _ in places) / 2

    def distance(var: Var) -> tuple[bool, float]:
        steps = [(size, abs(ctx.number(by))) for size, place in places if (by := factor_of(place, var)).terms]
        close, whole = sum(size for size, step in steps if step == 1), sum(size for size, _ in steps)
        return close < most, sum(size * step for size, step in steps) / whole if whole else 0.0

    return tuple(sorted(group, key=distance, reverse=True))


def _short_last(group: tuple[Var, ...], kernel: Kernel, program: Program, ctx: Context) -> tuple[Var, ...]:
    """On a GPU, make a short contiguous range the last of the reduced ranges.

    An example is the channels of a group in channels-last memory: one thread takes all of them, and adjacent threads
    take elements along the next range.
    """
    if not ctx.processors or len(group) < 2:
        return group
    places = [(ctx.number(buffer.size), offset) for buffer, offset in accesses(kernel, program)]
    least = max(size for size, _ in places) / 4

    def is_walked(var: Var) -> bool:
        return any(size >= least and ctx.number(factor_of(place, var)) == 1 for size, place in places)

    short = [var for var in group if ctx.number(var.size) <= ctx.thresholds.thread_run and is_walked(var)]
    return (*(var for var in group if var not in short[-1:]), *short[-1:])


def _mergeable(kernel: Kernel, program: Program, passing: Set[str]) -> tuple[Var, Var] | None:
    """Two ranges (outer, inner) that can be merged, None if there are none."""
    inside = [part for loop in kernel.loops for part in parts(loop.value)]
    places = [offset for buffer, offset in accesses(kernel, program) if buffer.name not in passing]
    places += [part for part in inside if isinstance(part, Index)]
    guarded = (inner for part in inside if isinstance(part, Guard) for inner in parts(part.value))
    fixed = {var for part in guarded for index in indices(part) for var in atoms_of(index)}  # may be out of bounds
    is_free = not any(loop.is_scan or loop.reduction.startswith("arg") for loop in kernel.loops)
    reduced = permutations(kernel.reduced, 2) if is_free else pairwise(kernel.reduced)
    for outer, inner in (*permutations(kernel.ranges, 2), *reduced):
        if fixed.isdisjoint((outer, inner)) and all(_as_one(place, outer, inner) for place in places):
            is_plain = len(outer.size.terms) == len(inner.size.terms) == 1
            if is_plain or _is_certain(_merge_pair(kernel, outer, inner), program):
                return outer, inner
    return None


def _is_certain(kernel: Kernel, program: Program) -> bool:
    """Whether a kernel's loops are proven to write each element once. This may fail if sizes are sums of symbols."""
    loops = [loop for loop in kernel.loops if not isinstance(loop.value, Put)]
    return all(is_bijective(loop.index, program.by_name[loop.target].shape, loop.stored) for loop in loops)


def _as_one(place: Index, outer: Var, inner: Var) -> bool:
    step, wide = factor_of(place, inner), factor_of(place, outer)
    if step * inner.size != wide:
        return False
    rest = place - Index.of(outer) * wide - Index.of(inner) * step
    return not any(var in (outer, inner) for var in variables_in(rest))


def _merge_pair(kernel: Kernel, outer: Var, inner: Var) -> Kernel:
    both = Var(outer.name, outer.size * inner.size)
    values = {outer.name: Index.of(both) // inner.size, inner.name: Index.of(both) % inner.size}

    def one(group: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(both if var == outer else var for var in group if var != inner)

    return kernel.with_ranges(one(kernel.ranges), one(kernel.reduced), values)
