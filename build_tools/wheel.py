"""Hatchling build hook: build a wheel with `tcompile` as its only top-level package.

In a clone, `compiler/`, `explorer/` and `tcompile/` are three sibling packages. In the wheel the first two are inside
the third, so that site-packages gets no name that other packages may use. They import each other by absolute names,
which this hook rewrites: `from compiler.record import Record` becomes `from tcompile.compiler.record import Record`. A
string that is a module's name ("compiler.engine") is rewritten too.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OUTER = "tcompile"
MOVED = ("compiler", "explorer")
_FROM = re.compile(rf"from\s+(?=(?:{'|'.join(MOVED)})\b)".encode())
_PROGRAM = re.compile(rf"\b(from|import)\s+({'|'.join(MOVED)})\b")


class RewriteError(ValueError):
    """A reference to a moved package that this hook can't rewrite; the message has the location."""


class WheelHook(BuildHookInterface[Any]):
    """Write the rewritten tree to a temporary folder, and have hatchling add it to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is built. An editable install keeps the clone's layout."""
        if version == "editable":
            return
        self.folder = tempfile.mkdtemp(prefix="tcompile-wheel-")
        write_tree(Path(self.root), Path(self.folder))
        build_data["force_include"][self.folder] = OUTER

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Called after the wheel is written."""
        if version != "editable":
            shutil.rmtree(self.folder)


def write_tree(root: Path, target: Path) -> None:
    """Write the installed form of the package `tcompile` to `target`, from the clone at `root`."""
    modules = frozenset(_modules(root))
    for package, folder in ((OUTER, target), *((name, target / name) for name in MOVED)):
        for path in sorted((root / package).rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts or path.name.startswith("."):
                continue
            copy = folder / path.relative_to(root / package)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                copy.write_bytes(rewrite(path.read_bytes(), modules, str(path.relative_to(root))))
            else:
                shutil.copyfile(path, copy)


def _modules(root: Path) -> Iterator[str]:
    """Dotted names of the modules that move."""
    for package in MOVED:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Edit(NamedTuple):  # dataclasses fail in a file that hatchling loads
    """Replacement of `length` bytes at a line (from 1) and a column by `text`."""

    line: int
    column: int
    length: int
    text: bytes


def rewrite(source: bytes, modules: frozenset[str], name: str = "<source>") -> bytes:
    """Rewrite a module's source for the moved packages inside `tcompile`. Line numbers do not change.

    `modules` are the dotted names that are rewritten in strings. Raises RewriteError.
    """
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    for edit in sorted(_edits(tree, lines, modules, name), key=lambda edit: (edit.line, edit.column), reverse=True):
        line = lines[edit.line - 1]
        lines[edit.line - 1] = line[: edit.column] + edit.text + line[edit.column + edit.length :]
    return b"".join(lines)


def _edits(tree: ast.Module, lines: list[bytes], modules: frozenset[str], name: str) -> Iterator[_Edit]:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_moved(node.module or ""):
            found = _FROM.match(lines[node.lineno - 1], node.col_offset)
            if not found:
                raise RewriteError(f"{name}:{node.lineno}: the module's name is not on the line of its `from`")
            yield _prefix(node.lineno, found.end())
        elif isinstance(node, ast.Import):
            for alias in filter(lambda alias: _is_moved(alias.name), node.names):
                yield _import_edit(alias, used, name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from _string_edits(node, lines, modules, name)


def _is_moved(module: str) -> bool:
    return module.partition(".")[0] in MOVED


def _prefix(line: int, column: int) -> _Edit:
    return _Edit(line, column, 0, f"{OUTER}.".encode())


def _import_edit(alias: ast.alias, used: set[str], name: str) -> _Edit:
    """Edit of an `import`. It keeps the local name: `import tcompile.compiler as compiler`."""
    if alias.asname:
        return _prefix(alias.lineno, alias.col_offset)
    package, _, inner = alias.name.partition(".")
    if inner and package in used:
        raise RewriteError(f"{name}:{alias.lineno}: write `from {package} import …`, or give the import a name")
    text = f"{OUTER}.{alias.name}" if inner else f"{OUTER}.{package} as {package}"
    return _Edit(alias.lineno, alias.col_offset, len(alias.name), text.encode())


def _string_edits(node: ast.Constant, lines: list[bytes], modules: frozenset[str], name: str) -> Iterator[_Edit]:
    value = str(node.value)
    if _PROGRAM.search(value):
        raise RewriteError(f"{name}:{node.lineno}: a program in a string: take the package from __package__")
    if value not in modules or "." not in value:
        return
    if lines[node.lineno - 1][node.col_offset + 1 :].startswith(value.encode()):
        yield _prefix(node.lineno, node.col_offset + 1)
    else:
        raise RewriteError(f"{name}:{node.lineno}: {value!r} is no plain string")
