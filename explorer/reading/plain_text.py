"""Pieces of plain text: columns, lines, clipped lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

WIDTH = 100


def clip(text: str, width: int) -> str:
    """The text in at most `width` characters, with `…` where it was cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Rows of cells as aligned lines, two spaces between; the columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [str.rjust if index in right else str.ljust for index in range(len(widths))]
    return ["  ".join(map(_pad, aligned, row, widths)).rstrip() for row in rows]


def _pad(align: Callable[[str, int], str], cell: str, width: int) -> str:
    return align(cell, width)


def text_lines(text: str) -> list[str]:
    """The lines that `Artifact.lines` counts: only a newline ends one."""
    return text.removesuffix("\n").split("\n")
