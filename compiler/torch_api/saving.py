"""Observe which files torch.save writes: torch opens them in C++, so Python raises no audit event."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from compiler.torch_api.patching import call_before, replace_attribute


@contextmanager
def call_before_saving(hook: Callable[[str], None]) -> Iterator[None]:
    """In the block, call `hook(path)` before torch.save writes to a path; open file objects are ignored."""

    def note(target: Any) -> None:
        if isinstance(target, str | os.PathLike):
            hook(os.fspath(target))

    with replace_attribute(torch.serialization, "_open_zipfile_writer", call_before(note)):
        yield
