"""Results of the call before and after a change: whether they are the same, and by how much they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from compiler.numerics.policy.judge import Scope, judge, worst
from compiler.record import Check
from compiler.torch_api.pytrees import tree_leaves

Same = Literal["equal", "close", "differs", "not comparable"]


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a call: a tensor, or another value of Python's."""

    name: str
    value: Any
    is_gradient: bool = False


def results_of(value: Any, gradients: Sequence[Tensor | None]) -> list[Result]:
    """Outputs and gradients of a call, kept apart from what later calls do."""
    outputs = [Result(f"output {number}", _detach(leaf)) for number, leaf in enumerate(tree_leaves(value))]
    return outputs + [
        Result(f"gradient {number}", leaf, True) for number, leaf in enumerate(gradients) if leaf is not None
    ]


def _detach(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def agreement(
    before: Sequence[Result], after: Sequence[Result], *, expected: str = "", draws: bool = False
) -> tuple[Same, str]:
    """Whether results are the same within the format's tolerance, and in words by how much they differ.

    `expected` says how numbers change with the change, where they do; `draws` that the call draws random numbers.
    """
    if len(before) != len(after):
        return "differs", f"the call gives {len(after)} results with the change, {len(before)} without"
    checks = [check for gradients in (False, True) for check in _checks(before, after, gradients, bool(expected))]
    verdict, words = _in_words(checks, expected)
    if verdict == "differs" and draws:
        return "not comparable", "the call draws random numbers, and with the change it may draw others: not comparable"
    return verdict, words


def _checks(before: Sequence[Result], after: Sequence[Result], gradients: bool, recast: bool) -> list[Check]:
    """Compare outputs, or gradients: their magnitudes have nothing to do with each other.

    `recast`: another dtype is no difference in itself.
    """
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old.is_gradient is gradients]
    scope = Scope.of(old.value for old, _ in pairs)
    return [
        judge(old.name, _cast_like(new.value, old.value) if recast else new.value, old.value, scope=scope)
        for old, new in pairs
    ]


def _cast_like(new: Any, old: Any) -> Any:
    return new.to(old.dtype) if isinstance(new, Tensor) and isinstance(old, Tensor) else new


def _in_words(checks: Sequence[Check], expected: str) -> tuple[Same, str]:
    if not checks:
        return "equal", "the call gives no tensors to compare"
    most = worst(checks)
    if most.verdict == "equal":
        return "equal", "results are the same, bit for bit"
    if most.max_relative is None:
        return "differs", f"{most.subject} changes: {most.note}"
    amount = f"the largest difference is {most.max_relative:.1e} of the largest magnitude, in {most.subject}"
    if most.verdict == "close":
        return "close", f"results agree within the format's tolerance: {amount}"
    return "differs", f"numbers change, as expected: {amount}" if expected else f"numbers change: {amount}"
