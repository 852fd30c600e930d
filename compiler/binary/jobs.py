"""Messages to and from a worker process: plain data, as JSON in frames.

A frame is the number of bytes that follow (8 bytes, little-endian), and these.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

import msgspec

_LENGTH = struct.Struct("<Q")
_Message = TypeVar("_Message")


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel to compile: its function's name, source and file name, and Triton's arguments.

    See `CompileRequest` for the latter. `backend` ("cuda", "hip"), `architecture` (90, "gfx942") and `warp_size`
    are those of triton's GPUTarget. With `to_run` the binary is wanted, and no texts.
    """

    name: str
    file: str
    source: str
    arguments: str
    options: dict[str, Any]
    backend: str
    architecture: int | str
    warp_size: int
    to_run: bool = False

    def key(self) -> str:
        """Equal for jobs whose result is the same."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


@dataclass(frozen=True, slots=True)
class Output:
    """A job's result: text by stage, as far as it came, and the tools' facts of the machine code.

    `registers` and `spill_bytes` are those of one thread, `shared_memory` (bytes), `tensor_memory` (columns of a
    Blackwell multiprocessor's) and `threads` of one block; None for what could not be had. `error` is "" on
    success, else what the failing tool said. `binary` is there where it was asked for, with the function's name in
    it, and the number of pointers that follow its arguments and may be null.
    """

    texts: dict[str, str] = field(default_factory=dict)
    registers: int | None = None
    spill_bytes: int | None = None
    shared_memory: int | None = None
    tensor_memory: int | None = None
    threads: int = 0
    error: str = ""
    binary: bytes = b""
    function: str = ""
    spare: int = 0


def one_function(module: str, first: int, lines: tuple[int, int]) -> str:
    """A module's function on these lines, below the lines before `first`, which all share.

    Reading more takes Triton time.
    """
    rows = module.split("\n")
    return "\n".join([*rows[: first - 1], *rows[lines[0] - 1 : lines[1]]]) + "\n"


def write(stream: IO[bytes], message: Job | Output) -> None:
    """Write a message. Raises BrokenPipeError if the other side has ended."""
    content = msgspec.json.encode(message)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def read(stream: IO[bytes], kind: type[_Message]) -> _Message | None:
    """The next message; None if the other side has ended, even in the middle of a message."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    content = stream.read(length)
    return msgspec.json.decode(content, type=kind) if len(content) == length else None
