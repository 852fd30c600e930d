"""After how many calls compiling has paid for itself."""

from __future__ import annotations

import math

from compiler.measure.spread import Spread
from compiler.measure_facts import Candidate


def speed_up(candidate: Candidate, eager: Candidate) -> float | None:
    """How many times faster than eager a call is, by rounds, or by the medians where those are all there is; None where
    one of them was not measured.
    """
    if (found := speed_up_spread(candidate, eager)) is not None:
        return found.middle
    return eager.seconds / candidate.seconds if candidate.seconds and eager.seconds else None


def speed_up_spread(candidate: Candidate, eager: Candidate) -> Spread | None:
    """The same with quartiles: round by round where both were timed in turns, as what slows the machine slows both."""
    if not candidate.rounds or not eager.rounds:
        return None
    pairs = zip(eager.rounds, candidate.rounds, strict=False)
    return Spread.of([theirs / mine for theirs, mine in pairs])


def saved(candidate: Candidate, other: Candidate) -> Spread | None:
    """Seconds by which a call of `candidate` is shorter than one of `other`: round by round where both were timed in
    turns, else by what medians and quartiles allow; None where one of them was not measured.
    """
    if candidate.seconds is None or other.seconds is None:
        return None
    if candidate.rounds and other.rounds:
        return Spread.of([theirs - mine for theirs, mine in zip(other.rounds, candidate.rounds, strict=False)])
    least = (other.low or other.seconds) - (candidate.high or candidate.seconds)
    most = (other.high or other.seconds) - (candidate.low or candidate.seconds)
    return Spread(other.seconds - candidate.seconds, least, most)


def calls_to_pay(candidate: Candidate, eager: Candidate) -> float | None:
    """The calls after which the time saved is what compiling took: infinite for one that saves none, None where it is
    not known.
    """
    found = saved(candidate, eager)
    if candidate.compile_seconds is None or found is None:
        return None
    return math.ceil(candidate.compile_seconds / found.middle) if found.middle > 0 else math.inf
