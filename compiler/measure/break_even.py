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


def calls_to_pay(candidate: Candidate, eager: Candidate) -> float | None:
    """The calls after which the time saved is what compiling took: infinite for one that saves none, None where it is
    not known.
    """
    if candidate.compile_seconds is None or candidate.seconds is None or eager.seconds is None:
        return None
    saved = eager.seconds - candidate.seconds
    return math.ceil(candidate.compile_seconds / saved) if saved > 0 else math.inf


def calls_to_pay_text(candidate: Candidate, eager: Candidate) -> str:
    """The same in words: "1,200 calls", "never: it is slower than eager", "" where it is not known."""
    calls = calls_to_pay(candidate, eager)
    if calls is None:
        return ""
    return "never: a call is no faster than eager's" if math.isinf(calls) else f"{calls:,.0f} calls"
