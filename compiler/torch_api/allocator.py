"""What really comes and goes in memory while something runs: by CUDA's caching allocator, which keeps a history of it
(`torch.cuda.memory._record_memory_history`), or on the CPU by the profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from compiler.process import uncollected
from compiler.torch_api.profiled import quiet

_FREED = "free_requested"  # what follows, "free_completed", is when the stream has got there
MOST_EVENTS = 1_000_000


class RecordingError(RuntimeError):
    """The allocator's history is being recorded already: to record another would end that."""


def cuda_changes(call: Callable[[], object]) -> list[int]:
    """Bytes allocated (> 0) and freed (< 0) on the current GPU while `call` runs, in order; nothing stays recorded. No
    garbage is collected meanwhile: tensors from before would count as freed.

    Raises RecordingError, and what `call` raises.
    """
    if torch._C._cuda_isHistoryEnabled():
        raise RecordingError("torch.cuda.memory's history is being recorded: stop that first, or read its snapshot")
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=MOST_EVENTS)
    try:
        with uncollected():
            call()
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    return list(history_changes(snapshot["device_traces"][torch.cuda.current_device()]))


def history_changes(trace: Iterable[dict[str, Any]]) -> Iterator[int]:
    """Bytes that the events of a history allocate (> 0) and free (< 0)."""
    for event in trace:
        if event["action"] == "alloc":
            yield event["size"]
        elif event["action"] == _FREED:
            yield -event["size"]


def cpu_changes(call: Callable[[], object]) -> list[int]:
    """The same on the CPU, where what operators allocate for themselves is among it. Raises what `call` raises."""
    with quiet(), uncollected(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = profiler.profiler.kineto_results.events()
    memory = (event for event in events if event.name() == "[memory]")
    return [event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns())]
