"""Measure seconds of a call: clocks for CPU and GPU, warm-up, and interleaved rounds (A B C A B C).

On a CPU the clock is torch.utils.benchmark's, with torch's number of threads. On a GPU it is a pair of CUDA events
around each call. GPU calls do not overlap: before each, the L2 cache is flushed by writing more than its size, and the
host waits until the GPU is idle, as work that the host does ahead would not be counted. Both clocks make uncounted
calls at the start of each turn, because other candidates have used the host's caches and left garbage.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils.benchmark import Timer

from compiler.process import without_collection
from compiler.record import Timing
from compiler.timing.spread import Spread
from compiler.torch_api import apart

ROUNDS = 7
ROUND_SECONDS = 0.02
MOST_CALLS = 1000
WARM_UP_SECONDS = 3.0
INTERLEAVED_WARM_UP = 0.5
WARM_UP_CALLS = (10, 300)
"""Minimum and maximum number of warm-up calls, unless a call is slow."""
STILL_FALLING = 0.98
Function = Callable[[], Any]


class Clock(Protocol):
    """Measures seconds per call over a number of calls."""

    def seconds(self, function: Function, calls: int) -> float: ...

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""


class CpuClock:
    """Times calls by torch.utils.benchmark: the mean over the calls."""

    def seconds(self, function: Function, calls: int) -> float:
        timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
        return float(timer.timeit(calls).mean)

    def synchronize(self) -> None:
        pass


@dataclass
class GpuClock:
    """Times calls by CUDA events. Writes `flush_bytes` before each call to flush the L2 cache; 0 for no flush."""

    device: torch.device
    flush_bytes: int = 0
    _buffer: torch.Tensor | None = field(default=None, repr=False)

    def seconds(self, function: Function, calls: int) -> float:
        """Median seconds per call."""
        with torch.cuda.device(self.device), without_collection():
            self._one(function)
            pairs = [self._one(function) for _ in range(calls)]
            torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e-3

    def stream(self, function: Function, calls: int) -> float:
        """Seconds per call of back-to-back calls."""
        with torch.cuda.device(self.device), without_collection():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            function()
            torch.cuda.synchronize()
            start.record()
            for _ in range(calls):
                function()
            end.record()
            torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / calls

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def _one(self, function: Function) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flush()
        torch.cuda.synchronize()
        start.record()
        function()
        end.record()
        return start, end

    def _flush(self) -> None:
        if self.flush_bytes and self._buffer is None:
            self._buffer = torch.empty(self.flush_bytes, dtype=torch.int8, device=self.device)
        if self._buffer is not None:
            self._buffer.zero_()


def clock_for(device: torch.device, *, flush: bool = True) -> Clock:
    """The clock for a device; with `flush` it writes twice the L2 cache's size before each call."""
    if device.type == "cpu":
        return CpuClock()
    return GpuClock(device, 2 * torch.cuda.get_device_properties(device).L2_cache_size if flush else 0)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Result of a warm-up: median seconds of the last calls, number of calls, and whether times stopped falling."""

    seconds: float
    calls: int
    is_stable: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """A call that compiles nothing any more, and the graphs that were compiled until then.

    `has_limit` says that each call compiled, until torch's recompile limit: now code that fits no call runs as Python.
    """

    step: Function
    graphs: int
    has_limit: bool


def settle(step: Function, compiled: Callable[[], int], limit: int) -> Settled:
    """Call until a call compiles nothing, as recompilations are no part of a call's time.

    `compiled` counts the graphs compiled so far, one of them by an earlier call. `limit` is the user's recompile limit.
    """
    first = compiled()
    for _ in range(limit - 1):
        before = compiled()
        step()
        if compiled() == before:
            return Settled(step, before - first, has_limit=False)
    return Settled(apart.call_without_compiling(step), compiled() - first, has_limit=True)


def warm_up(function: Function, clock: Clock, seconds: float = WARM_UP_SECONDS) -> WarmUp:
    """Call a function until the median of its last five times is no longer below that of the five times before.

    Stops after about `seconds`, but not before three calls.
    """
    least, most = WARM_UP_CALLS
    took: list[float] = []
    while len(took) < most:
        took.append(clock.seconds(function, 1))
        if len(took) >= least and _has_settled(took):
            break
        if sum(took) > seconds and len(took) >= 3:
            break
    return WarmUp(statistics.median(took[-5:]), len(took), _has_settled(took))


def _has_settled(took: list[float]) -> bool:
    """Whether the last five calls were at most 2 % faster than the five before; compares halves of fewer than ten."""
    window = min(5, len(took) // 2)
    return statistics.median(took[-window:]) >= STILL_FALLING * statistics.median(took[-2 * window : -window])


def calls_a_round(seconds: float, least: int = 1) -> int:
    """Number of calls that take about one round's time."""
    return min(MOST_CALLS, max(least, round(ROUND_SECONDS / max(seconds, 1e-9))))


def turns(
    functions: Mapping[str, Function], calls: Mapping[str, int], rounds: int, clock: Clock
) -> Iterator[tuple[str, float]]:
    """Time the functions in interleaved rounds; yield each name with the seconds per call."""
    for _ in range(rounds):
        for name, function in functions.items():
            yield name, clock.seconds(function, calls[name])


def time_in_turns(
    functions: Mapping[str, Function], settings: Mapping[str, Callable[[], Any]] | None = None
) -> dict[str, Timing]:
    """Time a call of each function on the CPU in interleaved rounds. `settings` maps names to context managers."""
    clock = CpuClock()
    within = {name: (settings or {}).get(name, nullcontext) for name in functions}
    counts = {}
    for name, function in functions.items():
        with within[name]():
            counts[name] = calls_a_round(warm_up(function, clock, INTERLEAVED_WARM_UP).seconds)
    rounds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            with within[name]():
                rounds[name].append(clock.seconds(function, counts[name]))
    return {name: _timing(name, seconds) for name, seconds in rounds.items()}


def _timing(name: str, seconds: list[float]) -> Timing:
    spread = Spread.of_numbers(seconds)
    return Timing(name, "forward call", spread.middle, spread.low, spread.high, len(seconds))
