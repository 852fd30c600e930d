"""Eager against compiled, on the user's own call.

Method (torch.utils.benchmark): warm-up, then interleaved rounds, each the mean of enough calls to last about 20 ms;
median and quartiles over the rounds. Threads are those that the process uses.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.benchmark import Timer

from compiler.measure.calls import Call, unnoticed
from compiler.record import Timing

ROUNDS = 7
ROUND_SECONDS = 0.02
WARM_UP_CALLS = 3


def forward_timings(call: Call) -> tuple[Timing, ...]:
    """Seconds a call of the forward, for "eager" and "compiled". Raises what the call raises."""
    args, kwargs = call.copied_arguments()
    with unnoticed(call):
        found = interleaved(
            {"eager": lambda: call.fn(*args, **kwargs), "compiled": lambda: call.compiled(*args, **kwargs)}
        )
    return tuple(found.values())


def interleaved(
    functions: Mapping[str, Callable[[], Any]], settings: Mapping[str, Callable[[], Any]] | None = None
) -> dict[str, Timing]:
    """Seconds a call of each, timed in turns. `settings` makes what a function is to be called within, by its name."""
    timers = {name: _timer(function) for name, function in functions.items()}
    within = {name: (settings or {}).get(name, nullcontext) for name in timers}
    counts = {}
    for name, timer in timers.items():
        with within[name]():
            counts[name] = _calls_a_round(timer)
    rounds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(ROUNDS):
        for name, timer in timers.items():
            with within[name]():
                rounds[name].append(timer.timeit(counts[name]).mean)
    return {name: _timing(name, seconds) for name, seconds in rounds.items()}


def _timer(function: Callable[[], Any]) -> Timer:
    return Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())


def _calls_a_round(timer: Timer) -> int:
    timer.timeit(WARM_UP_CALLS)
    return max(1, int(ROUND_SECONDS / timer.timeit(1).mean))


def _timing(name: str, seconds: list[float]) -> Timing:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return Timing(name, "forward call", middle, low, high, len(seconds))
