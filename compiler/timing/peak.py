"""Measure the peak memory of one call."""

from __future__ import annotations

import torch

from compiler.timing.rounds import Clock, GpuClock
from compiler.timing.work import Work
from compiler.torch_api.allocator import cpu_peak_bytes


def peak_bytes(work: Work, clock: Clock) -> int:
    """Peak memory during a call in bytes, less what was in use before.

    On a GPU from the allocator (`torch.cuda.max_memory_allocated`, whose peak is reset). On a CPU from allocations in
    the profiler's trace, as a process's resident size never falls and counts pages.
    """
    work.rest()
    if not isinstance(clock, GpuClock):
        return cpu_peak_bytes(work.step)
    clock.finished()
    before = torch.cuda.memory_allocated(clock.device)
    torch.cuda.reset_peak_memory_stats(clock.device)
    work.step()
    clock.finished()
    return torch.cuda.max_memory_allocated(clock.device) - before


def graph_pool_bytes(device: torch.device) -> int:
    """Bytes that CUDA graphs hold between calls too; 0 on another device."""
    if device.type != "cuda":
        return 0
    own = [segment for segment in torch.cuda.memory_snapshot() if _is_of_graph(segment, device)]
    return sum(segment["total_size"] for segment in own)


def _is_of_graph(segment: dict[str, object], device: torch.device) -> bool:
    return segment["device"] == (device.index or 0) and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)  # type: ignore[arg-type]
