"""An independent check of `compiler.timing` on a GPU: a plain loop of CUDA events over the same call.

It shares no code with the engine: the caller compiles with `torch.compile` as a user would, and passes in a step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

WARM_UP = 20
MOST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Looped:
    """Median seconds of one call: `alone` (idle GPU, flushed L2 cache), and in a `stream` of back-to-back calls."""

    alone: float
    stream: float


def looped(step: Callable[[], object], calls: int = 100) -> Looped:
    """Time a step that launches work on the current GPU. Makes fewer calls if they would take more than two seconds."""
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    cleared = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    first = _alone(step, cleared)
    calls = max(5, min(calls, int(MOST_SECONDS / first)))
    return Looped(statistics.median(_alone(step, cleared) for _ in range(calls)), _stream(step, calls))


def _alone(step: Callable[[], object], cleared: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cleared.fill_(1)
    torch.cuda.synchronize()
    begin.record()
    step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _stream(step: Callable[[], object], calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / calls
