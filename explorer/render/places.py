"""Document parts for locations in Python source: links to lines, code, call chains, suggested changes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from compiler.capture.function_names import function_name
from compiler.record import Span, Suggestion
from explorer.reading.cause import rewritten_lines
from explorer.reading.provenance import place_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Change, Code, Link, Step, Way

CODE_LINES = 4


def line_link(file: str, line: int, lines: SourceLines) -> Link:
    """Link to a line, named `m.py:12`; plain words if the record does not show the line."""
    name = place_text(file, line)
    return Link(name, row=lines.place(file, line), title=f"Show {name}")


def span_code(span: Span, lines: SourceLines, most: int = CODE_LINES) -> Code:
    """Code of a span's whole lines, with the span's column range marked in each."""
    whole = lines.code(span.file, span.line, min(span.end_line, span.line + most - 1))
    code = textwrap.dedent("\n".join(whole)).split("\n") if whole else span.code.splitlines()[:most]
    removed = len(whole[0]) - len(code[0]) if whole else 0
    return Code(tuple(code), tuple(marks(span, code, removed)) if whole else ())


def way(chain: Sequence[Span], meant: Span | None, lines: SourceLines) -> Way:
    """The chain of calls that leads to a place; `meant` is the user's own line."""
    return Way(tuple(_step(span, span == meant, lines) for span in chain))


def _step(span: Span, is_meant: bool, lines: SourceLines) -> Step:
    place, name = line_link(span.file, span.line, lines), function_name(span.function)
    if is_meant:
        full = f"{span.file}:{span.line}:{span.column + 1} in {span.function}"
        return Step(place, name, span_code(span, lines), full, span.code)
    how = "through" if span.installed else "called in"
    code = span_code(span, lines, 1)
    return Step(place, name, code, f"{span.file}:{span.line}", span.code, how)


def change_part(suggestion: Suggestion, label: str, lines: SourceLines) -> Change:
    """Suggested change; a rewrite includes the lines it replaces."""
    rewrite = bool(suggestion.rewrite)
    first, last = suggestion.line, suggestion.end_line
    return Change(
        label,
        advice_sentence(suggestion),
        suggestion.applicability,
        line_link(suggestion.file, first, lines) if rewrite else None,
        rewritten_lines(suggestion) if rewrite else "",
        lines.code(suggestion.file, first, last) if rewrite else (),
        tuple(suggestion.rewrite.splitlines()),
        (*suggestion.settings, *(line for text in suggestion.definitions for line in text.split("\n"))),
    )


def advice_sentence(suggestion: Suggestion) -> str:
    """A suggestion's advice as a full sentence, followed by its caveat if it has one."""
    text = suggestion.text.removeprefix("Or ")
    return f"{text[:1].upper()}{text[1:]} {suggestion.caveat}".rstrip()


def marks(span: Span, code: list[str], removed: int) -> list[tuple[int, int]]:
    """Column range of a span in each line of `code`, which has lost `removed` columns of indentation; [] if unknown."""
    if not span.end_column:
        return []
    last = max(span.end_line, span.line) - span.line
    ends = [span.end_column - removed if row == last else len(text) for row, text in enumerate(code)]
    starts = [max(span.column - removed, 0) if row == 0 else _indent(text) for row, text in enumerate(code)]
    return list(zip(starts, ends, strict=True))


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
