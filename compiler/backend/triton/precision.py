"""Where a kernel may compute float32 by short formulas: values that count only until they are rounded to 16 bits.

What becomes float16 or bfloat16 has 11 or 8 bits. A quotient or an exponential that is off by some units in the last of
24 bits is the same number then, and takes a third of the time: the time of the whole kernel, where memory is fast.

    EXACT       as PyTorch computes it
    RELATIVE    to some 1e-6 of the value
    ABSOLUTE    to 2e-7, of a number that is added to one not below 1/2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from compiler.backend.ir import Kernel, Loop, Program
from compiler.backend.ir.expr import Const, Expr, Guard, Load, Op, Put, indices
from compiler.backend.ir.index_maps import indirects
from compiler.backend.ir.scalar import HALVES

EXACT, RELATIVE, ABSOLUTE = range(3)
_CONTINUOUS = frozenset(
    ("add", "sub", "mul", "div", "neg", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "erf", "erfc", "tanh",
     "maximum", "minimum", "absolute")
)  # fmt: skip
"""Operations of which results are near where arguments are."""

PATTERNS: Mapping[tuple[str, int], str] = {
    ("div", RELATIVE): "({0} / {1})",
    ("exp", RELATIVE): "tl.exp({0})",
    ("div", ABSOLUTE): "({0} / {1})",
    ("exp", ABSOLUTE): "tl.exp({0})",
    ("erf", ABSOLUTE): "erf_added({0})",
    ("tanh", ABSOLUTE): "tanh_added({0})",
}
"""Triton for operations that need not be exact."""


def precision(kernel: Kernel, program: Program) -> Mapping[str, Mapping[str, int]]:
    """For each loop, by target, how exact its operations have to be, by their keys."""
    needs: dict[str, int] = {}
    found: dict[str, dict[str, int]] = {}
    for loop in reversed(kernel.loops):
        own = found[loop.target] = {}
        for value, level in _levels(loop.value, _level(loop, kernel, program, needs)):
            if isinstance(value, Load):
                needs[value.buffer] = min(level, needs.get(value.buffer, level))
            own[value.key] = min(level, own.get(value.key, level))
    return found


def _level(loop: Loop, kernel: Kernel, program: Program, needs: Mapping[str, int]) -> int:
    is_stored = loop.target not in kernel.local and program.by_name[loop.target].dtype not in HALVES
    if is_stored or loop.reduction.startswith("arg"):
        return EXACT
    level = needs.get(loop.target, EXACT)
    return min(level, RELATIVE) if loop.reduction else level


def _levels(value: Expr, level: int) -> Iterator[tuple[Expr, int]]:
    """An expression's parts, with how exact each has to be."""
    yield value, level
    if isinstance(value, Op):
        for child, needed in _children(value, level):
            yield from _levels(child, needed)
    elif isinstance(value, Guard):
        yield from _levels(value.condition, EXACT)
        yield from _levels(value.value, level)
        yield from _levels(value.other, level)
    elif isinstance(value, Put):
        yield from _levels(value.value, EXACT)
    for index in indices(value):
        for held in indirects(index):
            yield from _levels(held.value, EXACT)


def _children(value: Op, level: int) -> Iterator[tuple[Expr, int]]:
    if value.name == "cast":
        is_float = value.dtype == torch.float32
        yield value.args[0], RELATIVE if value.dtype in HALVES else level if is_float else EXACT
    elif value.name == "where":
        yield from zip(value.args, (EXACT, level, level), strict=True)
    elif value.name not in _CONTINUOUS or level == EXACT:
        yield from ((arg, EXACT) for arg in value.args)
    else:
        has_half = any(isinstance(arg, Const) and abs(arg.value) >= 0.5 for arg in value.args)
        beside_one = has_half and value.name in ("add", "sub")
        yield from ((arg, ABSOLUTE if beside_one else RELATIVE) for arg in value.args)
