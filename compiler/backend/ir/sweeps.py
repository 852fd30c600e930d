"""Divide a kernel with reductions into sweeps, which run at each point of its outer loops.

A sweep is one pass over the reduced ranges. A loop that reads the result of a reduction runs in a later sweep than the
reduction. Values of one sweep that a later sweep reads are kept in a row buffer, loaded if they are stored, or
recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from compiler.backend.ir import Kernel, Loop


@dataclass(frozen=True, slots=True)
class Sweep:
    """One pass over the reduced ranges. `body` has its loops, in order: reductions and pointwise loops. `scalars` has
    loops that run before the pass, once at each point of the outer loops. `again` names the values in `body` that an
    earlier sweep has already computed.
    """

    scalars: tuple[Loop, ...]
    body: tuple[Loop, ...]
    again: frozenset[str] = frozenset()


@lru_cache(256)
def sweeps(kernel: Kernel) -> tuple[Sweep, ...]:
    """Sweeps of a kernel that has reduced ranges; the last one may have no body."""
    levels = _levels(kernel)
    inner = {loop.target for loop in kernel.loops if loop.is_scan or len(loop.stored) > len(kernel.ranges)}
    found = []
    for level in range(max(levels.values()) + 1):
        now = [loop for loop in kernel.loops if levels[loop.target] == level]
        scalars = tuple(loop for loop in now if loop.target not in inner and not loop.reduction)
        due = {loop.target for loop in now if loop.target in inner or loop.reduction}
        needed = _needed_values(kernel, due, inner)
        body = tuple(loop for loop in kernel.loops if loop.target in needed)
        found.append(Sweep(scalars, body, frozenset(needed - due)))
    return tuple(found)


def in_order(kernel: Kernel) -> tuple[Loop, ...]:
    """Loops of a kernel in execution order; a recomputed loop occurs several times."""
    if not kernel.reduced:
        return kernel.loops
    return tuple(loop for sweep in sweeps(kernel) for loop in (*sweep.scalars, *sweep.body))


def overwritten_early(kernel: Kernel, names: Iterable[str]) -> str:
    """Name of a buffer in `names` that the kernel overwrites before its old value was last read, "" for none."""
    for name in sorted({*names} & {*kernel.targets}):
        (writer,) = (loop for loop in kernel.loops if loop.target == name)
        loops = in_order(kernel)
        late = (loop for loop in loops[loops.index(writer) + 1 :] if loop.order < writer.order)
        if any(name in loop.reads for loop in late):
            return name
    return ""


def _levels(kernel: Kernel) -> Mapping[str, int]:
    """Number of sweeps that must be complete before each loop can run, by target."""
    levels: dict[str, int] = {}
    reductions = {loop.target for loop in kernel.loops if loop.reduction and not loop.is_scan}
    for loop in kernel.loops:
        needs = [levels[name] + (name in reductions) for name in loop.reads if name in levels]
        levels[loop.target] = max(needs, default=0)
    return levels


def _needed_values(kernel: Kernel, due: set[str], inner: set[str]) -> set[str]:
    """Targets to compute in a sweep: the `due` targets that are used, and the pointwise values that they read."""
    by_name = {loop.target: loop for loop in kernel.loops}
    waiting = [name for name in due if name not in inner or name not in kernel.local]
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            inside = (by_name[name].reads & inner) - {name}
            waiting += [other for other in inside if other in kernel.local or other in due]
    return needed
