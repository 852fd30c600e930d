"""The memory that a call really uses, beside what was computed for its graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from compiler.measure_facts import MemoryEvent
from compiler.record import Record
from compiler.torch_api import allocator


def with_measured_memory(record: Record, call: Callable[[], object]) -> Record:
    """The record with what is allocated and freed while `call` runs, in place of an earlier measurement.

    On a GPU where one is there, else on the CPU. Raises RecordingError where the allocator's history is being recorded
    already, and what `call` raises.
    """
    changes = allocator.cuda_changes(call) if torch.cuda.is_available() else allocator.cpu_changes(call)
    kept = (event for event in record.memory if event.side != "measured")
    return record.with_(memory=(*kept, *measured_events(changes)))


def measured_events(changes: Sequence[int]) -> list[MemoryEvent]:
    """Bytes that came and went as events; `live` is what is in use beyond what was there before."""
    live, events = 0, []
    for change in changes:
        live += change
        events.append(
            MemoryEvent("", "forward", "allocate" if change > 0 else "free", "", abs(change), live, "measured")
        )
    return events
