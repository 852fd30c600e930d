"""Places in Python source as the views show them: name, code, the columns that are meant, and the way there."""

from __future__ import annotations

from typing import Any

from compiler.record import Span
from explorer.reading.provenance import place_text
from explorer.reading.source_lines import SourceLines

CODE_LINES = 4


def line_spot(file: str, line: int, lines: SourceLines) -> dict[str, Any]:
    """A line by its name (`m.py:12`) and, where the record shows it, by artifact and row."""
    return {"name": place_text(file, line), "place": lines.place(file, line)}


def marks(span: Span, code: list[str], removed: int) -> list[tuple[int, int]]:
    """From and to column for each line of code, of which `removed` columns of indentation are gone."""
    if not span.end_column:
        return []
    last = max(span.end_line, span.line) - span.line
    ends = [span.end_column - removed if row == last else len(text) for row, text in enumerate(code)]
    starts = [max(span.column - removed, 0) if row == 0 else _indent(text) for row, text in enumerate(code)]
    return list(zip(starts, ends, strict=True))


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
