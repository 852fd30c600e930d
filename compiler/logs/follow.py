"""What a running program compiles, read from its growing structured traces."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.logs.compilations import INSTALLED
from compiler.logs.events import Event, Log

_KINDS = ("str", "dynamo_start", "compilation_metrics")
_MOST_READ = 16 * 2**20
"""Maximum bytes that `Follower.look` reads from one file."""


@dataclass(frozen=True, slots=True)
class Running:
    """A compilation that has started and not ended. `count` counts compilations of its code, this one included."""

    function: str
    place: str
    called_at: str
    count: int
    since: float

    def words(self, now: float) -> str:
        again = f", {_ordinal(self.count)} time" if self.count > 1 else ""
        caller = f", called at {self.called_at}" if self.called_at else ""
        return f"compiling {self.function} ({self.place}){again}, for {now - self.since:.0f} s{caller}"


class Follower:
    """Follows all traces in a directory, except those that were there before. `ended` counts compilations."""

    def __init__(self, folder: Path, before: Collection[Path] = ()) -> None:
        self.folder, self.before = folder, frozenset(before)
        self.ended = 0
        self._files: dict[Path, _Growing] = {}
        self._counts: Counter[tuple[str, int, str]] = Counter()
        self._running: dict[tuple[Path, str], Running] = {}

    def look(self) -> Running | None:
        """Read what was written since the last look. Returns the running compilation that started last."""
        for path in traces_in(self.folder, self.before):
            growing = self._files.setdefault(path, _Growing(path))
            for event in growing.new_events():
                self._take(path, event, growing.strings)
        return next(reversed(self._running.values()), None)

    def _take(self, path: Path, event: Event, strings: dict[int, str]) -> None:
        if event.kind == "dynamo_start":
            if (started := self._read_start(event, strings)) is not None:
                self._running[path, event.compile_id] = started
        else:
            self._running.pop((path, event.compile_id), None)
            self.ended += 1

    def _read_start(self, event: Event, strings: dict[int, str]) -> Running | None:
        stack = event.fields.get("stack") if isinstance(event.fields, dict) else None
        frames = [frame for frame in stack if isinstance(frame, dict)] if isinstance(stack, list) else []
        if not frames:
            return None
        *callers, function = [_place_of(frame, strings) for frame in frames]
        self._counts[function] += 1
        called = next((_place(*caller[:2]) for caller in reversed(callers) if not INSTALLED.search(caller[0])), "")
        return Running(
            function[2], _place(*function[:2]), called, self._counts[function], time.monotonic()
        )  # fmt: skip


class _Growing:
    """A file that grows: its complete lines, each read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.strings: dict[int, str] = {}
        self._at = 0

    def new_events(self) -> Iterator[Event]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                text = file.read(_MOST_READ)
        except OSError:  # it was removed, or moved
            return
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) == _MOST_READ else 0)
        self._at += end
        for event in Log((self.path.name,), (text[:end],)).events_of(*_KINDS):
            if event.kind != "str":
                yield event
            elif isinstance(event.fields, list) and len(event.fields) == 2:
                self.strings[event.fields[1]] = str(event.fields[0])


def traces_in(folder: Path, before: Collection[Path] = ()) -> list[Path]:
    """The traces in a directory, except those that were there before."""
    return sorted(path for path in folder.glob("*.log") if path not in before and path.is_file())


def _place_of(frame: dict[str, Any], strings: dict[int, str]) -> tuple[str, int, str]:
    """File, line and function of a logged frame."""
    name, line = frame.get("filename"), frame.get("line")
    file = strings.get(name, "") if isinstance(name, int) else str(name)
    return file, line if isinstance(line, int) else 0, str(frame.get("name"))


def _place(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"


def _ordinal(count: int) -> str:
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"
