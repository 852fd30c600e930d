"""Summarize comparisons with eager by dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.numerics.policy.judge import AS_NEAR_AS_EAGER, CANCELLATION, UNDERFLOW, VERDICTS, Scope, judge, worst
from compiler.record import Check

Named = Sequence[tuple[str, Any]]
"""Pairs of name and result."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The comparison of the `count` results of one dtype with eager's.

    `max_absolute` and `max_relative` (to a tensor's scale) are the largest errors; None if not finite. The last two
    fields are the largest errors against float64, None if unknown. `tolerance` is relative. `worst` names the worst
    result. `beyond` counts results that exceed the tolerance but are "close", as they are as near to float64 as eager.
    """

    dtype: str
    count: int
    max_absolute: float | None
    max_relative: float | None
    tolerance: float
    verdict: str
    worst: str = ""
    note: str = ""
    beyond: int = 0
    max_absolute_float64: float | None = None
    max_relative_float64: float | None = None


def numbers(mine: Named, eager: Named, exact: Named | None = None) -> tuple[Numbers, ...]:
    """Compare results with eager's: one `Numbers` for each dtype, in order of appearance.

    `exact` are the results in float64, if known.
    """
    scope = Scope.of_results(value for _, value in eager)
    found: dict[str, list[Check]] = {}
    for (name, theirs), (_, own), (_, best) in zip(eager, mine, exact or [("", None)] * len(eager), strict=True):
        if theirs is not None or own is not None:
            check = judge(name, own, theirs, best, scope)
            found.setdefault(check.dtype, []).append(check)
    return tuple(_summarize(dtype, checks) for dtype, checks in found.items())


def _summarize(dtype: str, checks: Sequence[Check]) -> Numbers:
    most = worst(checks)
    needs_note = most.max_relative is None or most.note in (CANCELLATION, UNDERFLOW)
    return Numbers(
        dtype=dtype,
        count=len(checks),
        max_absolute=_largest(check.max_absolute for check in checks),
        max_relative=_largest(check.max_relative for check in checks),
        tolerance=most.tolerance or 0.0,
        verdict=most.verdict,
        worst=most.subject,
        note=most.note if needs_note else "",
        beyond=sum(check.note == AS_NEAR_AS_EAGER for check in checks),
        max_absolute_float64=_largest(check.max_absolute_float64 for check in checks),
        max_relative_float64=_largest(check.max_relative_float64 for check in checks),
    )


def _largest(errors: Iterable[float | None]) -> float | None:
    """Largest error; None if any is unknown."""
    known = list(errors)
    return None if any(error is None for error in known) else max(error for error in known if error is not None)


def not_comparable(dtype: str, reason: str) -> Numbers:
    """The `Numbers` of results that can't be compared, with the reason."""
    return Numbers(dtype, 0, None, None, 0.0, "not comparable", note=reason)


def worst_verdict(found: Iterable[Numbers]) -> str:
    """The worst verdict; "equal" if there is none."""
    return max((item.verdict for item in found), key=VERDICTS.index, default="equal")
