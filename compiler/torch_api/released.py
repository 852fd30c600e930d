"""Release objects that torch would keep forever: method caches, guard finalizers, fx patches after an interrupt."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
import torch.fx._symbolic_trace as symbolic_trace
from torch._dynamo.guards import CheckFunctionManager, DeletedGuardManagerWrapper


@contextmanager
def revert_leftover_fx_patches() -> Iterator[None]:
    """Revert the patches of a symbolic trace in the block, if an interrupt left them behind.

    fx patches `nn.Module.__call__` while it traces. An interrupt just before the end leaves the patch in place.
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
    """Empty the functools caches of a class's methods: their keys keep `self` alive."""
    for name in vars(owner):
        clear = getattr(getattr(owner, name, None), "cache_clear", None)
        if clear is not None:
            clear()


def release_guards(since: weakref.finalize[..., Any]) -> None:
    """Detach guard finalizers registered after `since` if their cache entries are gone.

    `since` itself is detached last. Each ID_MATCH guard leaves a finalizer on its object. If that object is a class or
    a code object, which stay alive, the finalizer keeps the guards and fake tensors of a dropped compilation forever.
    Without the entry, the finalizer (`CheckFunctionManager.invalidate`) does nothing.
    """
    # Oldest first; there is no public list. Not `tuple(...)`: garbage collection may run while it is built, and a
    # finalizer that runs then removes itself from the dictionary during the iteration.
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


def release_operators(names: Iterable[Any]) -> None:
    """Take back the operators that these `torch.library.Library` objects registered; others are left alone.

    The dispatcher holds the functions, whose globals hold the library: garbage collection frees neither.
    """
    for each in names:
        if isinstance(each, torch.library.Library):
            each._destroy()
