"""Measure the memory use of a call, to compare it with the memory computed from its graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from compiler.record import Record
from compiler.record.measure_facts import MemoryEvent
from compiler.torch_api import allocator


def with_measured_memory(record: Record, call: Callable[[], object]) -> Record:
    """Run `call` once and add its allocations to the record, in place of an earlier measurement.

    Measures the GPU's memory if the call allocates some, else the CPU's. Raises RecordingError if the allocator's
    history is already being recorded, and any exception of `call`.
    """
    changes = _changes(call)
    kept = (event for event in record.memory if event.side != "measured")
    return record.with_fields(memory=(*kept, *measured_events(changes)))


def _changes(call: Callable[[], object]) -> list[int]:
    if not torch.cuda.is_available():
        return allocator.cpu_changes(call)
    on_gpu: list[int] = []
    on_cpu = allocator.cpu_changes(lambda: on_gpu.extend(allocator.cuda_changes(call)))
    return on_gpu or on_cpu


def measured_events(changes: Sequence[int]) -> list[MemoryEvent]:
    """Events of allocations and frees, in bytes; `live` is the bytes in use, relative to the start."""
    live, events = 0, []
    for change in changes:
        live += change
        events.append(
            MemoryEvent("", "forward", "allocate" if change > 0 else "free", "", abs(change), live, "measured")
        )
    return events
