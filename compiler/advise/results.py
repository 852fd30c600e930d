"""Results of the call before and after a change: whether they are the same, and by how much they are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from compiler.measure.check import TOLERANCE
from compiler.torch_api.pytrees import tree_leaves

Same = Literal["equal", "close", "differs", "not comparable"]
AMONG_GRADIENTS = 10.0
"""Gradients are sums of many terms, in an order that a change may alter: so many times a result's tolerance
is allowed."""


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a call: a tensor, or another value of Python's."""

    name: str
    value: Any
    is_gradient: bool = False


def results_of(value: Any, gradients: Sequence[Tensor | None]) -> list[Result]:
    """Outputs and gradients of a call, kept apart from what later calls do."""
    outputs = [Result(f"output {number}", _kept(leaf)) for number, leaf in enumerate(tree_leaves(value))]
    return outputs + [
        Result(f"gradient {number}", leaf, True) for number, leaf in enumerate(gradients) if leaf is not None
    ]


def _kept(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def agreement(
    before: Sequence[Result], after: Sequence[Result], *, expected: str = "", draws: bool = False
) -> tuple[Same, str]:
    """Whether results are the same within the format's tolerance, and in words by how much they differ.

    `expected` says how numbers change with the change, where they do; `draws` that the call draws random numbers.
    """
    if len(before) != len(after):
        return "differs", f"the call gives {len(after)} results with the change, {len(before)} without"
    pairs = list(zip(before, after, strict=True))
    others = [
        old.name for old, new in pairs if not isinstance(old.value, Tensor) and not _is_same(old.value, new.value)
    ]
    if others:
        return "differs", f"{others[0]} is another value with the change"
    tensors = [(old, new) for old, new in pairs if isinstance(old.value, Tensor)]
    if not all(isinstance(new.value, Tensor) and old.value.shape == new.value.shape for old, new in tensors):
        return "differs", "a result has another shape with the change"
    errors = [(_error(old.value, new.value), old) for old, new in tensors]
    verdict, words = _judged(errors, expected)
    if verdict == "differs" and draws:
        return "not comparable", "the call draws random numbers, and with the change it may draw others: not comparable"
    return verdict, words


def _judged(errors: Sequence[tuple[float, Result]], expected: str) -> tuple[Same, str]:
    worst = max(errors, key=lambda item: item[0], default=None)
    if worst is None or worst[0] == 0:
        return "equal", "results are the same, bit for bit" if errors else "the call gives no tensors to compare"
    if not math.isfinite(worst[0]):
        return "differs", f"{worst[1].name} is not a number or infinite in one of the two"
    told = f"the largest difference is {worst[0]:.1e} of the largest magnitude, in {worst[1].name}"
    outside = [result for error, result in errors if error > _allowed(result)]
    if not outside:
        return "close", f"results agree within the format's tolerance: {told}"
    return "differs", f"numbers change, as expected: {told}" if expected else f"numbers change: {told}"


def _allowed(result: Result) -> float:
    tolerance = TOLERANCE.get(result.value.dtype, 0.0)
    return tolerance * AMONG_GRADIENTS if result.is_gradient else tolerance


def _error(old: Tensor, new: Tensor) -> float:
    """The largest difference, relative to the largest magnitude; 0 where they are the same."""
    if old.dtype == new.dtype and torch.equal(old, new):
        return 0.0
    first, second = old.to(torch.complex128 if old.is_complex() else torch.float64), new.to(old.device)
    difference = float((first - second.to(first.dtype)).abs().max()) if old.numel() else 0.0
    scale = float(first.abs().max()) if old.numel() else 1.0
    return difference / max(scale, 1e-30) if math.isfinite(difference) else math.inf


def _is_same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and bool(old == new)
