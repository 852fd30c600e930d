"""Split the host's time of one call into parts, beside what the GPU did in it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from compiler.record.measure_facts import HostTime
from compiler.timing.rounds import Clock
from compiler.torch_api.profiled import GpuWork, gpu_work

HOST_CALLS = 9
PROFILED_CALLS = 3


def host_seconds(call: Callable[[], None], clock: Clock) -> float:
    """Seconds that the host is busy with one call; an idle GPU may finish later."""
    took = []
    for _ in range(HOST_CALLS):
        clock.finished()
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    clock.finished()
    return statistics.median(took)


def on_gpu(call: Callable[[], None], clock: Clock, guards: float | None) -> tuple[HostTime, GpuWork | None]:
    """The host's time of a call in parts, and the GPU's; None where the profiler sees no GPU.

    `guards` are seconds of guard checks. Tracing slows the host down, so launches get their share of the traced time,
    taken of the time without tracing. The rest is the wrapper's.
    """
    found = gpu_work(call, PROFILED_CALLS)
    host = host_seconds(call, clock)
    if not found.kernels:
        return HostTime(guards=guards), None
    launches = host * found.launching / found.host
    return HostTime(guards, max(0.0, host - launches - (guards or 0.0)), launches, found.busy), found
