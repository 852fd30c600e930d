"""Suggested changes as a unified diff, made from the source lines of a record alone: no file is read."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from compiler.record import Artifact, Record, Suggestion

_HUNK = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Change = tuple[int, int, list[str]]
"""First and last line to replace (the last is one less than the first for an insertion), and the new lines."""


def edit_diff(record: Record, suggestions: Sequence[Suggestion], paths: Mapping[str, str]) -> str:
    """The unified diff of suggestions; "" if one of them is only words, edits a package, or needs lines not recorded.

    `paths` are the paths to write above the diff, by the record's names of files.
    """
    if not suggestions or not all(each.can_be_applied for each in suggestions):
        return ""
    sources = {
        artifact.title: artifact for artifact in record.of_stage("source") if not artifact.attrs.get("installed")
    }
    home = next((each.file for each in suggestions if each.file), next(iter(sources), ""))
    changes: dict[str, list[Change]] = {}
    for each in suggestions:
        file = each.file or home
        if each.rewrite:
            changes.setdefault(file, []).append((each.line, each.end_line or each.line, each.rewrite.split("\n")))
        new = [*each.settings, *(line for text in each.definitions for line in ["", "", *text.split("\n")])]
        if new:
            at = _end_of_imports(sources.get(file))
            if at is None:
                return ""
            known = "torch" in _imported_names(sources[file]) or not any("torch" in line for line in new)
            changes.setdefault(file, []).append((at + 1, at, [*([] if known else ["import torch"]), *new]))
    if any(file not in sources for file in changes):
        return ""
    return "".join(_file_diff(sources[file], changes[file], paths.get(file, file)) for file in changes)


def _lines(artifact: Artifact) -> dict[int, str]:
    """The recorded lines of a file, by number; 0 is a gap."""
    texts = artifact.text.removesuffix("\n").split("\n")
    numbers = artifact.attrs.get("numbers") or range(1, len(texts) + 1)
    return {number: text for number, text in zip(numbers, texts, strict=False) if number}


def _tree(artifact: Artifact | None) -> ast.Module | None:
    """The syntax tree of a file; None if the record lacks some of its lines, or they can't be parsed."""
    if artifact is None or list(_lines(artifact)) != list(range(1, len(_lines(artifact)) + 1)):
        return None
    try:
        return ast.parse(artifact.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _end_of_imports(artifact: Artifact | None) -> int | None:
    """The last line of the imports at the top of a file, 0 if there are none; None if it is not known."""
    tree = _tree(artifact)
    if tree is None:
        return None
    found = 0
    for node in tree.body:
        if isinstance(node, _DEFINITIONS):
            break
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and not found
        if isinstance(node, ast.Import | ast.ImportFrom) or is_docstring:
            found = node.end_lineno or node.lineno
    return found


def _imported_names(artifact: Artifact) -> set[str]:
    tree = _tree(artifact)
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in (tree.body if tree else ())
        if isinstance(node, ast.Import)
        for alias in node.names
    }


def _file_diff(artifact: Artifact, changes: Sequence[Change], path: str) -> str:
    """The diff of one file, from each run of recorded lines; "" if a line to change is not recorded."""
    known = _lines(artifact)
    if not all(number in known for first, last, _ in changes for number in range(first, last + 1)):
        return ""
    tab = "\t" if " " in path else ""  # where a name with spaces ends, for git and patch
    text, shift = [f"--- a/{path}{tab}\n+++ b/{path}{tab}\n"], 0
    for start, run in _runs(known):
        own = [each for each in changes if start <= each[0] <= start + len(run)]
        new = list(run)
        for first, last, lines in sorted(own, reverse=True, key=lambda each: each[:2]):
            new[first - start : last + 1 - start] = lines
        hunks = list(difflib.unified_diff(run, new, lineterm=""))[2:]
        text += [f"{_move_header(line, start - 1, shift)}\n" for line in hunks]
        shift += len(new) - len(run)
    return "".join(text)


def _runs(known: Mapping[int, str]) -> Iterator[tuple[int, list[str]]]:
    """Runs of consecutive lines: the number of the first, and their texts."""
    for _, run in groupby(enumerate(sorted(known)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        yield numbers[0], [known[number] for number in numbers]


def _move_header(line: str, before: int, shift: int) -> str:
    """A hunk's header for lines that begin further down in the file; other lines are returned as they are."""
    found = _HUNK.fullmatch(line)
    if found is None:
        return line
    first, second = int(found[1]) + before, int(found[3]) + before + shift
    return f"@@ -{first}{found[2] or ''} +{second}{found[4] or ''} @@"
