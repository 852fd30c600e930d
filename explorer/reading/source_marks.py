"""Marks in the source view: the graphs of each line, lines run as plain Python, graph breaks, inlined calls,
and DTensors.

Rows count the lines of a source artifact's text, from 1. All values are plain JSON, for the manifest.
"""

from __future__ import annotations

import io
import itertools
import re
import tokenize
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from compiler.capture.sources import GAP, function_around
from compiler.record import Frame, Record, Span
from explorer.reading.placements import placed_lines
from explorer.reading.source_lines import Place, SourceLines

Function = tuple[str, int, int]
"""A source artifact's id, and the first and last row of a function in it."""
_DEFINED = re.compile(r"\s*(?:async\s+)?def\s+(\w+)")
_CLASS = re.compile(r"\s*class\s+(\w+)")
_MAY_BE_LEFT_OUT = re.compile(r"\b(?:if|else|and|or|for|lambda|await|yield)\b")
"""Keywords that may cause a part of an expression to be skipped."""


def source_marks(record: Record) -> dict[str, Any]:
    """All marks of a record's source lines: kind of mark -> source artifact -> marks."""
    return {
        "landed": landed_lines(record),
        "plain": plain_lines(record),
        "spans": break_spans(record),
        "calls": inlined_calls(record),
        "placed": placed_lines(record),
    }


# Graphs


def landed_lines(record: Record) -> dict[str, dict[str, list[int]]]:
    """Source artifact -> graph -> rows with code in that captured graph."""
    rows = rows_of_lines(record)
    texts = {artifact.id: artifact.text for artifact in record.of_stage("source")}
    lines, frames = SourceLines(record), {name: frame for frame in record.frames for name in frame.graphs}
    landed: dict[str, dict[str, list[int]]] = {}
    for artifact in record.of_stage("captured"):
        function = function_of(frames.get(artifact.id), lines, texts)
        calls = (entity for entity in artifact.entities if entity.kind == "call")
        stacks = ([rows[name] for name in call.origins if name in rows] for call in calls)
        places = {place for stack in stacks for place in drop_callers(stack, function)}
        places |= {(source, more) for source, row in places for more in continuation_rows(texts[source], row)}
        for source, row in sorted(places):
            landed.setdefault(source, {}).setdefault(artifact.graph, []).append(row)
    return landed


def rows_of_lines(record: Record) -> dict[str, Place]:
    """Source line id -> its artifact and row."""
    return {
        name: (artifact.id, row)
        for artifact in record.of_stage("source")
        for row, names in artifact.lines.items()
        for name in names
    }


def function_of(frame: Frame | None, lines: SourceLines, texts: Mapping[str, str]) -> Function | None:
    """Artifact and rows of a frame's function; None if it is not shown."""
    place = lines.place(frame.file, frame.line) if frame else None
    found = function_in(texts[place[0]], place[1]) if place else None
    return (place[0], found[0], found[1]) if place and found else None


def drop_callers(stack: list[Place], function: Function | None) -> list[Place]:
    """Drop the callers of the captured function from a call's stack, as they are in no graph.

    Returns the whole stack if the function is not in it, as for a module of torch.nn.
    """
    if function is None:
        return stack
    source, first, last = function
    own = (index for index, (artifact, row) in enumerate(stack) if artifact == source and first <= row <= last)
    return stack[next(own, 0) :]


@lru_cache(maxsize=4096)
def continuation_rows(text: str, row: int) -> tuple[int, ...]:
    """Rows that continue a row's expression with only names, numbers and operators.

    Such a row has no bytecode instruction of its own. A row with a call has one, if the call ran.
    """
    lines = text.splitlines()
    rows = []
    for last in range(row, _end_of_brackets(lines, row)):
        code = lines[last].split("#")[0]
        if _MAY_BE_LEFT_OUT.search(code) or code.count("(") > code.count(")"):
            break
        if "(" not in code:
            rows.append(last + 1)
    return tuple(rows)


def _end_of_brackets(lines: list[str], row: int) -> int:
    """Last row of the brackets that are open at the end of a row; the row itself if none is open."""
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines[row - 1 :])).readline):
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
            if token.type in (tokenize.NEWLINE, tokenize.NL) and depth <= 0:
                return row - 1 + token.start[0]
    except (tokenize.TokenError, SyntaxError):
        pass  # a file shown in excerpts may end inside brackets
    return row


# Plain Python


def plain_lines(record: Record) -> dict[str, list[int]]:
    """Source artifact -> rows that are known to have run as plain Python."""
    lines = SourceLines(record)
    places = {lines.place(frame.file, line) for frame in record.frames for line in frame.plain}
    found: dict[str, list[int]] = {}
    for artifact, row in sorted(place for place in places if place is not None):
        found.setdefault(artifact, []).append(row)
    return found


# Breaks


def break_spans(record: Record) -> dict[str, list[list[Any]]]:
    """Source artifact -> `[row, from, to, break, culprit]`: columns, from 0, of code that ended a graph, or of a call
    that led to it. -1 stands for the end of the line.
    """
    lines = SourceLines(record)
    found: dict[str, list[list[Any]]] = {}
    for broken in record.breaks:
        for span in broken.chain:
            place = lines.place(span.file, span.line)
            if place is not None:
                marks = [
                    [row, *columns, broken.id, span is broken.chain[-1]]
                    for row, columns in _rows(span, place[1], lines)
                ]
                found.setdefault(place[0], []).extend(marks)
    return found


def _rows(span: Span, first: int, lines: SourceLines) -> Iterator[tuple[int, tuple[int, int]]]:
    """Rows of a span and the columns in each, without indentation; the whole line if the columns are unknown."""
    if not span.end_column:
        yield first, (0, -1)
        return
    last = first + max(span.end_line - span.line, 0)
    yield first, (span.column, span.end_column if last == first else -1)
    for row, text in enumerate(lines.code(span.file, span.line, span.end_line)[1:], first + 1):
        if text.strip():
            yield row, (len(text) - len(text.lstrip()), span.end_column if row == last else -1)


# Calls


def inlined_calls(record: Record) -> dict[str, dict[int, list[list[Any]]]]:
    """Source artifact -> row -> the functions that were inlined or compiled when the row called them, in order. Each
    function is a list of artifact, first row, last row and name.
    """
    rows = rows_of_lines(record)
    texts = {artifact.id: artifact.text for artifact in record.of_stage("source")}
    calls: dict[str, dict[int, list[list[Any]]]] = {}
    for caller, called in dict.fromkeys(called_lines(record)):
        if caller not in rows or called not in rows:
            continue
        (source, row), (target, inner) = rows[caller], rows[called]
        function = function_in(texts[target], inner)
        if function is None or (source == target and function[0] <= row <= function[1]):
            continue
        known = calls.setdefault(source, {}).setdefault(row, [])
        if [target, *function] not in known:
            known.append([target, *function])
    return calls


def called_lines(record: Record) -> Iterator[tuple[str, str]]:
    """Yield pairs of line ids: a calling line, and a line of the called function."""
    for artifact in record.of_stage("source"):
        for caller, called in artifact.attrs.get("calls", {}).items():
            yield from ((caller, inner) for inner in called)
    lines = SourceLines(record)
    for broken in record.breaks:
        yield from itertools.pairwise(lines.id_of(span.file, span.line) for span in broken.chain)
    for frame in record.frames:
        if frame.called_at is not None:
            yield lines.id_of(frame.called_at.file, frame.called_at.line), lines.id_of(frame.file, frame.line)


@lru_cache(maxsize=4096)
def function_in(text: str, row: int) -> tuple[int, int, str] | None:
    """First row, last row and name of the function around a row; None at the top level."""
    lines = ["" if line == GAP else line for line in text.splitlines()]
    if lines[row - 1].lstrip().startswith("@"):  # a decorator belongs to its function
        row = next((below for below in range(row, len(lines) + 1) if _DEFINED.match(lines[below - 1])), row)
    found = function_around(lines, row)
    if found is None:
        return None
    for at in range(found[0], found[1] + 1):
        if name := _DEFINED.match(lines[at - 1]):
            return (*found, f"{_class_around(lines, at)}{name[1]}")
    return (*found, "")


def _class_around(lines: list[str], row: int) -> str:
    """Class prefix of a method: `Block.` for a method of `Block`, "" for a function."""
    indent = _indent(lines[row - 1])
    outer = next((line for line in reversed(lines[: row - 1]) if line.strip() and _indent(line) < indent), "")
    found = _CLASS.match(outer)
    return f"{found[1]}." if found else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
