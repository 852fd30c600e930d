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


def on_gpu(call: Callable[[], None], clock: Clock, guards: float) -> tuple[HostTime, GpuWork | None]:
    """The host's time of a call in parts, and what the GPU did; None where the profiler sees nothing of a GPU.

    `guards` are the seconds of checking guards. What is launched is timed while it is traced, which takes the host a
    little longer; the wrapper is what is left of the time without tracing.
    """
    found = gpu_work(call, PROFILED_CALLS)
    host = host_seconds(call, clock)
    if not found.kernels:
        return HostTime(guards=guards), None
    launches = min(found.launching, host)
    return HostTime(guards, max(0.0, host - launches - guards), launches, found.busy), found


def on_cpu(guards: float) -> HostTime:
    """On a CPU kernels run in the host's own time: what is known apart from them is the checking of guards."""
    return HostTime(guards=guards)
