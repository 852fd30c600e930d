"""Mark the line of Python of each eager torch call for the profiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

MARK = "tcompile line "

Chain = tuple[str, ...]
"""Ids of source lines, outermost first: a line, and before it those that called it."""


class MarkedLines(TorchFunctionMode):
    """Puts each torch call into a profiler range named `MARK` and a number, its index in `chains`.

    Lines are those of `files` (paths with their names in the record), up to the frame of `outermost`.
    """

    def __init__(self, files: Mapping[str, str], outermost: CodeType) -> None:
        super().__init__()
        self.chains: list[Chain] = []
        self._files = files
        self._outermost = outermost
        self._known: dict[Chain, int] = {}

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_getter(function):
            return function(*args, **(kwargs or {}))
        number = self._number(self._chain(sys._getframe(1)))
        with torch.profiler.record_function(f"{MARK}{number}"):
            return function(*args, **(kwargs or {}))

    def _number(self, chain: Chain) -> int:
        if chain not in self._known:
            self._known[chain] = len(self.chains)
            self.chains.append(chain)
        return self._known[chain]

    def _chain(self, frame: FrameType | None) -> Chain:
        lines: list[str] = []
        while frame is not None and frame.f_code is not self._outermost:
            if (name := self._files.get(frame.f_code.co_filename)) is not None:
                lines.append(line_id(name, frame.f_lineno))
            frame = frame.f_back
        return tuple(reversed(lines))


def line_id(name: str, number: int) -> str:
    """The id of a line's entity; `name` is the file's name in the record."""
    return f"source[{name}].L{number}"


def _is_getter(function: Callable[..., Any]) -> bool:
    """Whether a torch function reads an attribute, as `x.shape` does: that is no work."""
    return getattr(function, "__name__", "") == "__get__"
