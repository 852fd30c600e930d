"""Donated buffers: saved tensors that nothing else references, so that the backward may overwrite them.

AOTAutograd finds them (`ViewAndMutationMeta.bw_donated_idxs`), and rejects a second backward if there are any. Our
backward checks in each call whether the graph is retained, and then overwrites nothing. So we remove them from
AOTAutograd's metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from compiler.torch_api.aot import TracingContext, forward_facts

_given: WeakKeyDictionary[TracingContext, frozenset[str]] = WeakKeyDictionary()


def claim_donated_buffers() -> tuple[int, ...]:
    """Take over the donated buffers of the forward that AOTAutograd compiles.

    Returns their indices among the forward's results. AOTAutograd then allows a second backward.
    """
    meta = forward_facts()
    if meta is None:
        return ()
    _given.pop(TracingContext.get(), None)
    found, meta.bw_donated_idxs = meta.bw_donated_idxs, []
    if not found:
        return ()
    first = meta.tensors_saved_for_backwards_slice.start - (meta.num_symints_saved_for_bw or 0)
    return tuple(first + place for place in found)


def donate(names: Iterable[str]) -> None:
    """Store the names of this forward's values that its backward may overwrite. Both graphs use the same names."""
    context = TracingContext.try_get()
    if context is not None:
        _given[context] = frozenset(names)


def donated_names() -> frozenset[str]:
    """Return and forget the names of the values that this backward's forward donated; empty the second time."""
    context = TracingContext.try_get()
    return _given.pop(context, frozenset()) if context is not None else frozenset()
