"""TorchDynamo's caches: entries of compiled code, skipped code, counters and dynamic-shape history.

An exploration has its own, and leaves the user's as they were.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch._dynamo.convert_frame as convert_frame
import torch._dynamo.eval_frame as eval_frame
import torch._dynamo.pgo as pgo
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._dynamo.utils import counters, graph_break_reasons

from compiler.torch_api.compilations import key_of


def forget_entries(code: CodeType, ours: Sequence[Any]) -> None:
    """Drop our cache entries of a code object; reset the code object if the user has no entries.

    So an exploration never counts against the recompile limit, and a skipped frame can be compiled again. torch keeps
    and counts entries that it invalidated, as it does when an object that they guard, such as a changed copy of the
    user's function, is deleted.
    """
    keys = {key_of(entry.compile_id) for entry in ours}
    others = [entry for entry in eval_frame._debug_get_cache_entry_list(code) if key_of(entry.compile_id) not in keys]
    if all(entry.guard_manager.id_matched_objs == _NO_CALL for entry in others):
        reset_code(code)
        return
    for entry in ours:
        if isinstance(entry.guard_manager, DeletedGuardManagerWrapper):
            entry.guard_manager.id_matched_objs = _NO_CALL
        else:
            entry.guard_manager.extra_state.invalidate(entry, _ended_guards())


def _ended_guards() -> DeletedGuardManagerWrapper:
    """Guards for an entry that matches no call and does not count against recompile_limit."""
    guards = DeletedGuardManagerWrapper("the tcompile exploration that made it has ended")
    guards.id_matched_objs = _NO_CALL
    return guards


_NO_CALL: dict[str, weakref.ref[object]] = {"": weakref.ref(_ended_guards)}
"""Matched objects of an entry that no call matches, as no call has a local variable of this name.

An entry with an ID_MATCH counts only in calls with the matched object (torch._dynamo.cache_size).
"""


def _read_skipped_code() -> None:
    """Let torch trace skipped code again.

    Otherwise an exploration would not see that code. Compiled code keeps its cache entries.
    """
    for known in tuple(convert_frame.input_codes.seen):
        code = known()
        if code is not None and not eval_frame._debug_get_cache_entry_list(code):
            reset_code(code)


@contextmanager
def separate_caches() -> Iterator[None]:
    """Give the block its own dynamic-shape history; afterwards restore torch's counters and cached backends."""
    _read_skipped_code()
    saved = (pgo._CODE_STATE, pgo._INIT_CODE_STATE)
    backends = frozenset(eval_frame.cached_backends)
    count_failures = {name: counter.copy() for name, counter in counters.items()}
    breaks = len(graph_break_reasons)
    pgo._CODE_STATE = pgo._INIT_CODE_STATE = None
    try:
        yield
    finally:
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = saved
        for added in set(eval_frame.cached_backends) - backends:
            del eval_frame.cached_backends[added]
        counters.clear()
        counters.update(count_failures)
        del graph_break_reasons[breaks:]
