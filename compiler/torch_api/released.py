"""References that torch would hold for ever: caches of methods, finalizers of guards."""

from __future__ import annotations

import weakref
from itertools import takewhile
from typing import Any

from torch._dynamo.guards import CheckFunctionManager, DeletedGuardManagerWrapper


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
