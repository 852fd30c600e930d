"""Source files of a compilation: one artifact per file, reduced to the relevant functions.

A short cell or file is shown whole. Of a long file (torch.nn.functional has 6,000 lines), only the definitions around
referenced lines are shown, with the file's own line numbers in `attrs["numbers"]`.
"""

from __future__ import annotations

import inspect
import linecache
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from compiler.capture.function_names import function_name
from compiler.record import Artifact, Entity, Span
from compiler.record.break_facts import Place

WHOLE_FILE_LINES = 400
WHOLE_CELL_LINES = 5000
GAP = "⋮"
_LINE_OF_FILE = re.compile(r"^(\s*# (?:recompute: \w+ )?File: )(/[^\n]*?)(:\d+ in )", re.MULTILINE)
_DEF = re.compile(r"\s*(async\s+)?def\s")
_CLASS = re.compile(r"\s*class\s")
_CELL = re.compile(r"(ipykernel_\d+[/\\]\d+\.py$)|(^<ipython-input-)|(^<stdin>)|(^<tcompile)")


def is_cell(file: str) -> bool:
    """Whether a code object's file name is that of a notebook cell or a prompt."""
    return bool(_CELL.search(file))


class SourceBook:
    """Collects the lines that compilations refer to, and makes artifacts of their files.

    `names` are existing names of files, by path.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.lines: dict[str, set[int]] = {}
        self.calls: dict[str, dict[str, dict[str, None]]] = {}
        self._names: dict[str, str] = dict(names or {})
        self._made: dict[str, tuple[tuple[int, int], Artifact]] = {}

    def line(self, file: str, number: int) -> str:
        """Id of a source line, which is added to the book."""
        self.lines.setdefault(file, set()).add(number)
        return f"{self.artifact_id(file)}.L{number}"

    def span(self, file: str, number: int, function: str = "", code: str | None = None) -> Span:
        """Span of a whole source line, which is added to the book; `code` replaces the text of the line."""
        self.line(file, number)
        text = linecache.getline(file, number).strip() if code is None else code
        name, installed = function_name(function), is_installed(file)
        return Span(self.name(file), number, number, function=name, code=text, installed=installed)

    def call(self, file: str, number: int, inner: str) -> None:
        """Record that a line calls a function in which the line with id `inner` ran, in the same graph."""
        self.calls.setdefault(file, {}).setdefault(self.line(file, number), {})[inner] = None

    def artifact_id(self, file: str) -> str:
        return f"source[{self.name(file)}]"

    def name(self, file: str) -> str:
        """Short name of a file, independent of this machine: `cell`, `cell 2`, `torch/nn/functional.py`."""
        if file not in self._names:
            wanted = "cell" if is_cell(file) else importable_path(file)
            taken = set(self._names.values())
            name, count = wanted, 1
            while name in taken:
                count += 1
                name = f"{wanted} {count}"
            self._names[file] = name
        return self._names[file]

    def path(self, name: str) -> str:
        """Path of the file with this name; "" if there is none."""
        return next((path for path, known in self._names.items() if known == name), "")

    def shorten(self, text: str) -> str:
        """`text` with the full path of every known file, and of every line's file, replaced by its short name."""
        for file in sorted(self.lines, key=len, reverse=True):
            text = text.replace(file, self.name(file))
        return _LINE_OF_FILE.sub(lambda found: f"{found[1]}{self.name(found[2])}{found[3]}", text)

    def artifacts(self) -> tuple[Artifact, ...]:
        """One artifact for each file: cells first, then the user's files, then installed packages."""
        present = [file for file in self.lines if self.source(file)]
        return tuple(self._cached_artifact(file) for file in sorted(present, key=self._rank))

    def source(self, file: str) -> list[str]:
        """The lines of a file; [] if it can't be read."""
        return linecache.getlines(file)

    def shown_lines(self, file: str, source: list[str]) -> Iterator[int]:
        """Yield the line numbers to show; 0 marks a gap."""
        return _shown_lines(file, source, self.lines[file])

    def _cached_artifact(self, file: str) -> Artifact:
        """The file's artifact, cached until more of its lines or calls are added."""
        wanted = (len(self.lines[file]), sum(map(len, self.calls.get(file, {}).values())))
        known, artifact = self._made.get(file, (wanted, None))
        if artifact is None or known != wanted:
            artifact = self._artifact(file)
            self._made[file] = (wanted, artifact)
        return artifact

    def _rank(self, file: str) -> tuple[int, str]:
        return (0 if is_cell(file) else 2 if is_installed(file) else 1, self.name(file))

    def _artifact(self, file: str) -> Artifact:
        source = [line.rstrip("\n") for line in self.source(file)]
        wanted = self.lines[file]
        numbers = list(self.shown_lines(file, source))
        own = self.artifact_id(file)
        lines: dict[int, tuple[str, ...]] = {}
        entities = []
        for position, number in enumerate(numbers, 1):
            if number in wanted:
                identity = f"{own}.L{number}"
                code = source[number - 1].strip()
                lines[position] = (identity,)
                entities.append(Entity(identity, "line", code, {"file": self.name(file), "line": number, "code": code}))
        text = "\n".join(source[number - 1] if number else GAP for number in numbers) + "\n"
        attrs: dict[str, Any] = {"numbers": numbers, "installed": is_installed(file)}
        if file in self.calls:
            attrs["calls"] = {line: list(inner) for line, inner in self.calls[file].items()}
        return Artifact(own, "source", self.name(file), "python", text, "", lines, tuple(entities), attrs)


def _shown_lines(file: str, source: list[str], wanted: set[int]) -> Iterator[int]:
    if len(source) <= (WHOLE_CELL_LINES if is_cell(file) else WHOLE_FILE_LINES):
        yield from range(1, len(source) + 1)
        return
    last = 0
    for first, end in _enclosing_ranges(source, wanted):
        if first > last + 1:
            yield 0
        yield from range(max(first, last + 1), end + 1)
        last = max(last, end)
    if last < len(source):
        yield 0


def _enclosing_ranges(source: list[str], wanted: set[int]) -> list[tuple[int, int]]:
    """Line ranges of the functions around the wanted lines, and the header lines of their classes."""
    last: dict[int, int] = {}
    found: set[tuple[int, int]] = set()
    for number in wanted:
        if number > len(source):
            continue
        if first := _opening_line(source, number, _DEF):
            last[first] = max(last.get(first, 0), number)
        else:
            found.add((number, number))
    for first, number in last.items():
        found.add(_block(source, first, number))
        if header := _opening_line(source, first, _CLASS):
            found.add((header, header))
    return sorted(found)


def function_around(source: list[str], number: int) -> tuple[int, int] | None:
    """First and last line of the innermost function around a line, with decorators; None if there is none."""
    first = _opening_line(source, number, _DEF)
    return _block(source, first, number) if first else None


def _block(source: list[str], first: int, number: int) -> tuple[int, int]:
    """First and last line of the definition at line `first`, with decorators; the last is at least `number`."""
    end = first - 1 + len(inspect.getblock([f"{line}\n" for line in source[first - 1 :]]))
    return _first_decorator_line(source, first), max(end, number)


def _opening_line(source: list[str], number: int, pattern: re.Pattern[str]) -> int:
    """The line itself or the nearest less indented line above it that opens a definition; 0 if there is none."""
    if pattern.match(source[number - 1]):
        return number
    indent = _indent(source[number - 1])
    for candidate in range(number - 1, 0, -1):
        line = source[candidate - 1]
        if pattern.match(line) and _indent(line) < indent:
            return candidate
    return 0


def _first_decorator_line(source: list[str], first: int) -> int:
    while first > 1 and source[first - 2].lstrip().startswith("@"):
        first -= 1
    return first


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@lru_cache(maxsize=1)
def _installed_roots() -> tuple[str, ...]:
    """Folders of installed code, longest first."""
    paths = {*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    if site.ENABLE_USER_SITE:
        paths.add(site.getusersitepackages())
    paths.update(package_folders_on_path())
    return tuple(sorted((str(Path(path).resolve()) for path in paths), key=len, reverse=True))


def imported_modules() -> dict[str, ModuleType]:
    """The imported modules by name. Programs put other objects into `sys.modules`, too: None forbids an import."""
    return {name: module for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)}


@lru_cache(maxsize=16_384)
def is_installed(file: str) -> bool:
    """Whether a file belongs to the standard library, to torch or to an installed package."""
    if file.startswith("<frozen "):
        return True
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    return path.is_relative_to(torch_folder()) or any(str(path).startswith(f"{root}/") for root in _installed_roots())


@lru_cache(maxsize=1)
def torch_folder() -> Path:
    """Folder of the torch package; in a development build, a folder in a clone of the repository."""
    found = find_spec("torch")  # torch is not imported: `tcompile show` starts without it
    return Path(str(found and found.origin)).resolve().parent


def package_folders_on_path() -> list[str]:
    """Package folders in `sys.path`, as added by PYTHONPATH (on clusters) and .pth files."""
    return [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]


def is_standard(file: str) -> bool:
    """Whether a file belongs to the standard library, and not to torch, which may be built outside site-packages."""
    if not is_installed(file) or "site-packages" in file or "dist-packages" in file:
        return False
    return file.startswith("<frozen ") or not Path(file).resolve().is_relative_to(torch_folder())


@lru_cache(maxsize=1024)
def importable_path(file: str) -> str:
    """Path relative to the `sys.path` entry that contains the file; its base name if there is none."""
    roots = {str(Path(entry or ".").resolve()) for entry in sys.path} | set(_installed_roots())
    path = str(Path(file).resolve()) if not file.startswith("<") else file
    inside = [path[len(root) + 1 :] for root in roots if path.startswith(f"{root}/")]
    return min(inside, key=len) if inside else Path(file).name


def span_of(place: Place, book: SourceBook) -> Span:
    """Convert a place to a span in a file of the book, with columns in characters."""
    book.line(place.file, place.line)
    names = book.name(place.file), function_name(place.function), is_installed(place.file)
    last = place.end_line or place.line
    lines = [linecache.getline(place.file, number) for number in range(place.line, last + 1)]
    if place.column is None or place.end_column is None or place.end_line is None or not any(lines):
        last, start, end, code = place.line, 0, 0, lines[0].strip()
    else:
        start, end = _characters(lines[0], place.column), _characters(lines[-1], place.end_column)
        code = "".join([*lines[:-1], lines[-1][:end]])[start:]
    return Span(names[0], place.line, last, start, end, names[1], code, names[2])


def _characters(line: str, column: int) -> int:
    """Convert a column from UTF-8 bytes, as in `dis`, to characters."""
    return len(line.encode()[:column].decode(errors="ignore"))
