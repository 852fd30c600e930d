"""A clock that stands still while tcompile records, so that what it shows is PyTorch's time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Stopwatch:
    """Seconds that PyTorch has had the floor."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = time.perf_counter()

    def seconds(self) -> float:
        """Seconds since it was made, less those in `stopped`."""
        return self._before + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """The block is work of tcompile."""
        with self._set(running=False):
            yield

    @contextmanager
    def resume(self) -> Iterator[None]:
        """The block is work of PyTorch, be it inside of tcompile's."""
        with self._set(running=True):
            yield

    @contextmanager
    def _set(self, *, running: bool) -> Iterator[None]:
        was = self._since is not None
        self._switch(running)
        try:
            yield
        finally:
            self._switch(was)

    def _switch(self, running: bool) -> None:
        self._before = self.seconds()
        self._since = time.perf_counter() if running else None


class _Untimed:
    def __init__(self, observer: Any, watch: Stopwatch) -> None:
        self._observer = observer
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._observer, name)
        if not callable(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._watch.pause():
                return method(*args, **kwargs)

        return call


def untimed_observer(observer: T, watch: Stopwatch) -> T:
    """The observer, with the watch stopped while it is told something."""
    return cast("T", _Untimed(observer, watch))
