"""Observe or discard what torch.save writes: torch opens files in C++, so Python raises no audit event."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from compiler.torch_api.patching import Function, call_before, call_instead, replace_attribute


@contextmanager
def call_before_saving(hook: Callable[[str], None]) -> Iterator[None]:
    """In the block, call `hook(path)` before torch.save writes to a path; open file objects are ignored."""

    def note(target: Any) -> None:
        if isinstance(target, str | os.PathLike):
            hook(os.fspath(target))

    with replace_attribute(torch.serialization, "_open_zipfile_writer", call_before(note)):
        yield


@contextmanager
def discard_saved(note: Callable[[str], None]) -> Iterator[None]:
    """In the block, torch.save writes nothing to a path, and calls `note(path)`; open file objects are written to."""

    def write_nothing(original: Function, target: Any) -> Any:
        if not isinstance(target, str | os.PathLike):
            return original(target)
        note(os.fspath(target))
        return original(_Nowhere())

    with replace_attribute(torch.serialization, "_open_zipfile_writer", call_instead(write_nothing)):
        yield


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing of what is written to it."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)
