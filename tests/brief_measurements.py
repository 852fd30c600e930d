"""Measurements that take little time. No test asserts how long something took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any


def brief_measurements() -> Iterator[tuple[Any, str, Any]]:
    """The attributes that make measurements brief: owner, name, value."""
    from torch._dynamo import guards

    from compiler.advise import trial
    from compiler.backend import backend
    from compiler.kernel_lab import native
    from compiler.process import fewer_full_collections
    from compiler.timing import candidate_times, profile, rounds
    from compiler.torch_api import apart

    yield candidate_times, "IN_TURNS_SECONDS", 0.1
    yield candidate_times, "ALONE_ROUNDS", 2
    yield rounds, "INTERLEAVED_WARM_UP", 0.02
    for owner in (candidate_times, trial):
        yield owner, "warm_up", partial(rounds.warm_up, seconds=0.02)
    for owner in (candidate_times, rounds, trial):
        yield owner, "calls_a_round", lambda _seconds, least=1: least
    yield profile, "SECONDS", 0.1
    yield native, "TIMED_SECONDS", 0.01
    yield guards, "profile_guard_manager", _time_guards_with_warm_caches
    yield apart, "check_once", _time_guards_with_warm_caches
    # Each compilation would count the frozen objects, which are millions here, to find that there are any.
    yield backend, "made_to_stay", partial(fewer_full_collections, 1_000_000)


def measure_briefly() -> None:
    """Make all later measurements of this process brief."""
    for owner, name, value in brief_measurements():
        setattr(owner, name, value)


def _time_guards_with_warm_caches(root: Any, f_locals: dict[str, Any], checks: int) -> float:
    """Microseconds of a check of all guards; torch evicts the CPU's caches before, which takes 30 ms a graph."""
    start = time.perf_counter()
    for _ in range(checks):
        root.check(f_locals)
    return (time.perf_counter() - start) / checks * 1e6
