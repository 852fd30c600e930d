"""Measurements that take little time. No test asserts how long something took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any


def brief_measurements() -> Iterator[tuple[Any, str, Any]]:
    """The attributes that make measurements brief: owner, name, value."""
    from torch._dynamo import guards

    from compiler.timing import candidate_times

    yield candidate_times, "IN_TURNS_SECONDS", 0.1
    yield guards, "profile_guard_manager", _time_guards_with_warm_caches


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
