"""The user's process, left as it was found."""

from __future__ import annotations

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
