"""Learn of files that torch.save writes: torch opens them in C++, without an audit event of Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from compiler.torch_api.patching import call_before, replace_attribute


@contextmanager
def call_before_saving(hook: Callable[[str], None]) -> Iterator[None]:
    """In the block, call `hook(path)` before torch.save writes a file; files that are already open don't count."""

    def note(target: Any) -> None:
        if isinstance(target, str | os.PathLike):
            hook(os.fspath(target))

    with replace_attribute(torch.serialization, "_open_zipfile_writer", call_before(note)):
        yield
