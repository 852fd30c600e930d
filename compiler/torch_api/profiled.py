"""Profile calls with torch's profiler: GPU work and driver launches."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from compiler.torch_api.patching import set_environment

# Driver calls that launch kernels, graphs, copies or fills (names in the CUDA and ROCm runtimes and the driver).
LAUNCHES = ("LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync", "LaunchCooperativeKernel")


def operation(name: str) -> AbstractContextManager[object]:
    """A profiler range that counts as an operator, so that launches in it are attributed to it.

    `record_function` ranges are annotations: kernels launched directly in one are attributed to the enclosing operator.
    """
    return torch._C._profiler._RecordFunctionFast(name)


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Mean work of the GPU and its driver per call. Times are in seconds.

    `busy`: time in which the GPU ran anything. `kernels`: number of kernels, copies and fills.
    `launched`: number of driver calls that launch work, `launching`: their time.
    `host`: wall time until the traced call returns.
    `graphs`: number of CUDA graph launches.
    """

    busy: float
    kernels: int
    launched: int
    launching: float
    host: float
    graphs: int


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the profiler's own messages."""
    level = os.environ.get("KINETO_LOG_LEVEL", "99")
    with set_environment(KINETO_LOG_LEVEL=level), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def gpu_work(call: Callable[[], None], calls: int) -> GpuWork:
    """Profile `calls` calls, and return the mean work per call. Tracing slows the CPU, not the GPU."""
    with quiet(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()  # the first traced call takes longer
        torch.cuda.synchronize()
        begin, start = time.time_ns(), time.perf_counter()
        for _ in range(calls):
            call()
        host = time.perf_counter() - start
        torch.cuda.synchronize()
    events = [event for event in profiler.profiler.kineto_results.events() if event.start_ns() >= begin]
    ran = [event for event in events if event.device_type() == DeviceType.CUDA and event.duration_ns() > 0]
    ran = [event for event in ran if "Sync" not in event.name()]
    asked = [event for event in events if event.device_type() == DeviceType.CPU and _launches(event.name())]
    return GpuWork(
        busy=_covered_seconds(ran) / calls,
        kernels=round(len(ran) / calls),
        launched=round(len(asked) / calls),
        launching=sum(event.duration_ns() for event in asked) * 1e-9 / calls,
        host=host / calls,
        graphs=round(sum("GraphLaunch" in event.name() for event in asked) / calls),
    )


def _launches(name: str) -> bool:
    return name.startswith(("cuda", "cu", "hip")) and any(part in name for part in LAUNCHES)


def _covered_seconds(events: list[Any]) -> float:
    """Seconds in which at least one of the events ran: events on several streams overlap."""
    covered, end = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        begin, until = max(event.start_ns(), end), event.start_ns() + event.duration_ns()
        covered += max(0, until - begin)
        end = max(end, until)
    return covered * 1e-9
