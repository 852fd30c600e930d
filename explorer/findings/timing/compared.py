"""What the measured candidates of a record come to: how each compares with eager, and when compiling has paid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from compiler.record import Candidate, Record
from compiler.timing.spread import calls_to_pay, speed_up_spread

EAGER = "eager"
Verdict = Literal["faster", "slower", "equal"]
TOO_LITTLE = 0.02
"""So small a difference from eager may be gone when the same is measured again, however narrow its quartiles."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as eager, between a low and a high value that half of the rounds lie within."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Equal where the range holds 1 (the noise is larger than the difference), or the difference is tiny."""
        if abs(self.value - 1) < TOO_LITTLE:
            return "equal"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "equal"


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate beside eager's run of the same call. `id` is that of its entity; `ratio` and `eager` are None for
    eager itself, and where one of the two has no numbers.
    """

    id: str
    candidate: Candidate
    eager: Candidate | None = None
    ratio: Ratio | None = None

    @property
    def break_even(self) -> int | None:
        """Calls after which the time saved is what compiling took; None where the noise hides that any is saved."""
        if self.eager is None or self.ratio is None or self.ratio.verdict != "faster":
            return None
        calls = calls_to_pay(self.candidate, self.eager)
        return int(calls) if calls is not None and isfinite(calls) else None


def timed_candidates(record: Record) -> list[Timed]:
    """The candidates of a record, each beside its eager."""
    return beside_eager(record.candidates)


def beside_eager(candidates: Sequence[Candidate]) -> list[Timed]:
    """Candidates that were measured together, each beside eager's run of the same call."""
    references = {_call(candidate): candidate for candidate in candidates if candidate.name == EAGER}
    return [_compare_with_eager(candidate, references.get(_call(candidate))) for candidate in candidates]


def by_call(found: Sequence[Timed]) -> list[list[Timed]]:
    """Those that time the same call on the same device together: only they can be compared."""
    groups: dict[tuple[str, str], list[Timed]] = {}
    for item in found:
        groups.setdefault(_call(item.candidate), []).append(item)
    return list(groups.values())


def _call(candidate: Candidate) -> tuple[str, str]:
    return candidate.what, candidate.device


def _compare_with_eager(candidate: Candidate, eager: Candidate | None) -> Timed:
    name = re.sub(r"\W+", "_", f"{candidate.name} {candidate.what} {candidate.device}".strip())
    other = None if candidate.name == EAGER else eager
    return Timed(f"timing.{name}", candidate, other, ratio(candidate, other))


def ratio(candidate: Candidate, eager: Candidate | None) -> Ratio | None:
    """How many times as fast: round by round where both have rounds, else by what their quartiles allow. None without
    the numbers of both.
    """
    if eager is None or not candidate.seconds or not eager.seconds:
        return None
    if (spread := speed_up_spread(candidate, eager)) is not None:
        return Ratio(spread.middle, spread.low, spread.high)
    low, high = _lower_quartile(eager) / _upper_quartile(candidate), _upper_quartile(eager) / _lower_quartile(candidate)
    return Ratio(median_of(eager) / median_of(candidate), low, high)


def median_of(candidate: Candidate) -> float:
    assert candidate.seconds is not None
    return candidate.seconds


def _lower_quartile(candidate: Candidate) -> float:
    return candidate.low or median_of(candidate)


def _upper_quartile(candidate: Candidate) -> float:
    return candidate.high or median_of(candidate)


def explored_candidate(group: Sequence[Timed], record: Record) -> Timed | None:
    """The one that the record itself is about: its backend, its mode."""
    options = record.options
    asked = (options.backend, "" if options.mode == "default" else options.mode)
    return next((item for item in group if (item.candidate.backend, _mode(item.candidate)) == asked), None)


def _mode(candidate: Candidate) -> str:
    return "" if candidate.mode == "default" else candidate.mode


def fastest(group: Sequence[Timed]) -> Timed | None:
    """The compiled one that takes least."""
    measured = [item for item in group if item.ratio is not None]
    return min(measured, key=lambda item: median_of(item.candidate), default=None)
