"""The user's process, left as it was found, and its garbage collector while torch's compiler is imported."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def preserved() -> Iterator[None]:
    """Put back what one compilation changes in passing: warning filters and the recursion limit (Inductor raises it).

    Random state is not here: a compiled call must advance it just as the plain call would, and Inductor restores it
    around its own work (torch._dynamo.utils.preserve_rng_state).
    """
    limit = sys.getrecursionlimit()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def full_collections_postponed() -> Iterator[None]:
    """Python's full garbage collections wait until the block ends; those of young objects go on.

    For what makes many objects that stay. Not for compiling: there the process was seen to grow by it.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0], thresholds[1], 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
