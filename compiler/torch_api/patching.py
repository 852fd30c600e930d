"""Tools for observers: replace attributes in a block, and hide frames from TorchDynamo."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from types import FrameType
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo.decorators import skip

Function = Callable[..., Any]

Wrapper = tuple[Any, str, Callable[[Any], Any]]
"""A replaced attribute: (owner, name, function from the original value to the new value)."""


def call_instead(hook: Function) -> Callable[[Function], Function]:
    """A decorator: calls of the function become calls of `hook(function, *args, **kwargs)`."""

    def make(original: Function) -> Function:
        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return hook(original, *args, **kwargs)

        return wrapper

    return make


def call_before(hook: Function) -> Callable[[Function], Function]:
    """A decorator: the function first calls `hook` with the same arguments."""

    def make(original: Function) -> Function:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            hook(*args, **kwargs)
            return original(*args, **kwargs)

        return wrapper

    return make


def call_after(hook: Function) -> Callable[[Function], Function]:
    """A decorator: the function calls `hook(result, *args, **kwargs)` before it returns."""

    def make(original: Function) -> Function:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            hook(result, *args, **kwargs)
            return result

        return wrapper

    return make


def call_inside(block: Callable[..., AbstractContextManager[Any]]) -> Callable[[Function], Function]:
    """A decorator: the function runs inside the context manager `block(*args, **kwargs)`."""

    def make(original: Function) -> Function:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with block(*args, **kwargs):
                return original(*args, **kwargs)

        return wrapper

    return make


@contextmanager
def replace_attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Set `owner.name` to `make(original)` inside the block. Raises AttributeError if the attribute does not exist."""
    original = getattr(owner, name)
    own = name in vars(owner)
    stored = vars(owner).get(name)  # a static method has to be restored as a staticmethod object
    new = make(original)
    setattr(owner, name, staticmethod(new) if isinstance(stored, staticmethod) else new)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, stored)
        else:
            delattr(owner, name)


@contextmanager
def replace_attributes(wrappers: Iterable[Wrapper]) -> Iterator[None]:
    """Set many attributes inside the block, in order."""
    with ExitStack() as stack:
        for wrapper in wrappers:
            stack.enter_context(replace_attribute(*wrapper))
        yield


@contextmanager
def set_environment(**values: str) -> Iterator[None]:
    """Set environment variables in the block; afterwards restore all variables."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def stack_height(frame: FrameType | None) -> int:
    """The number of callers of a frame, and itself."""
    height = 0
    while frame is not None:
        frame, height = frame.f_back, height + 1
    return height


def hide_frame(function: Function) -> Function:
    """Mark a function so that TorchDynamo skips its frame, but not the frames of functions that it calls."""
    skip(function)
    return function


@hide_frame
def call_hidden(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function with TorchDynamo off, so that none of its frames is traced."""
    before = set_eval_frame(None)
    try:
        return function(*args, **kwargs)
    finally:
        set_eval_frame(before)


def call_hidden_before(hook: Function) -> Callable[[Function], Function]:
    """Like `call_before`, but TorchDynamo traces no frame of the hook."""

    def make(original: Function) -> Function:
        @hide_frame
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            call_hidden(hook, *args, **kwargs)
            return original(*args, **kwargs)

        return wrapper

    return make


def observe_hidden(before: Function, after: Callable[..., None]) -> Callable[[Function], Function]:
    """A decorator: call `after(before(*args), *args)` once the function returns; TorchDynamo traces neither of them."""

    def make(original: Function) -> Function:
        @hide_frame
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            seen = call_hidden(before, *args, **kwargs)
            result = original(*args, **kwargs)
            call_hidden(after, seen, *args, **kwargs)
            return result

        return wrapper

    return make


def call_hidden_after(hook: Function) -> Callable[[Function], Function]:
    """Like `call_after`, but TorchDynamo traces no frame of the hook."""

    def make(original: Function) -> Function:
        @hide_frame
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            call_hidden(hook, result, *args, **kwargs)
            return result

        return wrapper

    return make
