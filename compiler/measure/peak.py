"""The most memory in use during one call."""

from __future__ import annotations

import torch

from compiler.measure.rounds import Clock, GpuClock
from compiler.measure.work import Work
from compiler.torch_api.allocator import cpu_peak_bytes


def peak_bytes(work: Work, clock: Clock) -> int:
    """The most memory during a call, less what was in use before it.

    On a GPU by the allocator's own count (`torch.cuda.max_memory_allocated`, which starts anew); on a CPU by the
    allocations in the profiler's trace, as the process's own numbers never fall and count pages, not tensors.
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
    """Memory that CUDA graphs hold for themselves, between calls too; 0 for another device."""
    if device.type != "cuda":
        return 0
    own = [segment for segment in torch.cuda.memory_snapshot() if _is_of_graph(segment, device)]
    return sum(segment["total_size"] for segment in own)


def _is_of_graph(segment: dict[str, object], device: torch.device) -> bool:
    return segment["device"] == (device.index or 0) and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)  # type: ignore[arg-type]
