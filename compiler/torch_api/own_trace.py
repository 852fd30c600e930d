"""Torch's structured trace of this process, written to a file of ours for a while."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from torch._logging._internal import TorchLogsFormatter, trace_log
from torch._logging.structured import INTERN_TABLE


@contextmanager
def written_trace(file: IO[str]) -> Iterator[None]:
    """Write the structured trace to a file during the block, as TORCH_TRACE does; other traces are as before."""
    _write_strings(file)
    handler = _OwnProcess(file)
    handler.setFormatter(TorchLogsFormatter(trace=True))
    # First, because torch's own handler removes itself at its first event, and logging would then leave out the next.
    trace_log.handlers.insert(0, handler)
    try:
        yield
    finally:
        trace_log.removeHandler(handler)
        handler.close()


@contextmanager
def uncaptured_trace() -> Iterator[None]:
    """Take pytest's handlers off the structured trace in the block: a failure would print hundreds of its lines."""
    taken = [handler for handler in trace_log.handlers if type(handler).__module__.startswith("_pytest.")]
    for handler in taken:
        trace_log.removeHandler(handler)
    try:
        yield
    finally:
        for handler in taken:
            trace_log.addHandler(handler)


class _OwnProcess(logging.StreamHandler[IO[str]]):
    """Writes the events of the process that made it, not those of forks, which share its file."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file)
        self._process = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() == self._process:
            super().emit(record)


def _write_strings(file: IO[str]) -> None:
    """Write the strings that torch interned before: later events have only their numbers."""
    now = time.strftime("%m%d %H:%M:%S", time.localtime())
    head = f"V{now}.000000 {os.getpid()} torch/_logging/structured.py:1] "
    file.writelines(f'{head}{{"str": [{json.dumps(text)}, {number}]}}\n' for text, number in list(INTERN_TABLE.items()))
