"""The user's process, left as it was found, and its garbage collector while much is made that stays."""

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
def uncollected() -> Iterator[None]:
    """No garbage is collected in the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def fewer_full_collections(factor: int) -> Iterator[None]:
    """So many times fewer of Python's full garbage collections in the block; those of young objects go on.

    A full one walks every object there is, which is a waste while many are made that stay. Not for what is done again
    and again: there some have to be left, or the process grows.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0], thresholds[1], factor * thresholds[2])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def made_to_stay() -> Iterator[None]:
    """What the block makes counts as old at its end, and no full garbage collection has been through it."""
    with fewer_full_collections(1_000_000):
        yield
        if not gc.get_freeze_count():  # now: under the old thresholds the next object may start one
            gc.freeze()  # takes all objects out of the young generations, without a look at them,
            gc.unfreeze()  # and this puts them into the oldest one
