"""See to it that an interrupt stops a cell, also where Python or PyTorch drops its KeyboardInterrupt.

PyTorch clears every error that is raised while it checks guards, and compiles again; Python prints and drops those of
finalizers and of weak references' callbacks. The cell would go on, for ever if it loops.
"""

from __future__ import annotations

import _thread
import dis
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from compiler.capture.sources import is_standard, torch_folder

LOOK_EVERY = 0.05
"""Seconds between two looks at whether an interrupt's error still exists."""


def is_handler(traceback: TracebackType) -> bool:
    """Whether an entry of a traceback is the frame of a signal's handler that is defined here."""
    return traceback.tb_frame.f_code.co_filename == __file__


class RepeatedInterrupts:
    """Context manager that interrupts the main thread again if the KeyboardInterrupt of a SIGINT was dropped.

    It was not if the user's code caught it, or if it is still on its way. A handler that raises nothing stays as it is.
    A class, because `contextlib.contextmanager` sets an attribute of each error, which some errors refuse.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._is_over = False
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._before = handler
            signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        try:
            with self._lock:
                self._is_over = True
        finally:
            if self._before is not None and signal.getsignal(signal.SIGINT) == self._interrupt:  # not the cell's own
                signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Do as the handler before, and watch what it raises. It waits for no lock, which this thread may hold."""
        try:
            self._before(number, frame)
        except KeyboardInterrupt as error:
            _thread.start_new_thread(self._watch, ([error],))
            raise

    def _watch(self, held: list[KeyboardInterrupt]) -> None:
        """Interrupt again if an error was dropped; the list has the only reference to it that is ours."""
        while True:
            time.sleep(LOOK_EVERY)
            with self._lock:  # never after the block
                if self._is_over:
                    return
                if sys.getrefcount(held[0]) > 2:  # the list's and the call's own: it is on its way or handled
                    continue
                if not _is_caught(held[0].__traceback__):
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return


def _is_caught(traceback: TracebackType | None) -> bool:
    """Whether the outermost frame that an error has reached is in a `try` or `with`, and is the user's or a library's.

    In any other frame the error went on to the caller, and was dropped there: also in a callback of the standard
    library's weak dictionaries, which has a `try` for other errors.
    """
    if traceback is None or is_handler(traceback):
        return False
    file = traceback.tb_frame.f_code.co_filename
    if is_standard(file) or Path(file).is_relative_to(torch_folder()):
        return False
    entries = dis.Bytecode(traceback.tb_frame.f_code).exception_entries  # type: ignore[attr-defined]
    return any(entry.start <= traceback.tb_lasti < entry.end for entry in entries)
