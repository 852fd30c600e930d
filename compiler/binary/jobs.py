"""Messages to and from a worker process: JSON in frames.

A frame is the length of the content in bytes (8 bytes, little-endian), followed by the content.
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

    For the arguments, see `CompileRequest`. `backend` ("cuda", "hip"), `architecture` (90, "gfx942") and `warp_size`
    are those of Triton's GPUTarget. With `to_run`, the output is the binary instead of the stages' texts. With
    `with_passes` it also has what each pass changed, and the layouts of the kernel's tensors.
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
    with_passes: bool = False

    def key(self) -> str:
        """Cache key: equal for jobs with the same result."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


@dataclass(frozen=True, slots=True)
class PassFacts:
    """What one MLIR pass changed: lines removed and added, and how many more of each operation there are.

    `pipeline` is the stage that the pass helps to make ("ttgir"), `name` its class, `argument` its name in a pipeline,
    `part` a step inside of it. `rows` are a diff without its last `cut` rows, `places` their kernel lines (0: none).
    The lines of long code are counted, but not `compared`. A pass that `failed` ended the compilation.
    """

    pipeline: str
    name: str
    argument: str
    part: str = ""
    removed: int = 0
    added: int = 0
    operations: dict[str, int] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    cut: int = 0
    compared: bool = True
    failed: bool = False

    @property
    def is_change(self) -> bool:
        return bool(self.removed or self.added)


@dataclass(frozen=True, slots=True)
class LayoutFacts:
    """The layout of tensors of one type: for each bit of the hardware's indices, the element that it moves to.

    `type` is the tensor's type with its layout, `shape` what the layout covers. `bases` has a list for "register",
    "lane", "warp" and "block", or for "offset" in memory, or "row" and "column" in tensor memory. Its element `i` are
    the coordinates for index 2**i; indices combine by exclusive or. `values` are values of this type, with their kernel
    lines. `problem` says why there are no bases.
    """

    type: str
    shape: tuple[int, ...]
    bases: dict[str, list[list[int]]]
    count: int
    values: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """A job's result: text by stage, up to a failure, and the tools' facts about the machine code.

    `registers` and `spill_bytes` are per thread; `shared_memory` (bytes), `tensor_memory` (columns, on Blackwell) and
    `threads` are per block; None means not available. `error` is "" on success, else the failing tool's message.
    `binary` is set if the job has `to_run`. Then `function` is the name of the function in the binary, and `spare` the
    number of additional pointers after the function's arguments, which may be null. `scheduled` is the TTGIR before the
    pass that pipelines loops.
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
    passes: tuple[PassFacts, ...] = ()
    layouts: tuple[LayoutFacts, ...] = ()
    scheduled: str = ""


def one_function(module: str, first: int, lines: tuple[int, int]) -> str:
    """Source of one function of a module: the shared lines before `first`, and the function's own lines.

    The other functions are left out, as Triton would spend time on parsing them.
    """
    rows = module.split("\n")
    return "\n".join([*rows[: first - 1], *rows[lines[0] - 1 : lines[1]]]) + "\n"


def write(stream: IO[bytes], message: Job | Output) -> None:
    """Write a message. Raises BrokenPipeError if the other process has ended."""
    content = msgspec.json.encode(message)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def read(stream: IO[bytes], kind: type[_Message]) -> _Message | None:
    """Read the next message; None if the other process has ended, even within a message."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    content = stream.read(length)
    return msgspec.json.decode(content, type=kind) if len(content) == length else None
