"""A clock that is paused while tcompile records, so that the times shown are PyTorch's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Stopwatch:
    """A clock that measures PyTorch's own time; paused while tcompile works."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = time.perf_counter()

    def seconds(self) -> float:
        """Seconds since creation, without the time spent in `pause`."""
        return self._before + (time.perf_counter() - self._since if self._since is not None else 0.0)

    def pause(self) -> AbstractContextManager[None]:
        """Pause the watch during a block of tcompile's own work."""
        return self._set(running=False)

    def resume(self) -> AbstractContextManager[None]:
        """Run the watch during a block of PyTorch's work inside a pause."""
        return self._set(running=True)

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
    """Wrap an observer so that the watch is paused during its methods."""
    return cast("T", _Untimed(observer, watch))
