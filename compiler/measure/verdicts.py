"""Results of a compiled call against eager's and against float64: errors, and what they mean in words.

A result is "close" where its largest error, relative to the largest magnitude of eager's, is within what its format
allows; or where it is about as near to float64 as eager is (`AS_NEAR`), as rounding alone puts those farther apart
where terms cancel, or where a narrower format was used on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from compiler.decompose.numbers import AS_NEAR
from compiler.measure.check import TOLERANCE, rounding
from compiler.measure.ulps import ulps
from compiler.record import Check

FLOOR = 1e-3
"""A tensor's magnitude counts as so much of the largest one of the call at least: what should be zero has none."""

SAMPLE = 1 << 20
"""Quantiles are of so many values, evenly spread over those that there are."""


VERDICTS = ("equal", "close", "differs", "not comparable")


@dataclass(frozen=True, slots=True)
class Compared:
    """One result of a call; `exact` is the same in float64, None where that is not known."""

    name: str
    mine: Tensor | None
    eager: Tensor | None
    exact: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """What results of one kind are held against: the largest magnitude of any, and the narrowest format on the way."""

    largest: float
    narrowest: torch.dtype | None = None

    def check(self, item: Compared) -> Check:
        """One result, in numbers and words."""
        mine, eager, exact = item.mine, item.eager, item.exact
        if mine is None or eager is None:
            return _one_is_missing(item)
        dtype = _name(eager.dtype)
        if mine.shape != eager.shape or mine.dtype != eager.dtype:
            words = f"differs: eager gives {_kind(eager)}, the compiled code {_kind(mine)}"
            return Check(item.name, None, None, "differs", words=words, dtype=dtype)
        mine, eager = _plain(mine), _plain(eager)
        if not eager.is_floating_point():
            return _whole_numbers(item.name, mine, eager, dtype)
        best = (
            _plain(exact) if exact is not None and exact.numel() * (1 + exact.is_complex()) == eager.numel() else None
        )
        check = self._errors(item.name, mine, eager, best)
        verdict = self._verdict(check, torch.equal(mine, eager))
        return replace(check, verdict=verdict, words=_words(check, verdict, self._scale(eager)))

    def _errors(self, name: str, mine: Tensor, eager: Tensor, exact: Tensor | None) -> Check:
        error, scale = _error(mine, eager), self._scale(eager)
        steps = ulps(mine, eager).flatten()
        off = None if exact is None else _error(mine, exact)
        own = None if exact is None else _most(_error(eager, exact))
        most = _most(error)
        from_exact = None if off is None else _most(off)
        return Check(
            name, most, None if most is None else most / scale, "",
            dtype=_name(eager.dtype), tolerance=self._tolerance(eager),
            mean_absolute=None if most is None else _mean(error), max_ulps=_most(steps), p99_ulps=_p99(steps),
            max_absolute_float64=from_exact, mean_absolute_float64=None if off is None else _mean(off),
            max_relative_float64=None if from_exact is None else from_exact / scale, eager_absolute_float64=own,
        )  # fmt: skip

    def _scale(self, eager: Tensor) -> float:
        known = eager[eager.isfinite()]
        own = float(known.abs().max()) if known.numel() else 0.0
        return max(own, FLOOR * self.largest) or 1.0

    def _tolerance(self, eager: Tensor) -> float:
        formats = [eager.dtype, *([self.narrowest] if self.narrowest is not None else [])]
        return max(TOLERANCE.get(dtype, 0.0) for dtype in formats)

    def _verdict(self, check: Check, equal: bool) -> str:
        if equal or check.max_absolute == 0:
            return "equal"
        if check.max_relative is None:
            return "differs"
        allowed = check.max_relative <= (check.tolerance or 0.0)
        return "close" if allowed or _is_as_near(check) or self._is_rounding(check) else "differs"

    def _is_rounding(self, check: Check) -> bool:
        """Whether the error, against float64 where that is known, is what is left where larger terms cancel."""
        error = check.max_absolute if check.max_absolute_float64 is None else check.max_absolute_float64
        return error is not None and error <= rounding(getattr(torch, check.dtype), self.largest)


def largest_of(tensors: Iterable[Tensor | None]) -> float:
    """The largest finite magnitude in floating-point tensors, 0 of none."""
    known = [tensor[tensor.isfinite()] for tensor in tensors if tensor is not None and tensor.is_floating_point()]
    return max((float(tensor.abs().max()) for tensor in known if tensor.numel()), default=0.0)


def of_call(checks: Sequence[Check], unknown: str = "") -> Check:
    """One `Check` for all results of a call; `unknown` is why there is no float64 to compare with."""
    verdict = max((check.verdict for check in checks), key=VERDICTS.index)
    judged = [check for check in checks if check.verdict == verdict] or list(checks)
    worst = max(judged, key=lambda check: float("inf") if check.max_relative is None else check.max_relative)
    note = f"float64 is not known: {unknown}" if unknown else ""
    return replace(worst, subject="the call", verdict=verdict, words=_call_words(checks, worst, verdict), note=note)


def _call_words(checks: Sequence[Check], worst: Check, verdict: str) -> str:
    count, wrong = len(checks), sum(check.verdict == "differs" for check in checks)
    results = "the result" if count == 1 else f"all {count} results"
    if verdict == "equal":
        return f"equal: {results} {'is' if count == 1 else 'are'} eager's, bit for bit"
    if verdict == "differs":
        rest = worst.words.removeprefix("differs: ")
        return f"differs: {worst.subject} {rest}" if count == 1 else (
            f"differs: {wrong} of {count} results, most {worst.subject}: {rest}"
        )  # fmt: skip
    known = [check for check in checks if check.max_relative_float64 is not None]
    if len(known) < len([check for check in checks if check.tolerance is not None]) or not known:
        return f"close: {results} within what the format allows; most off is {worst.subject}: {_off(worst)}"
    farthest = max(known, key=lambda check: check.max_relative_float64 or 0.0)
    if count == 1:
        return _nearness(farthest)
    return f"{_nearness(farthest)}; of {results}, {farthest.subject} is farthest from it"


def _words(check: Check, verdict: str, scale: float) -> str:
    if verdict == "equal":
        return "equal to eager's, bit for bit"
    if check.max_relative is None:
        return "differs: not a number or infinite, in one and not the same in the other"
    if verdict == "close" and _is_as_near(check):
        return _nearness(check)
    if verdict == "close" and check.max_relative > (check.tolerance or 0.0):
        return f"off by {_short(check.max_absolute)}: rounding, where terms as large as other results cancel"
    if verdict == "close":
        return _off(check)
    return f"differs: {_off(check)}{_eagers_own(check, scale)}"


def _off(check: Check) -> str:
    return f"off by {_short(check.max_relative)} of the largest value, where {_short(check.tolerance)} is allowed"


def _eagers_own(check: Check, scale: float) -> str:
    own = check.eager_absolute_float64
    return "" if own is None else f"; eager itself is {_short(own / scale)} from float64"


def _nearness(check: Check) -> str:
    mine, eager = check.max_absolute_float64 or 0.0, check.eager_absolute_float64 or 0.0
    told = f"{_short(mine)} from it, eager {_short(eager)}"
    if mine < eager / 2:
        return f"closer to float64 than eager is: {told}"
    if mine <= AS_NEAR * eager:
        return f"as close to float64 as eager is: {told}"
    return f"within what the format allows: {_short(mine)} from float64, eager {_short(eager)}"


def _is_as_near(check: Check) -> bool:
    mine, eager = check.max_absolute_float64, check.eager_absolute_float64
    return mine is not None and eager is not None and mine <= AS_NEAR * eager


def _whole_numbers(name: str, mine: Tensor, eager: Tensor, dtype: str) -> Check:
    wrong = int((mine != eager).sum())
    if not wrong:
        return Check(name, 0.0, 0.0, "equal", words="equal to eager's", dtype=dtype)
    words = f"differs: {wrong:,} of {eager.numel():,} values are not eager's"
    return Check(name, _most(_error(mine, eager)), None, "differs", words=words, dtype=dtype)


def _one_is_missing(item: Compared) -> Check:
    if item.mine is None and item.eager is None:
        return Check(item.name, 0.0, 0.0, "equal", words="there is none, as in eager")
    owner = "the compiled code" if item.eager is None else "eager"
    return Check(item.name, None, None, "differs", words=f"differs: only {owner} gives it")


def _error(mine: Tensor, other: Tensor) -> Tensor:
    """Elementwise, as float64; infinities of one sign and NaN on both sides are no error."""
    same = (mine == other) | (mine.isnan() & other.isnan())
    return torch.where(same, 0.0, (mine.double() - other.double()).abs())


def _most(values: Tensor) -> float | None:
    """The largest; None where that is not finite."""
    found = float(values.max()) if values.numel() else 0.0
    return found if found < float("inf") else None


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0


def _p99(values: Tensor) -> float | None:
    if not values.numel() or bool(values.isnan().any()):
        return None
    return float(values[:: -(-values.numel() // SAMPLE)].quantile(0.99, interpolation="higher"))


def _plain(tensor: Tensor) -> Tensor:
    """On the CPU; complex numbers as pairs."""
    tensor = tensor.detach().cpu()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kind(tensor: Tensor) -> str:
    return f"{_name(tensor.dtype)}{list(tensor.shape)}"


def _short(number: float | None) -> str:
    return "?" if number is None else f"{number:.1e}".replace("e-0", "e-") if number < 1e-2 else f"{number:.2g}"
