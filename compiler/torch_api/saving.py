"""Observe or discard the checkpoints that torch writes; torch.save opens files in C++, without an audit event."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
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
def discard_saved(note: Callable[[str, str], None]) -> Iterator[None]:
    """In the block, torch.save writes nothing to a path, and torch.distributed.checkpoint neither writes nor reads.

    Each call is noted: `note("torch.save", path)`. Open file objects are written to.
    """
    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
    from torch.distributed.checkpoint.metadata import Metadata

    def write_nothing(original: Function, target: Any) -> Any:
        if not isinstance(target, str | os.PathLike):
            return original(target)
        note("torch.save", os.fspath(target))
        return original(_Nowhere())

    def save_nothing(original: Function, *args: Any, **options: Any) -> Metadata:
        given = signature(original).bind(*args, **options).arguments
        note("torch.distributed.checkpoint.save", _path_of(given["storage_writer"]))
        return Metadata(state_dict_metadata={})

    def load_nothing(original: Function, *args: Any, **options: Any) -> None:
        given = signature(original).bind(*args, **options).arguments
        note("torch.distributed.checkpoint.load", _path_of(given["storage_reader"]))

    with (
        replace_attribute(torch.serialization, "_open_zipfile_writer", call_instead(write_nothing)),
        replace_attribute(state_dict_saver, "_save_state_dict", call_instead(save_nothing)),
        replace_attribute(state_dict_loader, "_load_state_dict", call_instead(load_nothing)),
    ):
        yield


def _path_of(storage: Any) -> str:
    """Where a checkpoint's writer or reader stores files; the name of its class if it has no path."""
    return str(getattr(storage, "path", type(storage).__name__))


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing of what is written to it."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)
