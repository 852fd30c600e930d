"""Memory allocations and frees measured while a call runs.

On a GPU they come from the caching allocator's history (`torch.cuda.memory._record_memory_history`), on the CPU from
the profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import itemgetter
from typing import Any

import torch
from torch._C._profiler import _ExtraFields_Allocation
from torch.profiler import ProfilerActivity, profile

from compiler.process import without_collection
from compiler.torch_api.profiled import quiet

_FREED = "free_requested"  # "free_completed" follows once the stream has reached the free
MOST_EVENTS = 1_000_000


class RecordingError(RuntimeError):
    """The allocator's history is already being recorded; a second recording would end the first."""


def cuda_changes(call: Callable[[], object]) -> list[int]:
    """Bytes allocated (> 0) and freed (< 0) on the current GPU while `call` runs, in order.

    Recording stops afterwards. The garbage collector is off during the call: it would free older tensors, and these
    frees would be counted. Raises RecordingError, and any error of `call`.
    """
    if torch._C._cuda_isHistoryEnabled():
        raise RecordingError("torch.cuda.memory's history is being recorded: stop that first, or read its snapshot")
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=MOST_EVENTS)
    try:
        with without_collection():
            call()
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    return list(history_changes(snapshot["device_traces"][torch.cuda.current_device()]))


def history_changes(trace: Iterable[dict[str, Any]]) -> Iterator[int]:
    """Bytes allocated (> 0) and freed (< 0) by the events of an allocator history."""
    for event in trace:
        if event["action"] == "alloc":
            yield event["size"]
        elif event["action"] == _FREED:
            yield -event["size"]


def cpu_changes(call: Callable[[], object]) -> list[int]:
    """Bytes allocated (> 0) and freed (< 0) on the CPU while `call` runs, in order.

    Operator workspaces are included; frees of memory allocated before the call are not. Raises any error of `call`.
    """
    with quiet(), without_collection(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    tree = profiler.profiler.kineto_results.experimental_event_tree()
    changes = sorted(_changes_in(tree), key=itemgetter(0))
    return list(_changes_of_own((address, size) for _, address, size in changes))


def cpu_peak_bytes(call: Callable[[], object]) -> int:
    """Peak bytes that a call allocates on the CPU, without memory that libraries allocate themselves."""
    return max(accumulate(cpu_changes(call)), default=0)


def _changes_in(tree: Iterable[Any], collective: Any = None) -> Iterator[tuple[int, int, int]]:
    """Time, address and size of each allocation and free in a profile.

    A collective frees its own copies on a thread that is not profiled: they count as freed when it returns.
    """
    for event in tree:
        if isinstance(event.extra_fields, _ExtraFields_Allocation):
            address, size = event.extra_fields.ptr, event.extra_fields.alloc_size
            yield event.start_time_ns, address, size
            if collective is not None and size > 0:
                yield collective.end_time_ns, address, -size
        inside = event if event.name.startswith("c10d::") else collective
        yield from _changes_in(event.children, inside)


def _changes_of_own(changes: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Sizes of allocations and frees, without frees of memory allocated before the profile.

    The profiler remembers addresses from earlier profiles, and reports frees at these addresses too. It does not see
    what other threads free: a block whose address is allocated again was freed before.
    """
    own: dict[int, int] = {}
    for address, size in changes:
        if freed := own.pop(address, 0):
            yield -freed
        if size > 0:
            own[address] = size
            yield size
