"""Detect and prevent side effects of a repeated call outside the process.

Python reports each opened file, started process and connection in advance (audit events). While a program is repeated,
events that would change something raise an error.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from compiler.capture.sources import is_installed, is_standard
from compiler.torch_api.patching import call_instead, replace_attribute

_CHANGES = {
    "os.remove": "deletes", "os.rmdir": "deletes", "shutil.rmtree": "deletes", "os.rename": "renames",
    "os.mkdir": "makes the folder", "subprocess.Popen": "starts", "os.system": "runs", "os.exec": "runs",
    "socket.connect": "connects to", "socket.bind": "listens at", "socket.sendto": "sends to",
}  # fmt: skip
_HARMLESS = (os.devnull, "/dev/stdout", "/dev/stderr")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HEARD = {"open", *_CHANGES}
_TORCH = str(Path(torch.__file__).parent)
_active: list[None] = []
_hooked: list[None] = []


class OutsideError(BaseException):
    """The program would change something outside the process. Not an `Exception`, as user code could catch it."""


@contextmanager
def inside_the_process() -> Iterator[None]:
    """Raise OutsideError in the block for any attempt to change files, start processes or use the network."""
    if not _hooked:
        sys.addaudithook(_hear)
        _hooked.append(None)
    _active.append(None)
    try:
        yield
    finally:
        _active.pop()


@dataclass
class Heard:
    """Output of a call, in order: printed text, logs and warnings."""

    said: list[tuple[str, str]] = field(default_factory=list)

    def write(self, kind: str, text: str) -> None:
        """Add output; consecutive printed texts are joined."""
        if self.said and self.said[-1][0] == kind == "printed":
            self.said[-1] = kind, self.said[-1][1] + text
        else:
            self.said.append((kind, text))

    def log(self, _handlers: Callable[..., None], logger: logging.Logger, record: logging.LogRecord) -> None:
        """Add a log message of any level, as it may be shown elsewhere; torch's own messages are ignored."""
        if not logger.name.startswith("torch"):
            self.write(f"logged at {record.levelname}", record.getMessage())

    @staticmethod
    def is_enabled(original: Callable[..., bool], logger: logging.Logger, level: int) -> bool:
        """Whether a logger emits a message: always, except for torch's loggers, which keep their levels."""
        return original(logger, level) if logger.name.startswith("torch") else True


class _Stream(io.TextIOBase):
    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def write(self, text: str) -> int:
        self._heard.write("printed", text)
        return len(text)


@contextmanager
def unheard(heard: Heard | None = None) -> Iterator[None]:
    """Hide output, logs and warnings in the block; record them in `heard`. Changes outside the process are errors.

    Do not use this to find breaks, as TorchDynamo would trace the replacements of torch.save and others.
    """
    heard = heard or Heard()
    stream = _Stream(heard)
    with (
        inside_the_process(),
        redirect_stdout(stream),
        redirect_stderr(stream),
        replace_attribute(torch, "save", lambda _: _save),
        replace_attribute(logging.Logger, "callHandlers", call_instead(heard.log)),
        replace_attribute(logging.Logger, "isEnabledFor", call_instead(heard.is_enabled)),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        yield
        for each in caught:
            if not is_installed(each.filename) and "Triggered internally" not in str(each.message):
                heard.said.append(("warned", str(each.message)))


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if not _active or event not in _HEARD or _is_torchs_own(sys._getframe(1)):
        return
    if event == "open" and _is_written(*args):
        raise OutsideError(f"it writes {args[0]!r}")
    if event in _CHANGES:
        raise OutsideError(f"it {_CHANGES[event]} {args[0]!r}")


def _is_torchs_own(frame: FrameType | None) -> bool:
    """Whether the innermost frame outside the standard library is torch's, which creates folders for its caches."""
    while frame is not None and is_standard(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_TORCH)


def _is_written(path: Any, mode: Any, flags: Any) -> bool:
    if path in _HARMLESS or isinstance(path, int):
        return False
    if isinstance(mode, str):
        return bool(set("wax+") & set(mode))
    return isinstance(flags, int) and bool(flags & _WRITES)


def _save(_value: Any, where: Any, *_args: Any, **_kwargs: Any) -> None:
    """Replacement for torch.save, which opens files without audit events."""
    raise OutsideError(f"it writes {where!r}")
