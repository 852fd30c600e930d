"""Detect and prevent side effects of a repeated call outside the process.

Python reports each opened file, started process and connection in advance (audit events). While a program is repeated,
events that would change something raise an error.
"""

from __future__ import annotations

import builtins
import io
import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from compiler.capture.sources import is_installed, is_standard
from compiler.torch_api.patching import call_instead, replace_attribute
from compiler.torch_api.saving import call_before_saving
from compiler.xray.time_limit import TimeLimitError

_CHANGES = {
    "os.remove": "deletes", "os.rmdir": "deletes", "shutil.rmtree": "deletes", "os.rename": "renames",
    "os.mkdir": "makes the folder", "os.truncate": "shortens", "os.link": "links", "os.symlink": "links",
    "os.chmod": "changes the rights of", "os.chown": "changes the owner of", "os.utime": "changes the times of",
    "subprocess.Popen": "starts", "os.system": "runs", "os.exec": "runs", "os.posix_spawn": "starts",
    "os.spawn": "starts", "os.fork": "forks the process", "os.forkpty": "forks the process", "os.kill": "signals",
    "socket.connect": "connects to", "socket.bind": "listens at", "socket.sendto": "sends to",
    "socket.sendmsg": "sends to", "socket.getaddrinfo": "looks up", "socket.gethostbyname": "looks up",
    "sqlite3.connect": "opens the database", "webbrowser.open": "opens", "builtins.input": "asks for input:",
}  # fmt: skip
_HARMLESS = (os.devnull, "/dev/stdout", "/dev/stderr")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HEARD = {"open", *_CHANGES}


def _folders_of(package: str) -> Sequence[str]:
    """The folders of a package, without importing it; none if it is not installed."""
    found = find_spec(package)
    return () if found is None else found.submodule_search_locations or ()


_TORCH = Path(torch.__file__).parent
_COMPILERS = (
    *(
        str(_TORCH / name)
        for name in ("_dynamo", "_inductor", "_functorch", "_logging", "_subclasses", "compiler", "fx")
    ),
    str(Path(__file__).parents[1] / "backend"),
    *_folders_of("triton"),
)
_LOCKS = (str(_TORCH / "utils" / "_filelock.py"), *_folders_of("filelock"))
"""Code that makes files for its caller: of compilers if a compiler calls it."""
_active: list[frozenset[int | None]] = []
"""For each running block, ids of the other threads that were running at its start: they are not watched."""
_hooked: list[None] = []
_OWN = (__name__, call_instead.__module__)


class OutsideError(BaseException):
    """The program would change something outside the process. Not an `Exception`, as user code could catch it."""


STOPS = (Exception, OutsideError, TimeLimitError, SystemExit)
"""Errors that end a repeated program, but not the x-ray."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that a repeated program would have written, and the line that opened it."""

    path: str
    file: str
    line: int


@contextmanager
def inside_the_process() -> Iterator[None]:
    """Raise OutsideError in the block for any attempt to change files, start processes or use the network."""
    if not _hooked:
        sys.addaudithook(_hear)
        _hooked.append(None)
    _active.append(frozenset(each.ident for each in threading.enumerate()) - {threading.get_ident()})
    try:
        yield
    finally:
        _active.pop()


@dataclass
class Heard:
    """Output of a call, in order: printed text, logs and warnings. `written` are the files opened for writing."""

    said: list[tuple[str, str]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)

    def open(self, original: Callable[..., Any], path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file; for writing, open a file in memory instead, with the same initial content."""
        frame = sys._getframe(1)
        if not (_is_watched() and _is_written(path, mode, 0)) or _is_torchs_own(frame):
            return original(path, mode, *args, **kwargs)
        place = _users_frame(frame)
        self.written.append(Written(os.fspath(path), place.f_code.co_filename, place.f_lineno))
        keeps = "w" not in mode and Path(path).exists()
        content = original(path, "rb").read() if keeps else b""
        memory = _BytesInMemory(content) if "b" in mode else _TextInMemory(content.decode(errors="replace"))
        memory.seek(0, os.SEEK_END if "a" in mode else os.SEEK_SET)
        memory.name, memory.heard = os.fspath(path), self
        return memory

    def clear(self) -> None:
        """Forget what was recorded."""
        self.said.clear()
        self.written.clear()

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


class _InMemory:
    """A file in memory. Its content is recorded as output when it is closed."""

    name: str | bytes = ""
    heard: Heard | None = None

    def close(self) -> None:
        if self.heard is not None and not self.closed:  # type: ignore[attr-defined]
            self.heard.said.append((f"wrote {self.name!r}", repr(self.getvalue())))  # type: ignore[attr-defined]
        super().close()  # type: ignore[misc]


class _TextInMemory(_InMemory, io.StringIO):
    """A text file in memory."""


class _BytesInMemory(_InMemory, io.BytesIO):
    """A binary file in memory."""


class _Stream(io.TextIOBase):
    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def write(self, text: str) -> int:
        self._heard.write("printed", text)
        return len(text)


@contextmanager
def mute() -> Iterator[None]:
    """Discard output. The streams are of the type of a terminal's, because TorchDynamo may trace code that writes."""
    out, error = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(error):
        yield


@contextmanager
def unheard(heard: Heard | None = None) -> Iterator[None]:
    """Hide output, logs and warnings in the block; record them in `heard`. Changes outside the process are errors.

    Files that are opened for writing are kept in memory, and their content is recorded.
    Do not use this to find breaks, as TorchDynamo would trace the replacements of torch.save and others.
    """
    heard = heard or Heard()
    stream = _Stream(heard)
    with (
        inside_the_process(),
        redirect_stdout(stream),
        redirect_stderr(stream),
        call_before_saving(_refuse_saving),
        replace_attribute(socket.socket, "send", call_instead(_send)),
        replace_attribute(socket.socket, "sendall", call_instead(_send)),
        replace_attribute(builtins, "input", call_instead(_input)),
        replace_attribute(builtins, "open", call_instead(heard.open)),
        replace_attribute(io, "open", call_instead(heard.open)),
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
    if event not in _HEARD or not _is_watched() or _is_torchs_own(sys._getframe(1)):
        return
    if event == "open" and _is_written(*args):
        raise OutsideError(f"it writes {args[0]!r}")
    if event in _CHANGES:
        raise OutsideError(f"it {_CHANGES[event]} {_object_of(event, args)}".rstrip())


def _users_frame(frame: FrameType | None) -> Any:
    """The innermost frame outside the standard library and installed packages, or else the outermost one."""
    found = frame
    while frame is not None:
        found = frame
        if not is_installed(frame.f_code.co_filename) and frame.f_globals.get("__name__") not in _OWN:
            break
        frame = frame.f_back
    return found


def _is_watched() -> bool:
    """Whether this thread runs a repeated program."""
    return bool(_active) and threading.get_ident() not in _active[-1]


def _object_of(event: str, args: tuple[Any, ...]) -> str:
    """The file, program or address (the argument after a socket) that an event is about, as text; "" if unknown."""
    found = args[1:2] if event.startswith("socket.") and len(args) > 1 and not isinstance(args[0], str) else args[:1]
    return repr(found[0]) if found else ""


def _is_torchs_own(frame: FrameType | None) -> bool:
    """Whether the innermost frame outside the standard library and of locks is a compiler's: they write cache files."""
    while frame is not None and (is_standard(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_LOCKS)):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_COMPILERS)


def _is_written(path: Any, mode: Any, flags: Any) -> bool:
    if path in _HARMLESS or isinstance(path, int):
        return False
    if isinstance(mode, str):
        return bool(set("wax+") & set(mode))
    return isinstance(flags, int) and bool(flags & _WRITES)


def _refuse_saving(path: str) -> None:
    if _is_watched():
        raise OutsideError(f"it writes {path!r}")


def _send(original: Callable[..., Any], connection: socket.socket, *args: Any) -> Any:
    """Replacement for methods of sockets without audit events."""
    if _is_watched():
        raise OutsideError("it sends over a connection")
    return original(connection, *args)


def _input(original: Callable[..., str], prompt: object = "") -> str:
    """Replacement for `input`, which notebooks replace as well."""
    if _is_watched():
        raise OutsideError(f"it asks for input: {prompt!r}")
    return original(prompt)
