"""The policy for comparing results with eager's: whether they are equal, close, or differ, and why.

- "equal": the same values, with NaN at the same places.
- "close": floating-point numbers whose largest difference is explained by rounding, by one of four rules.
- "differs": another dtype, shape or value.

Rounding explains a difference that is

1. at most the dtype's tolerance times the tensor's scale. `TOLERANCE` is the relative tolerance of
   `torch.testing.assert_close`, by dtype; for 8-bit dtypes, which it does not list, one unit in the last place. If a
   call computes in a narrower dtype on the way, that dtype's tolerance applies. The scale is the largest magnitude in
   eager's tensor, not each element's: the error of a sum is proportional to its terms, even if they cancel. The scale
   is at least `FLOOR` of the largest magnitude among the results compared together (`Scope`), as a tensor that should
   be zero has no scale of its own. If everything is zero, the error itself is at most `ZERO_TOLERANCE`, the absolute
   tolerance of `assert_close` for float32;
2. at most `AS_NEAR` times as far from the same computation in float64 as eager is, if that is known: two correct
   orders of summation differ more from each other than from the exact result. `torch._dynamo.utils.same` allows 2 to
   10 times;
3. at most `ROUNDINGS` units in the last place of the largest magnitude in the scope, and within the tolerance of that
   magnitude: the remainder if terms as large as other results cancel. Errors of n roundings add up like sqrt(n), so
   this allows a sum of 256 terms. If the result in float64 is known, the difference is measured from it;
4. at most `FLUSHED`, the smallest normal number of float32: GPUs may flush smaller numbers to zero.

A float64 result is no reference if eager is farther from it than `FAR` of the scale (`is_reference`): then the
computation took another branch, or only noise is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from compiler.record import Check

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
ZERO_TOLERANCE = 1e-5
FLUSHED = torch.finfo(torch.float32).smallest_normal
FLOOR = 1e-3
AS_NEAR = 3.0
ROUNDINGS = 16
FAR = 0.1
FLIPPED = 1e-4
"""Share of booleans that may differ if they come from comparing rounded numbers (`Scope.rounded_comparisons`)."""

VERDICTS = ("equal", "close", "differs", "not comparable")
"""Verdicts, from best to worst."""
NOT_FINITE = "NaN or infinities at other places"
AS_NEAR_AS_EAGER = "as near to float64 as eager"
UNDERFLOW = "below the smallest normal number of float32, which a GPU may flush to zero"
CANCELLATION = "rounding, where terms as large as other results cancel"


@dataclass(frozen=True, slots=True)
class Scope:
    """Results that are compared together.

    `largest` is the largest finite magnitude of eager's results, `narrowest` the narrowest dtype used to compute them.
    `rounded_comparisons` is whether booleans come from comparing numbers with different rounding.
    """

    largest: float = 0.0
    narrowest: torch.dtype | None = None
    rounded_comparisons: bool = False

    @classmethod
    def of_results(cls, eager: Iterable[Any], narrowest: torch.dtype | None = None) -> Scope:
        """The scope of eager's results; only floating-point tensors count."""
        tensors = (plain(value) for value in eager if isinstance(value, Tensor))
        return cls(max(map(largest, tensors), default=0.0), narrowest)

    def scale(self, eager: Tensor) -> float:
        """The magnitude to which a tensor's errors are relative; 0 if everything is zero."""
        return max(largest(eager), FLOOR * self.largest)


def judge(name: str, mine: Any, eager: Any, exact: Any = None, scope: Scope | None = None) -> Check:
    """Compare a result with eager's. `exact` is the result in float64, None if unknown.

    The `Check` has the errors, the tolerance and the verdict. `note` is the allowed error, the rule by which a result
    beyond it is "close", or the reason why there is no numeric error. Values other than tensors must be equal.
    """
    if not isinstance(mine, Tensor) or not isinstance(eager, Tensor):
        return _judge_values(name, mine, eager)
    dtype = name_of(eager.dtype)
    if mine.shape != eager.shape or mine.dtype != eager.dtype:
        return Check(name, None, None, "differs", f"{_kind(mine)} instead of {_kind(eager)}", dtype=dtype)
    own, theirs = plain(mine), plain(eager)
    if not theirs.is_floating_point():
        return replace(_judge_whole_numbers(name, own, theirs, scope or Scope()), dtype=dtype)
    best = plain(exact) if isinstance(exact, Tensor) and exact.shape == eager.shape else None
    check = _judge_floats(name, own, theirs, best, eager.dtype.to_real(), scope or Scope())
    return replace(check, dtype=dtype)


def _judge_values(name: str, mine: Any, eager: Any) -> Check:
    if mine is None or eager is None:
        if mine is eager:
            return Check(name, 0.0, 0.0, "equal", "there is none")
        return Check(name, None, None, "differs", "it is missing" if mine is None else "there should be none")
    if type(mine) is type(eager) and mine == eager:
        return Check(name, 0.0, 0.0, "equal", dtype=type(eager).__name__)
    return Check(name, None, None, "differs", f"{mine!r} instead of {eager!r}", dtype=type(eager).__name__)


def _judge_whole_numbers(name: str, mine: Tensor, eager: Tensor, scope: Scope) -> Check:
    wrong = int((mine != eager).sum())
    if not wrong:
        return Check(name, 0.0, 0.0, "equal")
    may_flip = scope.rounded_comparisons and eager.dtype == torch.bool
    verdict = "close" if may_flip and wrong <= FLIPPED * eager.numel() else "differs"
    note = f"{wrong:,} of {eager.numel():,} values are wrong"
    return Check(name, float((mine.double() - eager.double()).abs().max()), None, verdict, note)


def _judge_floats(
    name: str, mine: Tensor, eager: Tensor, exact: Tensor | None, dtype: torch.dtype, scope: Scope
) -> Check:
    error, scale = _finite(errors(mine, eager)), scope.scale(eager)
    from_exact = None if exact is None else _finite(errors(mine, exact))
    tolerance = max(_tolerance(each) for each in (dtype, scope.narrowest or dtype))
    check = Check(
        name, error, relative(error, scale), "differs", f"allowed {tolerance:g} of the largest magnitude",
        tolerance=tolerance,
        max_absolute_float64=from_exact, max_relative_float64=relative(from_exact, scale),
        eager_absolute_float64=None if exact is None else _finite(errors(eager, exact)),
    )  # fmt: skip
    if error == 0:
        return replace(check, verdict="equal", note="")
    if error is None:
        return replace(check, note=NOT_FINITE)
    if error <= _allowed_error(tolerance, scale):
        return replace(check, verdict="close")
    if is_as_near(check):
        return replace(check, verdict="close", note=AS_NEAR_AS_EAGER)
    if error <= FLUSHED:
        return replace(check, verdict="close", note=UNDERFLOW)
    if (error if from_exact is None else from_exact) <= _rounding_error(dtype, scope.largest):
        return replace(check, verdict="close", note=CANCELLATION)
    return check


def is_as_near(check: Check) -> bool:
    """Whether a result is about as near to float64 as eager's, by rule 2; False if unknown."""
    mine, eager = check.max_absolute_float64, check.eager_absolute_float64
    return mine is not None and eager is not None and mine <= AS_NEAR * eager


def is_reference(eager: Sequence[Any], exact: Sequence[Any]) -> bool:
    """Whether results in float64 are a valid reference: none is farther from eager's than `FAR` of the scale."""
    scope = Scope.of_results(exact)
    pairs = [
        (plain(own), plain(best))
        for own, best in zip(eager, exact, strict=True)
        if isinstance(own, Tensor) and isinstance(best, Tensor) and own.shape == best.shape
    ]
    return all(
        (_finite(errors(own, best)) or 0.0) <= FAR * scope.scale(best) for own, best in pairs if own.is_floating_point()
    )


def worst(checks: Iterable[Check]) -> Check:
    """The check with the worst verdict; among several, the one with the largest relative error."""

    def badness(check: Check) -> tuple[int, float]:
        return VERDICTS.index(check.verdict), float("inf") if check.max_relative is None else check.max_relative

    return max(checks, key=badness)


def errors(mine: Tensor, other: Tensor) -> Tensor:
    """Elementwise absolute differences, as float64; 0 for equal infinities, and if both are NaN."""
    same = (mine == other) | (mine.isnan() & other.isnan())
    return torch.where(same, 0.0, (mine.double() - other.double()).abs())


def largest(tensor: Tensor) -> float:
    """Largest finite magnitude of floating-point numbers; 0 if there is none."""
    if not tensor.is_floating_point():
        return 0.0
    known = tensor[tensor.isfinite()]
    return float(known.abs().max()) if known.numel() else 0.0


def relative(error: float | None, scale: float) -> float | None:
    """An error relative to a scale; if the scale is 0, the error itself."""
    return None if error is None else error / (scale or 1.0)


def name_of(dtype: torch.dtype) -> str:
    """Name of a dtype: `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def _tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, torch.finfo(dtype).eps)


def _allowed_error(tolerance: float, scale: float) -> float:
    return tolerance * scale if scale else min(tolerance, ZERO_TOLERANCE)


def _rounding_error(dtype: torch.dtype, magnitude: float) -> float:
    return min(ROUNDINGS * torch.finfo(dtype).eps, _tolerance(dtype)) * magnitude


def _finite(values: Tensor) -> float | None:
    """Largest value; None if it is not finite, 0 if there is none."""
    found = float(values.max()) if values.numel() else 0.0
    return found if found < float("inf") else None


def plain(tensor: Tensor) -> Tensor:
    """A tensor moved to the CPU, complex numbers as pairs of real ones, and 8-bit dtypes as float32 (exact)."""
    tensor = real(tensor)
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def real(tensor: Tensor) -> Tensor:
    """A tensor moved to the CPU, with complex numbers as pairs of real ones."""
    tensor = tensor.detach().cpu()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _kind(tensor: Tensor) -> str:
    return f"{name_of(tensor.dtype)}{list(tensor.shape)}"
