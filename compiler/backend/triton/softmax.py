"""The sum of a softmax in the walk that finds the largest value (Milakov and Gimelshein, 2018): long rows are read once
less.

What was summed so far counted from the largest so far; where a larger one comes, it is scaled. So the sum need not wait
for the walk after the one that finds the largest of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from compiler.backend.ir import Kernel, Loop
from compiler.backend.ir.expr import Expr, Load, Op, loads, with_loads
from compiler.backend.ir.sweeps import Sweep, sweeps


@dataclass(frozen=True, slots=True)
class Pair:
    """A reduction to the largest of some values, and to the sum of exponentials of their distances from it.
    `exponential` is the key of that operation, in the loop `of`.
    """

    largest: Loop
    total: Loop
    of: str
    exponential: str


def join_sweeps(kernel: Kernel) -> tuple[tuple[Sweep, ...], Mapping[str, Pair]]:
    """The kernel's walks over its rows, and the pairs that share one, by the target of the sum."""
    found = list(sweeps(kernel))
    pairs: dict[str, Pair] = {}
    for place in range(len(found) - 1):
        first, second = found[place : place + 2]
        ours = _pairs(first, second, kernel)
        if ours:
            pairs.update({pair.total.target: pair for pair in ours})
            found[place] = replace(first, body=(*first.body, *(pair.total for pair in ours)))
            found[place + 1] = Sweep(second.scalars, ())
    return tuple(found), pairs


def _pairs(first: Sweep, second: Sweep, kernel: Kernel) -> list[Pair]:
    """Empty, unless they are all that the second walk is for."""
    largest = {loop.target: loop for loop in first.body if loop.reduction == "max"}
    found = []
    for loop in second.body:
        if loop.reduction:
            pair = _pair(loop, largest, kernel)
            if pair is None:
                return []
            del largest[pair.largest.target]
            found.append(pair)
        elif loop.target not in kernel.local:
            return []
    return found


def _pair(total: Loop, largest: Mapping[str, Loop], kernel: Kernel) -> Pair | None:
    of, value = _expand(total.target, total.value, kernel)
    match value:
        case Op("exp", (argument,), torch.float32) if total.reduction == "sum":
            _, distance = _expand(of, argument, kernel)
        case _:
            return None
    match distance:
        case Op("sub", (minuend, Load(name))) if name in largest:
            loop, whole = largest[name], _whole(minuend, kernel)
        case _:
            return None
    if whole != _whole(loop.value, kernel):
        return None
    if {load.buffer for load in loads(whole)}.intersection(kernel.targets, kernel.reads):
        return None  # it may be overwritten between the two
    return Pair(loop, total, of, value.key)


def _loops_by_value(kernel: Kernel) -> dict[str, Loop]:
    """Loops without a reduction, by what they compute; but for what they write over after it was read."""
    return {loop.target: loop for loop in kernel.loops if not loop.reduction and loop.target not in kernel.reads}


def _expand(of: str, value: Expr, kernel: Kernel) -> tuple[str, Expr]:
    """A value that another loop of the kernel computes at the same point: as that loop has it, and its target."""
    loops = _loops_by_value(kernel)
    while isinstance(value, Load) and value.buffer in loops:
        of, value = value.buffer, loops[value.buffer].value
    return of, value


def _whole(value: Expr, kernel: Kernel) -> Expr:
    """The value without loads of what the kernel computes at the same point."""
    loops = _loops_by_value(kernel)
    return with_loads(value, lambda load: _whole(loops[load.buffer].value, kernel) if load.buffer in loops else None)
