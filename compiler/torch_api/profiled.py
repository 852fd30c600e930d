"""What torch's profiler says of some calls: memory as it is allocated, what the GPU ran, what was launched.

Allocations are events of the profiler's trace ("[memory]"), in the order in which they happened, with the bytes that
each adds or gives back; the tables that torch makes of a trace only keep their sums by operator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

MEMORY = "[memory]"
# What asks the driver for work: kernels, graphs, copies, fills (CUDA's and ROCm's runtime, and the driver's own names).
LAUNCHES = ("LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync", "LaunchCooperativeKernel")


@dataclass(frozen=True, slots=True)
class GpuWork:
    """What the GPU and its driver did in one call. `busy` is the time in seconds in which the GPU ran anything,
    `kernels` how many kernels, copies and fills it ran, `launched` how many calls of the driver there were for them,
    `launching` their seconds; `graphs` are those that launched a CUDA graph.
    """

    busy: float
    kernels: int
    launched: int
    launching: float
    graphs: int


def peak_bytes(call: Callable[[], None], device: str = "cpu") -> int:
    """The most memory that torch's allocator of a device ("cpu") had handed out during a call, less what it had
    before. Memory that libraries take for themselves is not in it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a profiler that is used once is told to be used with a schedule
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
    kind = {"cpu": DeviceType.CPU, "cuda": DeviceType.CUDA}[device]
    events = [event for event in _events(profiler) if event.name() == MEMORY and event.device_type() == kind]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def _events(profiler: Any) -> list[Any]:
    return list(profiler.profiler.kineto_results.events())


def gpu_work(call: Callable[[], None], calls: int) -> GpuWork:
    """What the GPU did in one call, as the mean over some. Tracing slows the host; what the GPU took is not changed."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    events = _events(profiler)
    ran = [event for event in events if event.device_type() == DeviceType.CUDA and event.duration_ns() > 0]
    ran = [event for event in ran if "Sync" not in event.name()]
    asked = [event for event in events if event.device_type() == DeviceType.CPU and _launches(event.name())]
    return GpuWork(
        busy=_covered(ran) / calls,
        kernels=round(len(ran) / calls),
        launched=round(len(asked) / calls),
        launching=sum(event.duration_ns() for event in asked) * 1e-9 / calls,
        graphs=round(sum("GraphLaunch" in event.name() for event in asked) / calls),
    )


def _launches(name: str) -> bool:
    return name.startswith(("cuda", "cu", "hip")) and any(part in name for part in LAUNCHES)


def _covered(events: list[Any]) -> float:
    """Seconds in which at least one of these was under way: streams run beside each other."""
    covered, end = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        begin, until = max(event.start_ns(), end), event.start_ns() + event.duration_ns()
        covered += max(0, until - begin)
        end = max(end, until)
    return covered * 1e-9
