"""Measure memory, launches and host time of a candidate, outside of its timed rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from compiler.record.measure_facts import Candidate, HostTime
from compiler.timing.cold import FirstCall
from compiler.timing.rounds import Clock, GpuClock
from compiler.timing.work import Work
from compiler.torch_api.allocator import cpu_peak_bytes
from compiler.torch_api.profiled import GpuWork, gpu_work

LEAST_STREAM_CALLS = 3
HOST_CALLS = 9
PROFILED_CALLS = 3


@dataclass(frozen=True, slots=True)
class Pool:
    """Memory held by CUDA graphs, which share one pool per process.

    `replays` says whether the candidate asks for CUDA graphs. `shared_with` names another candidate that uses the pool.
    """

    replays: bool = False
    bytes: int = 0
    shared_with: str = ""


def with_resource_use(candidate: Candidate, work: Work, first: FirstCall, clock: Clock, pool: Pool) -> Candidate:
    """The candidate with memory, launches and host time, measured by further calls. Raises exceptions of the call."""
    found = replace(candidate, peak_bytes=max(peak_bytes(work, clock), pool.bytes))
    if isinstance(clock, GpuClock):
        return _on_gpu(found, work, first, clock, pool)
    host = HostTime(guards=first.guards) if first.guards is not None else None
    return replace(found, launches=first.calls, host=host)


def _on_gpu(candidate: Candidate, work: Work, first: FirstCall, clock: GpuClock, pool: Pool) -> Candidate:
    stream = clock.stream(work.step, max(LEAST_STREAM_CALLS, candidate.calls_a_round))
    host, found = _host_time(work.step, clock, first.guards)
    known = None if host == HostTime() else host
    candidate = replace(candidate, stream_seconds=stream, host=known)
    if found is None:
        return with_note(candidate, "launches are not known: the profiler saw nothing of the GPU")
    for note in _graph_notes(found, pool):
        candidate = with_note(candidate, note)
    return replace(candidate, launches=found.launched)


def _graph_notes(found: GpuWork, pool: Pool) -> Iterator[str]:
    if pool.replays and not found.graphs:
        yield "no CUDA graph was launched in its calls: torch refused them"
    elif pool.replays:
        yield f"its CUDA graphs run {found.kernels} kernels and copies"
    if pool.bytes:
        shared = f", together with those of {pool.shared_with}" if pool.shared_with else ""
        yield f"CUDA graphs hold {pool.bytes / 2**20:,.1f} MiB between calls too{shared}"


def with_note(candidate: Candidate, note: str) -> Candidate:
    return replace(candidate, notes=(*candidate.notes, note))


def host_seconds(call: Callable[[], None], clock: Clock) -> float:
    """Host time of one call in seconds; the GPU may finish later."""
    took = []
    for _ in range(HOST_CALLS):
        clock.synchronize()
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    clock.synchronize()
    return statistics.median(took)


def _host_time(call: Callable[[], None], clock: Clock, guards: float | None) -> tuple[HostTime, GpuWork | None]:
    """The parts of a call's host time, and its GPU work (None if the profiler sees no GPU).

    `guards` are seconds of guard checks. Tracing slows the host down, so the launches' share of the traced host time is
    applied to the untraced time. The rest is the wrapper's time.
    """
    found = gpu_work(call, PROFILED_CALLS)
    host = host_seconds(call, clock)
    if not found.kernels:
        return HostTime(guards=guards), None
    launches = host * found.launching / found.host
    return HostTime(guards, max(0.0, host - launches - (guards or 0.0)), launches, found.busy), found


def peak_bytes(work: Work, clock: Clock) -> int:
    """Peak memory of a call in bytes, less the memory in use before.

    On a GPU it comes from the allocator (`torch.cuda.max_memory_allocated`, whose peak is reset). On a CPU it comes
    from allocations in the profiler's trace, as a process's resident size never falls and counts pages.
    """
    work.rest()
    if not isinstance(clock, GpuClock):
        return cpu_peak_bytes(work.step)
    clock.synchronize()
    before = torch.cuda.memory_allocated(clock.device)
    torch.cuda.reset_peak_memory_stats(clock.device)
    work.step()
    clock.synchronize()
    return torch.cuda.max_memory_allocated(clock.device) - before


def graph_pool_bytes(device: torch.device) -> int:
    """Bytes that CUDA graphs hold between calls; 0 if the device is not CUDA."""
    if device.type != "cuda":
        return 0
    own = [segment for segment in torch.cuda.memory_snapshot() if _is_of_graph(segment, device)]
    return sum(segment["total_size"] for segment in own)


def _is_of_graph(segment: dict[str, object], device: torch.device) -> bool:
    return segment["device"] == (device.index or 0) and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)  # type: ignore[arg-type]
