"""Helpers for plain text: align columns, split lines, clip lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

WIDTH = 100
#: Characters between the words of a name.
_MARKS = "_./: "
_WORD = re.compile(f"[{_MARKS}][^{_MARKS}]")


def clip(text: str, width: int) -> str:
    """Clip text to `width` characters; `…` marks the cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def clip_name(name: str, width: int) -> str:
    """Clip a name in its middle, between words where possible, because kernels' names differ at their end."""
    if len(name) <= width:
        return name
    end = name[len(name) - int(width * 0.45) :]
    boundary = _WORD.search(end)
    end = end[boundary.start() :] if boundary else end
    start = name[: width - 1 - len(end)]
    words = start[: max(start.rfind(mark) for mark in _MARKS) + 1]
    return f"{words if 2 * len(words) > len(start) else start}…{end}"


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Align rows of cells, two spaces between columns; the columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [str.rjust if index in right else str.ljust for index in range(len(widths))]
    return ["  ".join(map(_pad, aligned, row, widths)).rstrip() for row in rows]


def _pad(align: Callable[[str, int], str], cell: str, width: int) -> str:
    return align(cell, width)


def text_lines(text: str) -> list[str]:
    """Split text into lines as `Artifact.lines` counts them: only a newline ends a line."""
    return text.removesuffix("\n").split("\n")
