"""Source files that a log names: their logged lines, or the files themselves if they are here and unchanged."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from compiler.capture.sources import SourceBook, importable_path, is_cell
from compiler.record import Artifact, Span

_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]|.*[/\\]lib[/\\]python[\d.]+[/\\]")
MOST_SOURCE = 2 * 2**20
"""A larger file is not read."""
MOST_FILES = 2_000


class LoggedSources(SourceBook):
    """Collects the lines that a log mentions, with their code.

    A file is shown whole only if it is on this machine, and has the logged code at every logged line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.codes: dict[str, dict[int, str]] = {}
        self._read: dict[str, list[str]] = {}

    def add_logged_line(self, file: str, number: int, code: str) -> str:
        """Add a line, with its code if the log has it; returns its id."""
        if code:
            self.codes.setdefault(file, {}).setdefault(number, code.strip())
        return self.line(file, number)

    def logged_span(self, file: str, number: int, function: str, code: str) -> Span:
        self.add_logged_line(file, number, code)
        return Span(self.name(file), number, number, function=function, code=code, installed=is_of_package(file))

    def name(self, file: str) -> str:
        """Name of a file of an installed package relative to the package's folder, wherever it was installed."""
        file = file.replace("\0", "?")
        if file not in self._names and (folder := _PACKAGES.match(file)) and not is_cell(file):
            wanted = file[folder.end() :].replace("\\", "/")
            taken = set(self._names.values())
            self._names[file] = wanted if wanted not in taken else importable_path(file)
        return super().name(file)

    def source(self, file: str) -> list[str]:
        return self._file(file) or self._logged_lines(file)

    def is_whole(self, file: str) -> bool:
        """Whether the file on this machine has the code that was logged."""
        return bool(self._file(file))

    def _file(self, file: str) -> list[str]:
        if file not in self._read:
            self._read[file] = _read_lines(file) if file.endswith(".py") and Path(file).is_absolute() else []
        lines, known = self._read[file], self.codes.get(file, {})
        same = all(
            number <= len(lines) and (lines[number - 1].strip() == code or not code) for number, code in known.items()
        )
        return lines if same and known else []

    def shown_lines(self, file: str, source: list[str]) -> Iterator[int]:
        if self.is_whole(file):
            yield from super().shown_lines(file, source)
            return
        last = 0
        for number in sorted(self.codes.get(file, ())):
            if number > last + 1 and last:
                yield 0
            yield number
            last = number

    def artifacts(self) -> tuple[Artifact, ...]:
        self.lines = dict(list(self.lines.items())[:MOST_FILES])
        return super().artifacts()

    def missing_files(self) -> list[str]:
        """Names of the user's files that are shown only by their logged lines."""
        return [self.name(file) for file in self.lines if not self.is_whole(file) and not is_of_package(file)]

    def _logged_lines(self, file: str) -> list[str]:
        known = self.codes.get(file, {})
        last = min(max(known, default=0), 1_000_000)
        return [known.get(number, "") for number in range(1, last + 1)]


def is_of_package(file: str) -> bool:
    """Whether a file belonged to an installed package or the standard library where it was logged."""
    return bool(_PACKAGES.match(file)) or file.startswith("<frozen ")


def _read_lines(file: str) -> list[str]:
    """The lines of a regular file; [] if it can't be read or is large. Opening does not block."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return []
    try:
        known = os.fstat(descriptor)
        if not stat.S_ISREG(known.st_mode) or known.st_size > MOST_SOURCE:
            return []
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(MOST_SOURCE).decode(errors="replace").splitlines()
    except OSError:
        return []
    finally:
        os.close(descriptor)
