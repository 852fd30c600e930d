"""A change of the program as a patch: a unified diff of the user's files or cell."""

from __future__ import annotations

import ast
import difflib
import linecache
from collections.abc import Sequence

from compiler.xray.search import Search
from compiler.xray.substitution import Change, Edit, edit_lines, parse_edited


def patch_of(change: Change, search: Search) -> str:
    """A change as a unified diff; "" if it changes nothing."""
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for name, (before, after) in patched_files(change, search).items()
        for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    )


def patched_files(change: Change, search: Search) -> dict[str, tuple[list[str], list[str]]]:
    """Lines of each changed file before and after the change, by file name. Settings are added after the imports."""
    edits = list(change.edits)
    first = next((search.book.path(site.file) for site in search.sites), "")
    if change.settings and first:
        edits = _with_settings(edits, first, change.settings)
    found = {}
    for file in dict.fromkeys(edit.file for edit in edits):
        lines = linecache.getlines(file)
        found[search.book.name(file)] = lines, edit_lines(lines, [edit for edit in edits if edit.file == file])[0]
    return found


def _with_settings(edits: list[Edit], file: str, settings: Sequence[str]) -> list[Edit]:
    """Add an edit that inserts settings after the last import of a file, or at its start."""
    lines = linecache.getlines(file)
    imports = [node for node in parse_edited(file).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    statements = ["import torch._dynamo", *settings] if "torch" not in names else list(settings)
    if not imports:
        return [*edits, Edit(file, 1, 1, "\n".join([*statements, lines[0].rstrip("\n")]))]
    line = imports[-1].end_lineno or imports[-1].lineno
    text = "".join(lines[imports[-1].lineno - 1 : line]).rstrip("\n")
    return [*edits, Edit(file, imports[-1].lineno, line, "\n".join([text, "", *statements]))]
