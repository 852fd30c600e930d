"""Stop code that runs too long, in whatever thread it runs, and limit the time of work that has many parts."""

from __future__ import annotations

import ctypes
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

AGAIN = 0.05
"""Seconds until the error is raised once more, if the code caught it with a bare `except`."""

PATIENCE = 5
"""Number of errors after which each next error comes after a random delay of 10 to 310 µs."""


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Time for work of several phases: each may start new parts until a share of `seconds` has passed."""

    seconds: float = math.inf
    start: float = field(default_factory=time.perf_counter)

    def is_spent(self, share: float = 1.0) -> bool:
        """Whether a share of the time has passed."""
        return time.perf_counter() - self.start > share * self.seconds

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(self.start + self.seconds - time.perf_counter(), 0.0)


class TimeLimitError(BaseException):
    """Code ran longer than allowed. Not an `Exception`, as user code could catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitError in a block that runs longer than `seconds`.

    In the main thread, a signal interrupts sleeping and waiting too. In another thread, or while the user has an alarm
    of their own, the error is raised before the next Python instruction.
    """
    is_free = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if is_free and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
        with _alarm(seconds):
            yield
    else:
        with _watch(threading.get_ident(), seconds):
            yield


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    is_over, raised = False, 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal raised
        if is_over:
            return
        raised += 1
        # A loop around a bare `except` ends only if the error is raised in its header: a matter of microseconds.
        again = AGAIN if raised < PATIENCE else (10 + time.perf_counter_ns() % 300) * 1e-6
        signal.setitimer(signal.ITIMER_REAL, again)
        raise TimeLimitError(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _watch(thread: int, seconds: float) -> Iterator[None]:
    is_over, lock = threading.Event(), threading.Lock()

    def watch() -> None:
        if is_over.wait(seconds):
            return
        while True:
            with lock:  # never after the block
                if is_over.is_set():
                    return
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeLimitError))
            is_over.wait(AGAIN)

    watcher = threading.Thread(target=watch, name="tcompile time limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with lock:
            is_over.set()
        watcher.join()
