"""Replace an attribute for the length of a `with` block, whatever happens inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Wrapper = tuple[Any, str, Callable[[Any], Any]]
"""An attribute that is replaced: its owner, its name, and what makes the new value of the original."""


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Set `owner.name` to `make(original)` inside the block. Raises AttributeError if there is no such name."""
    original = getattr(owner, name)
    own = name in vars(owner)
    stored = vars(owner).get(name)  # a static method is stored as such, and is to be put back as such
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, stored)
        else:
            delattr(owner, name)
