"""Where the host's time of one call goes, and what the GPU did in it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from compiler.measure.rounds import Clock
from compiler.measure_facts import HostTime
from compiler.torch_api.profiled import GpuWork, gpu_work

HOST_CALLS = 9
PROFILED_CALLS = 3


def host_seconds(call: Callable[[], None], clock: Clock) -> float:
    """How long the host is busy with one call: the GPU, with nothing to do before it, may go on after it."""
    took = []
    for _ in range(HOST_CALLS):
        clock.finished()
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    clock.finished()
    return statistics.median(took)


def on_gpu(call: Callable[[], None], clock: Clock, guards: float | None) -> tuple[HostTime, GpuWork | None]:
    """The host's time of a call in parts, and what the GPU did; None where the profiler sees nothing of a GPU.

    `guards` are the seconds of checking guards. Tracing takes the host longer: launches have the share of the time
    without tracing that they had of the time with it. The wrapper is what is left.
    """
    found = gpu_work(call, PROFILED_CALLS)
    host = host_seconds(call, clock)
    if not found.kernels:
        return HostTime(guards=guards), None
    launches = host * found.launching / found.host
    return HostTime(guards, max(0.0, host - launches - (guards or 0.0)), launches, found.busy), found
