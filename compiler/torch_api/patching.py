"""Tools of observers: replace attributes in a block, and hide frames from TorchDynamo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo.decorators import skip

Original = Callable[..., Any]

Wrapper = tuple[Any, str, Callable[[Any], Any]]
"""An attribute that is replaced: its owner, its name, and what makes the new value of the original."""


def around(hook: Original) -> Callable[[Original], Original]:
    """Make of a function one that calls `hook(function, *args, **kwargs)` in its place."""

    def make(original: Original) -> Original:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return hook(original, *args, **kwargs)

        return wrapper

    return make


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Set `owner.name` to `make(original)` inside the block. Raises AttributeError."""
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


Called = Callable[..., Any]


def unseen(function: Called) -> Called:
    """Mark a function: TorchDynamo skips its frame, but not the frames of what it calls."""
    skip(function)
    return function


@unseen
def call_unseen(function: Called, *args: Any) -> Any:
    """Call a function that TorchDynamo looks at no frame of."""
    before = set_eval_frame(None)
    try:
        return function(*args)
    finally:
        set_eval_frame(before)
