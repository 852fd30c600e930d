"""Compare the measured candidates of a record with eager: speed-up, verdict, and break-even calls."""

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
"""A smaller relative difference from eager may not be reproducible, however narrow the quartiles."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed-up over eager: `value` is the median, `low` and `high` are the quartiles."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Verdict on the speed-up: "equal" if the range includes 1 (within noise) or the difference is tiny."""
        if abs(self.value - 1) < TOO_LITTLE:
            return "equal"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "equal"


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate, compared with eager's time of the same call. `id` is the id of its entity.

    `eager` and `ratio` are None for eager itself, and if eager was not measured. `ratio` is also None if the candidate
    or eager has no time.
    """

    id: str
    candidate: Candidate
    eager: Candidate | None = None
    ratio: Ratio | None = None

    @property
    def break_even(self) -> int | None:
        """Number of calls that make up for the compile time; None if unknown or if not faster beyond the noise."""
        if self.eager is None or self.ratio is None or self.ratio.verdict != "faster":
            return None
        calls = calls_to_pay(self.candidate, self.eager)
        return int(calls) if calls is not None and isfinite(calls) else None


def timed_candidates(record: Record) -> list[Timed]:
    """The candidates of a record, each compared with its eager reference."""
    return beside_eager(record.candidates)


def beside_eager(candidates: Sequence[Candidate]) -> list[Timed]:
    """Compare candidates that were measured together with eager's time of the same call."""
    references = {_call(candidate): candidate for candidate in candidates if candidate.name == EAGER}
    return [_compare_with_eager(candidate, references.get(_call(candidate))) for candidate in candidates]


def by_call(found: Sequence[Timed]) -> list[list[Timed]]:
    """Group candidates by call and device: only candidates of a group can be compared."""
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
    """Speed-up of a candidate over eager: round by round if both have rounds, else from their medians and quartiles.

    None if the candidate or eager has no time.
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
    """The candidate with the backend and mode of the run itself; None if it was not measured."""
    options = record.options
    asked = (options.backend, "" if options.mode == "default" else options.mode)
    return next((item for item in group if (item.candidate.backend, _mode(item.candidate)) == asked), None)


def _mode(candidate: Candidate) -> str:
    return "" if candidate.mode == "default" else candidate.mode


def fastest(group: Sequence[Timed]) -> Timed | None:
    """The candidate other than eager with the lowest median time; None if none could be compared with eager."""
    measured = [item for item in group if item.ratio is not None]
    return min(measured, key=lambda item: median_of(item.candidate), default=None)
