"""Describe the errors of a compiled call against eager and float64, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from compiler.numerics.policy.judge import (
    AS_NEAR,
    CANCELLATION,
    FAR,
    UNDERFLOW,
    Scope,
    errors,
    is_as_near,
    judge,
    plain,
    real,
    relative,
    worst,
)
from compiler.record import Check

SAMPLE = 1 << 20
"""Quantiles are computed from at most this many values, evenly spaced."""
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_result(name: str, mine: Tensor | None, eager: Tensor | None, exact: Tensor | None, scope: Scope) -> Check:
    """Compare one result with eager's, in numbers and words; `exact` is the result in float64."""
    check = judge(name, mine, eager, exact, scope)
    if mine is None or eager is None or check.tolerance is None:
        return replace(check, words=_words_without_errors(check), note="")
    scale = scope.scale(plain(eager))
    return replace(_with_statistics(check, mine, eager, exact), words=_words(check, scale), note="")


def _with_statistics(check: Check, mine: Tensor, eager: Tensor, exact: Any) -> Check:
    own, theirs = plain(mine), plain(eager)
    steps = ulps(real(mine), real(eager)).flatten()
    known = check.max_absolute_float64 is not None
    return replace(
        check,
        mean_absolute=None if check.max_absolute is None else _mean(errors(own, theirs)),
        max_ulps=_largest(steps),
        p99_ulps=_p99(steps),
        mean_absolute_float64=_mean(errors(own, plain(exact))) if known else None,
    )


def check_call(checks: Sequence[Check], unknown: str = "") -> Check:
    """Summarize all results of a call as one `Check`; `unknown` is the reason if there are no results in float64."""
    most = worst(checks)
    note = f"float64 is not known: {unknown}" if unknown else ""
    return replace(most, subject="the call", words=_call_words(checks, most), note=note)


def _call_words(checks: Sequence[Check], most: Check) -> str:
    count, wrong = len(checks), sum(check.verdict == "differs" for check in checks)
    results = "the result" if count == 1 else f"all {count} results"
    if most.verdict == "equal":
        return f"equal: {results} {'is' if count == 1 else 'are'} eager's, bit for bit"
    if most.verdict == "differs":
        rest = most.words.removeprefix("differs: ")
        return f"differs: {most.subject} {rest}" if count == 1 else (
            f"differs: {wrong} of {count} results, most {most.subject}: {rest}"
        )  # fmt: skip
    known = [check for check in checks if check.max_relative_float64 is not None]
    if len(known) < len([check for check in checks if check.tolerance is not None]) or not known:
        return f"close: {results} within what the format allows; most off is {most.subject}: {_distance_words(most)}"
    farthest = max(known, key=lambda check: (_is_eager_wrong(check), check.max_relative_float64 or 0.0))
    if count == 1:
        return _nearness(farthest)
    return f"{_nearness(farthest)}; of {results}, {farthest.subject} is farthest from it"


def _words_without_errors(check: Check) -> str:
    if check.verdict == "equal":
        return check.note or "equal to eager's"
    return f"{check.verdict}: {check.note}"


def _words(check: Check, scale: float) -> str:
    if check.verdict == "equal":
        return "equal to eager's, bit for bit"
    if check.max_relative is None:
        return f"differs: {check.note}"
    if check.verdict == "close" and is_as_near(check):
        return _nearness(check)
    if check.note in (CANCELLATION, UNDERFLOW):
        return f"off by {_short(check.max_absolute)}: {check.note}"
    if check.verdict == "close":
        return _distance_words(check)
    return f"differs: {_distance_words(check)}{_eagers_own(check, scale)}"


def _distance_words(check: Check) -> str:
    return f"off by {_short(check.max_relative)} of the largest value, where {_short(check.tolerance)} is allowed"


def _eagers_own(check: Check, scale: float) -> str:
    own = check.eager_absolute_float64
    return "" if own is None else f"; eager itself is {_short(relative(own, scale))} from float64"


def _nearness(check: Check) -> str:
    mine, eager = check.max_absolute_float64 or 0.0, check.eager_absolute_float64 or 0.0
    told = f"{_short(mine)} from it, eager {_short(eager)}"
    if _is_eager_wrong(check):
        return f"eager itself is wrong: {_short(eager)} from the formula in float64, the compiled call {_short(mine)}"
    if mine < eager / 2:
        return f"closer to float64 than eager is: {told}"
    if mine <= AS_NEAR * eager:
        return f"as close to float64 as eager is: {told}"
    return f"within what the format allows: {_short(mine)} from float64, eager {_short(eager)}"


def _is_eager_wrong(check: Check) -> bool:
    """Whether eager is far from the formula in float64, and the compiled call is at least 100 times nearer."""
    mine, eager = check.max_absolute_float64, check.eager_absolute_float64
    is_far = check.verdict == "close" and (check.max_relative or 0.0) > FAR
    return is_far and mine is not None and eager is not None and 100 * mine < eager


def _largest(values: Tensor) -> float | None:
    """Largest value; None if it is not finite."""
    found = float(values.max()) if values.numel() else 0.0
    return found if found < float("inf") else None


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0


def _p99(values: Tensor) -> float | None:
    if not values.numel() or bool(values.isnan().any()):
        return None
    return float(values[:: -(-values.numel() // SAMPLE)].quantile(0.99, interpolation="higher"))


def _short(number: float | None) -> str:
    return "?" if number is None else f"{number:.1e}".replace("e-0", "e-") if number < 1e-2 else f"{number:.2g}"


def ulps(mine: Tensor, theirs: Tensor) -> Tensor:
    """Elementwise distance in units in the last place, as float64: 0 if equal, 1 for neighbours.

    Both tensors have the same floating-point dtype and shape. Across zero, the distances to zero are added. NaN if
    exactly one element is NaN, 0 if both are.
    """
    (sign, size), (other_sign, other_size) = _sign_and_magnitude(mine), _sign_and_magnitude(theirs)
    apart = torch.where(sign == other_sign, (size - other_size).abs().double(), size.double() + other_size.double())
    apart = torch.where(mine.isnan() ^ theirs.isnan(), torch.nan, apart)
    return torch.where(mine.isnan() & theirs.isnan(), 0.0, apart)


def _sign_and_magnitude(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """For each IEEE number: whether it is negative, and its magnitude as an integer (larger for larger magnitudes)."""
    bits = numbers.contiguous().view(_WORDS[numbers.element_size()])
    highest = torch.iinfo(bits.dtype).max
    return bits < 0, (bits & highest).long()
