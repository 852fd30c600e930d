"""What a forward saves for its backward: which of it nobody else holds, so that the backward may write over it.

AOTAutograd finds that out (`ViewAndMutationMeta.bw_donated_idxs`), and refuses a second backward where there is any.
Ours looks at each call whether the graph is kept, and writes over nothing then; so AOTAutograd is told that there is
none.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from compiler.torch_api.aot import TracingContext, forward_facts

_given: WeakKeyDictionary[TracingContext, frozenset[str]] = WeakKeyDictionary()


def claim_donated_buffers() -> tuple[int, ...]:
    """Tell AOTAutograd, while it compiles a forward, that it need not refuse a second backward. The places, among the
    forward's results, of what is saved and nobody else holds.
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
    """Of the forward that is compiled: values that its backward may write over, as both graphs name them."""
    context = TracingContext.try_get()
    if context is not None:
        _given[context] = frozenset(names)


def donated_names() -> frozenset[str]:
    """The same, for the backward that is compiled; once."""
    context = TracingContext.try_get()
    return _given.pop(context, frozenset()) if context is not None else frozenset()
