"""The user's files behind an exploration: import them anew each time, and see when one is saved."""

from __future__ import annotations

import importlib
import linecache
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from compiler.capture.sources import is_installed
from compiler.torch_api.released import release_operators
from explorer.entry.callee import OWN_FOLDERS

POLL_SECONDS = 0.1
SETTLE_SECONDS = 0.05
"""A file must stay the same for this time before it is read: an editor may still be writing it."""
GONE_SECONDS = 1.0
"""Editors replace a file by a new one; a file that is missing for longer is reported."""

_State = tuple[int, int, int] | None


def file_of(module: ModuleType) -> Path | None:
    """The file of a module of the user's; None for an installed module, one of tcompile, and one without a file."""
    name = getattr(module, "__file__", None)
    if not isinstance(name, str) or not name.endswith(".py") or is_installed(name):
        return None
    return None if name.startswith(tuple(f"{folder}/" for folder in OWN_FOLDERS)) else Path(name)


def user_modules(besides: Iterable[str] = ()) -> dict[str, ModuleType]:
    """The imported modules of the user's, by name, without those named."""
    known = set(besides)
    found = {name: module for name, module in list(sys.modules.items()) if name not in known}
    return {name: module for name, module in found.items() if file_of(module) is not None}


@contextmanager
def fresh_imports(note: Callable[[set[Path]], None]) -> Iterator[None]:
    """Import the user's modules anew in the block, and forget them at its end. `note` is given their files.

    No bytecode is written: Python would take it for current if a file is saved twice in a second.
    """
    known, paths, writes = set(sys.modules), list(sys.path), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    linecache.checkcache()
    try:
        yield
    finally:
        loaded = user_modules(known)
        note({path for module in loaded.values() if (path := file_of(module)) is not None})
        for name, module in loaded.items():
            release_operators(vars(module).values())
            sys.modules.pop(name, None)
        sys.path[:], sys.dont_write_bytecode = paths, writes


def _state_of(path: Path) -> _State:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass
class FollowedFiles:
    """Files whose changes are noticed by their times and sizes, without a thread.

    `folders` are looked at too: a new file in one may be the module that an import missed.
    """

    states: dict[Path, _State] = field(default_factory=dict)
    folders: set[Path] = field(default_factory=set)

    def follow(self, paths: Iterable[Path]) -> None:
        """Follow these files too, as they are now."""
        for path in paths:
            self.states.setdefault(path, _state_of(path))

    def follow_folder(self, folder: Path) -> None:
        """Follow the Python files of a folder, also those that are not there yet."""
        self.folders.add(folder)
        self.follow(folder.glob("*.py"))

    def take_changes(self) -> list[Path]:
        """The files that have changed since the last call and are there; each is reported once."""
        for folder in self.folders:
            for path in folder.glob("*.py"):
                self.states.setdefault(path, None)
        found = []
        for path, before in self.states.items():
            now = _state_of(path)
            if now is not None and now != before:
                self.states[path] = now
                found.append(path)
        return found

    def missing_files(self) -> list[Path]:
        """The followed files that are not there."""
        return [path for path in self.states if _state_of(path) is None]

    def wait(self, tell_missing: Callable[[Path], None], is_over: Callable[[], bool]) -> list[Path]:
        """Wait until files have changed and stay as they are; return them. A file that is missing is told once.

        Return [] if `is_over` gets true.
        """
        told: set[Path] = set()
        since: dict[Path, float] = {}
        while not (found := self.take_changes()):
            if is_over():
                return []
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            gone = self.missing_files()
            since = {path: since.get(path, now) for path in gone}
            for path in gone:
                if now - since[path] > GONE_SECONDS and path not in told:
                    told.add(path)
                    tell_missing(path)
        while True:
            time.sleep(SETTLE_SECONDS)
            more = self.take_changes()
            if not more:
                return list(dict.fromkeys(found))
            found += more
