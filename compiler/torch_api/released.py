"""What torch would keep for ever: caches of methods, finalizers of guards, fx's patches after an interrupt."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch.fx._symbolic_trace as symbolic_trace
from torch._dynamo.guards import CheckFunctionManager, DeletedGuardManagerWrapper


@contextmanager
def revert_leftover_fx_patches() -> Iterator[None]:
    """Revert at the end what a symbolic trace in the block patched, if an interrupt kept the trace from doing so.

    fx patches `nn.Module.__call__` while it traces. An interrupt between its `finally` and the reverting leaves that.
    """
    before = symbolic_trace.CURRENT_PATCHER
    try:
        yield
    finally:
        left = symbolic_trace.CURRENT_PATCHER
        if left is not None and left is not before:
            left.revert_all_patches()
            symbolic_trace.CURRENT_PATCHER = before


def empty_method_caches(owner: type) -> None:
    """Empty the functools caches of a class's methods: their keys hold `self` for ever."""
    for name in vars(owner):
        clear = getattr(getattr(owner, name, None), "cache_clear", None)
        if clear is not None:
            clear()


def release_guards(since: weakref.finalize[..., Any]) -> None:
    """Detach finalizers of guards whose entries are gone, if registered after `since`.

    `since` itself is detached last. Each guard on an object's identity leaves a finalizer on that object. Where the
    object is a class or a code object, which live on, the finalizer holds the guards and fake tensors of a
    compilation that nobody can call for ever. Without its entry `CheckFunctionManager.invalidate` does nothing.
    """
    # Oldest first; there is no public list. Not a tuple: making one may collect garbage between two of its steps, and a
    # finalizer that runs then takes itself out of the dictionary that is read.
    registered = list(weakref.finalize._registry)  # type: ignore[attr-defined]
    for finalizer in takewhile(lambda finalizer: finalizer is not since, reversed(registered)):
        _, callback, _, _ = finalizer.peek() or (None, None, (), {})
        owner = getattr(getattr(callback, "func", None), "__self__", None)
        if isinstance(owner, CheckFunctionManager) and _has_no_entry(owner):
            finalizer.detach()
    since.detach()


def _has_no_entry(manager: CheckFunctionManager) -> bool:
    wrapper = getattr(manager, "guard_manager", None)
    return isinstance(wrapper, DeletedGuardManagerWrapper) or (wrapper is not None and wrapper.cache_entry is None)
