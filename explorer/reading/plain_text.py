"""Helpers for plain text: align columns, split lines, clip lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

WIDTH = 100


def clip(text: str, width: int) -> str:
    """Clip text to `width` characters; `…` marks the cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


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
