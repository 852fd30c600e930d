"""Medians with quartiles, speed-up over eager, and the number of calls after which compile time has paid off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.record.measure_facts import Candidate


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of numbers."""

    middle: float
    low: float
    high: float

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> Spread:
        """The median and quartiles of these numbers. Raises IndexError for none."""
        if len(numbers) <= 1:
            return cls(numbers[0], numbers[0], numbers[0])
        low, middle, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(middle, low, high)

    @property
    def relative(self) -> float:
        """Distance of the quartiles divided by the median."""
        return (self.high - self.low) / self.middle


def speed_up(candidate: Candidate, eager: Candidate) -> float | None:
    """Speed-up over eager: from rounds, or from medians where only those are known; None where one was not measured."""
    if (found := speed_up_spread(candidate, eager)) is not None:
        return found.middle
    return eager.seconds / candidate.seconds if candidate.seconds and eager.seconds else None


def speed_up_spread(candidate: Candidate, eager: Candidate) -> Spread | None:
    """Speed-up with quartiles, round by round where both were timed in turns: what slows the machine slows both."""
    if not candidate.rounds or not eager.rounds:
        return None
    pairs = zip(eager.rounds, candidate.rounds, strict=False)
    return Spread.of_numbers([theirs / mine for theirs, mine in pairs])


def saved_seconds(candidate: Candidate, other: Candidate) -> Spread | None:
    """Seconds by which a call of `candidate` is shorter than one of `other`.

    Round by round where both were timed in turns, else from medians and quartiles; None where one was not measured.
    """
    if candidate.seconds is None or other.seconds is None:
        return None
    if candidate.rounds and other.rounds:
        return Spread.of_numbers([theirs - mine for theirs, mine in zip(other.rounds, candidate.rounds, strict=False)])
    least = (other.low or other.seconds) - (candidate.high or candidate.seconds)
    most = (other.high or other.seconds) - (candidate.low or candidate.seconds)
    return Spread(other.seconds - candidate.seconds, least, most)


def calls_to_pay(candidate: Candidate, eager: Candidate) -> float | None:
    """Calls until the saved time equals the compile time; infinite if no time is saved, None if not known."""
    found = saved_seconds(candidate, eager)
    if candidate.compile_seconds is None or found is None:
        return None
    return math.ceil(candidate.compile_seconds / found.middle) if found.middle > 0 else math.inf
