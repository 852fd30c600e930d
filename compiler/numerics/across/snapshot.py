"""The values of a call's operations in a file: whole tensors if small, else bounds and means of blocks and samples.

A file is a zip archive of NumPy arrays and a JSON header. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from compiler.numerics.policy.judge import name_of, real

SCHEMA: Final = 1
WHOLE: Final = 2048
"""Tensors of at most this many elements are kept whole."""
BLOCKS, SAMPLES = 256, 512
"""Of a larger tensor: the least, the largest and the mean number of each block, and single numbers at equal steps."""
MOST_NUMBERS: Final = 4_000_000
"""Numbers in a file; of calls with many operations, smaller tensors are cut down to blocks."""
MOST_BYTES: Final = 512 * 2**20
MOST_OPERATIONS: Final = 50_000
_HEADER = "header.json"
_KINDS = "fiub"


class SnapshotError(ValueError):
    """Raised for a file that holds no values of a call, or too many; the message is one line."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, input or result of a call, and where it is in the user's code.

    `kind` is "input", "operation", "result" or "gradient". `op` is the operation's name, of an input its source.
    `inputs` are ids. `graph` and `node` are those of an operation or an input, "" for a result. `is_whole` is whether
    all values are kept. `largest` is the largest finite magnitude.
    """

    id: str
    kind: str
    op: str
    module: str = ""
    file: str = ""
    line: int = 0
    code: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    draws: bool = False
    is_whole: bool = True
    largest: float = 0.0
    not_finite: int = 0
    graph: str = ""
    node: str = ""

    @property
    def place(self) -> str:
        return ", ".join(filter(None, [f"{self.file}:{self.line}" if self.file else "", self.module]))


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a whole run: its title, how it was run, and its operations in order."""

    title: str
    settings: dict[str, str]
    operations: tuple[Operation, ...]
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Snapshot:
    """A run: its header, and the values of each operation by id; `exact` are those in float64, where they are known."""

    header: Header
    values: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    exact: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The content of the file."""
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_HEADER, msgspec.json.encode(self.header))
            for number, operation in enumerate(self.header.operations):
                for folder, known in (("values", self.values), ("exact", self.exact)):
                    if operation.id in known:
                        array = io.BytesIO()
                        np.save(array, known[operation.id], allow_pickle=False)
                        archive.writestr(f"{folder}/{number}.npy", array.getvalue())
        return data.getvalue()

    @classmethod
    def load(cls, path: Path) -> Snapshot:
        """Read a file that `to_bytes` made. Raises SnapshotError for any other, OSError if it can't be read."""
        try:
            with zipfile.ZipFile(path) as archive:
                return cls._read(archive, path)
        except (zipfile.BadZipFile, msgspec.MsgspecError, EOFError, KeyError, NotImplementedError) as error:
            raise SnapshotError(
                f"{path} has no values of a call: {error}; tcompile numerics save writes such files"
            ) from None

    @classmethod
    def _read(cls, archive: zipfile.ZipFile, path: Path) -> Snapshot:
        entries = archive.infolist()
        if sum(each.file_size for each in entries) > MOST_BYTES or len(entries) > 2 * MOST_OPERATIONS + 1:
            raise SnapshotError(f"{path} is too large: at most {MOST_BYTES / 1e6:.0f} MB of values are read")
        header = msgspec.json.decode(archive.read(_HEADER), type=Header)
        if header.schema != SCHEMA:
            raise SnapshotError(f"{path} has schema {header.schema}; this version of tcompile reads schema {SCHEMA}")
        ids = [each.id for each in header.operations]
        if len(set(ids)) != len(ids):
            raise SnapshotError(f"{path} names an operation twice")
        names = {each.filename for each in entries}
        arrays: dict[str, dict[str, np.ndarray[Any, Any]]] = {"values": {}, "exact": {}}
        for number, name in enumerate(ids):
            for folder, known in arrays.items():
                if (entry := f"{folder}/{number}.npy") in names:
                    known[name] = _array_of(archive.read(entry), path)
        return cls(header, arrays["values"], arrays["exact"])


def _array_of(data: bytes, path: Path) -> np.ndarray[Any, Any]:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError as error:
        raise SnapshotError(f"{path} has an array that can't be read: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in _KINDS:
        raise SnapshotError(f"{path} has an array that is no row of numbers")
    return array


def kept_values(value: Tensor, whole: int) -> np.ndarray[Any, Any]:
    """What is kept of a tensor: all numbers if there are at most `whole`, else blocks and samples, in its dtype."""
    flat = _plain(value).reshape(-1)
    if flat.numel() <= whole:
        return _numbers(flat)
    step = max(flat.numel() // SAMPLES, 1)
    blocks = torch.tensor_split(flat, BLOCKS)
    bounds = [torch.stack([block.amin(), block.amax(), _mean(block)]) for block in blocks]
    return _numbers(torch.cat([torch.stack(bounds).reshape(-1), flat[::step][:SAMPLES]]))


def _mean(block: Tensor) -> Tensor:
    if block.is_floating_point():
        return block.double().mean().to(block.dtype)
    return block.sum().to(block.dtype)


def _plain(value: Tensor) -> Tensor:
    """A tensor on the CPU as real numbers, narrow ones as float32, which holds them exactly; booleans as integers."""
    value = real(value.to_dense() if value.layout != torch.strided else value)
    if value.is_floating_point():
        return value if value.dtype == torch.float64 else value.float()
    return value.to(torch.int64)


def _numbers(flat: Tensor) -> np.ndarray[Any, Any]:
    return flat.contiguous().numpy()


def facts_of_tensor(value: Tensor) -> dict[str, Any]:
    """The facts of a tensor that an `Operation` has."""
    plain = _plain(value)
    finite = plain[plain.isfinite()]
    return {
        "dtype": name_of(value.dtype),
        "shape": tuple(map(int, value.shape)),
        "largest": float(finite.abs().max()) if finite.numel() else 0.0,
        "not_finite": plain.numel() - finite.numel(),
    }
