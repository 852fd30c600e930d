"""Convert a change of the program to edited files, with line ends and encoding kept."""

from __future__ import annotations

import ast
import io
import itertools
import linecache
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from compiler.capture.sources import is_cell
from compiler.record.break_facts import Place
from compiler.xray.library import Code, Override, is_upstream, override_at
from compiler.xray.search import Search, own_files
from compiler.xray.substitution import Change, Definition, Edit, edit_lines, parse_edited

BYTE_ORDER_MARK = "\ufeff"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class EditedFile:
    """A file or cell of the user before and after a change, with unchanged line ends and byte order mark.

    `path` is the path that Python ran, `name` the name to show. `encoding` and `data` are the encoding and the bytes of
    the file on disk; `data` is None for a cell, or if the lines on disk differ from the lines that ran.
    """

    path: str
    name: str
    before: str
    after: str
    encoding: str = "utf-8"
    data: bytes | None = None

    @property
    def is_cell(self) -> bool:
        """Whether this is a notebook cell."""
        return is_cell(self.path)


def edited_files(
    change: Change, search: Search, cells: Mapping[str, str] | None = None, calls: Sequence[Edit] = ()
) -> tuple[EditedFile, ...]:
    """The files that a change edits.

    Settings, and edits of packages, become statements after the imports of one file of the user. New functions are
    inserted after the imports of their own file. `cells` has the text of notebook cells by path, including magics.
    `calls` are edits of the user's calls.
    """
    edits = [edit for edit in change.edits if not is_upstream(edit.file)]
    edits += [edit for edit in calls if not any(edit.overlaps(own) for own in edits)]
    file = next(iter([*own_files(search), *(edit.file for edit in edits)]), "")
    own = [each.file for each in change.definitions if not is_upstream(each.file)]
    for path in dict.fromkeys([file, *own]):
        known = search.names_in(path)
        code = _definitions_code([each.text for each in change.definitions if each.file == path], known)
        if path == file:
            code = sum(_overrides(change, search, file), _settings_code(change.settings, known)) + code
        if path and code.statements:
            edits.append(_insertion(path, code, edits))
    return tuple(
        _edited_file(path, search.book.name(path), [edit for edit in edits if edit.file == path], cells or {})
        for path in dict.fromkeys(edit.file for edit in edits)
    )


def _overrides(change: Change, search: Search, file: str) -> Iterator[Code]:
    """Yield code for the user's `file` that replaces the functions of packages that a change edits."""
    edits: dict[FunctionType, tuple[Override, list[Edit]]] = {}
    for edit in change.edits:
        place = Place(edit.file, "", edit.line, edit.line, None, None)
        found = override_at(place, search.functions.get(edit.file, ())) if is_upstream(edit.file) else None
        if found is not None:
            edits.setdefault(found.function, (found, []))[1].append(edit)
    for override, own in edits.values():
        called = [each.text for each in change.definitions if is_upstream(each.file) and _is_called(each, own)]
        yield override.code(own, search.names_in(file), called) or Code()


def _is_called(definition: Definition, edits: Sequence[Edit]) -> bool:
    """Whether an edit calls a new function."""
    names = [node.name for node in ast.parse(definition.text).body if isinstance(node, ast.FunctionDef)][:1]
    return any(re.search(rf"\b{name}\(", edit.text) for edit in edits for name in names)


def _definitions_code(texts: Sequence[str], known: Mapping[str, Any]) -> Code:
    imports = () if "torch" in known or not texts else ("import torch",)
    return Code(imports, tuple("\n\n\n".join(texts).split("\n")) if texts else ())


def _settings_code(settings: Sequence[str], known: Mapping[str, Any]) -> Code:
    return Code(() if "torch" in known or not settings else ("import torch._dynamo",), tuple(settings))


def _edited_file(path: str, name: str, edits: Sequence[Edit], cells: Mapping[str, str]) -> EditedFile:
    ran = linecache.getlines(path)
    if path in cells:
        return EditedFile(path, name, cells[path], edit_text(cells[path], edits))
    data = _bytes_of(path)
    if data is not None:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        text = data.decode(encoding)
        if _without_ends(lines_of(text.removeprefix(BYTE_ORDER_MARK))) == _without_ends(ran):
            return EditedFile(path, _diff_name(path, name), text, edit_text(text, edits), encoding, data)
    text = "".join(ran)
    return EditedFile(path, name, text, edit_text(text, edits))


def _bytes_of(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError):  # a cell has no file
        return None


def _diff_name(path: str, name: str) -> str:
    """A file's path relative to the current folder, so that a diff can be applied there; `name` for files elsewhere."""
    file, here = Path(path).resolve(), Path.cwd()
    return file.relative_to(here).as_posix() if file.is_relative_to(here) else name


def lines_of(text: str) -> list[str]:
    """The lines of a source as Python counts them, each with its own end."""
    return list(io.StringIO(text, newline=""))


def _without_ends(lines: Sequence[str]) -> list[str]:
    return [line.rstrip("\r\n") for line in lines]


def edit_text(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits to the text of a file."""
    mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    return mark + "".join(edit_lines(lines_of(text.removeprefix(mark)), edits)[0])


def _insertion(file: str, code: Code, edits: list[Edit]) -> Edit:
    """An edit that inserts code after the last import at the top of a file, or before its first statement.

    An edit of the same lines is removed from `edits`; its text becomes part of the new edit.
    """
    lines, body = linecache.getlines(file), parse_edited(file).body
    top = itertools.takewhile(lambda node: not isinstance(node, _DEFINITIONS), body)
    imports = [node for node in top if isinstance(node, ast.Import | ast.ImportFrom)]
    if imports:
        first, last = imports[-1].lineno, imports[-1].end_lineno or imports[-1].lineno
    else:
        first = last = _first_line(body)
    same = next((edit for edit in edits if edit.file == file and edit.line <= last and first <= edit.end_line), None)
    if same is not None:
        edits.remove(same)
        first, last = same.line, same.end_line
    kept = same.text if same is not None else "".join(lines[first - 1 : last]).rstrip("\n")
    new = "\n".join([*code.imports, "", *code.statements])
    return Edit(file, first, last, f"{kept}\n{new}" if imports else f"{new.lstrip()}\n\n{kept}")


def _first_line(body: Sequence[ast.stmt]) -> int:
    """Line of a file's first statement after the docstring, or of its first decorator; 1 if there is no statement."""
    statements = [node for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if not statements:
        return 1
    decorators = getattr(statements[0], "decorator_list", [])
    return min(node.lineno for node in (statements[0], *decorators))
