"""Medians with quartiles, speed-up over eager, and the number of calls until compile time is amortized."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.record.measure_facts import Candidate


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of some numbers."""

    middle: float
    low: float
    high: float

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> Spread:
        """The median and quartiles of these numbers. Raises IndexError if there are none."""
        if len(numbers) <= 1:
            return cls(numbers[0], numbers[0], numbers[0])
        low, middle, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(middle, low, high)

    @property
    def relative(self) -> float:
        """Interquartile range divided by the median."""
        return (self.high - self.low) / self.middle


def speed_up(candidate: Candidate, eager: Candidate) -> float | None:
    """Speed-up over eager, from rounds, or from medians if only they are known; None if either was not measured."""
    if (found := speed_up_spread(candidate, eager)) is not None:
        return found.middle
    return eager.seconds / candidate.seconds if candidate.seconds and eager.seconds else None


def speed_up_spread(candidate: Candidate, eager: Candidate) -> Spread | None:
    """Speed-up with quartiles, taken round by round, so that machine load affects both; None without rounds."""
    if not candidate.rounds or not eager.rounds:
        return None
    pairs = zip(eager.rounds, candidate.rounds, strict=False)
    return Spread.of_numbers([theirs / mine for theirs, mine in pairs])


def saved_seconds(candidate: Candidate, other: Candidate) -> Spread | None:
    """Seconds per call that `candidate` saves over `other`.

    Taken round by round if both were timed in rounds, else from medians and quartiles; None if either was not measured.
    """
    if candidate.seconds is None or other.seconds is None:
        return None
    if candidate.rounds and other.rounds:
        return Spread.of_numbers([theirs - mine for theirs, mine in zip(other.rounds, candidate.rounds, strict=False)])
    least = (other.low or other.seconds) - (candidate.high or candidate.seconds)
    most = (other.high or other.seconds) - (candidate.low or candidate.seconds)
    return Spread(other.seconds - candidate.seconds, least, most)


def calls_to_pay(candidate: Candidate, eager: Candidate) -> float | None:
    """Number of calls until saved time equals compile time; infinite if no time is saved, None if unknown."""
    found = saved_seconds(candidate, eager)
    if candidate.compile_seconds is None or found is None:
        return None
    return math.ceil(candidate.compile_seconds / found.middle) if found.middle > 0 else math.inf
