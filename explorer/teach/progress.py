"""A learner's progress: a small JSON file in the notebook's folder. Nothing is sent anywhere.

The file is not trusted when it is read: it is bounded, and decoded to plain text and numbers. A file that can't be read
is kept under another name, never overwritten.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from explorer.run.files import replace_file
from explorer.teach.question import LONGEST_ANSWER
from explorer.teach.sheet import Sheet

FILE = "tcompile_progress.json"
MOST_BYTES = 1 << 20
MOST_ENTRIES = 1_000

_Short = Annotated[str, msgspec.Meta(max_length=400)]
_Long = Annotated[str, msgspec.Meta(max_length=LONGEST_ANSWER)]


class Entry(msgspec.Struct, frozen=True):
    """The last answers to one exercise, by question, and their verdicts. `tries` counts comparisons."""

    title: _Short
    answers: Annotated[dict[_Short, _Long], msgspec.Meta(max_length=100)]
    verdicts: Annotated[dict[_Short, _Short], msgspec.Meta(max_length=100)]
    tries: int = 1
    time: _Short = ""

    @property
    def is_done(self) -> bool:
        """Whether every question that could be graded was answered right."""
        graded = [verdict for verdict in self.verdicts.values() if verdict != "not graded"]
        return bool(graded) and all(verdict == "right" for verdict in graded)


class _File(msgspec.Struct, frozen=True):
    tcompile_progress: int
    entries: Annotated[dict[_Short, Entry], msgspec.Meta(max_length=MOST_ENTRIES)]


class Progress:
    """The progress kept in a folder; read at each access, so that several notebooks of the folder share it."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def path(self) -> Path:
        return (self._folder or Path.cwd()) / FILE

    def entries(self) -> Mapping[str, Entry]:
        """Entries by exercise; empty if there is no readable file."""
        return self._read() or {}

    def _read(self) -> dict[str, Entry] | None:
        """The file's entries; None if there is a file that can't be read."""
        try:
            if not self.path.is_file():
                return None if os.path.lexists(self.path) else {}
            with self.path.open("rb") as stream:
                data = stream.read(MOST_BYTES + 1)
            return msgspec.json.decode(data, type=_File).entries if len(data) <= MOST_BYTES else None
        except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
            return None

    def keep(self, key: str, sheet: Sheet) -> str:
        """Add a graded sheet. Returns what the learner should know: "" if all went well."""
        entries, note = self._read(), ""
        try:
            if entries is None:
                aside = self.path.with_name(f"{self.path.stem}-unreadable-{os.urandom(3).hex()}.json")
                self.path.rename(aside)
                note = f"{FILE} could not be read; it is kept as {aside.name}, and a new one begins."
            made = self._entry(sheet, (entries or {}).get(key))
            kept = {**{name: entry for name, entry in (entries or {}).items() if name != key}, key: made}
            newest = dict(list(kept.items())[-MOST_ENTRIES:])
            replace_file(self.path, msgspec.json.format(msgspec.json.encode(_File(1, newest))))
        except OSError as error:
            return f"Your progress was not kept: {error.strerror or error}. The answers are still in this form."
        return note

    def _entry(self, sheet: Sheet, before: Entry | None) -> Entry:
        answers = {name[:400]: text[:LONGEST_ANSWER] for name, text in sheet.answers.items() if text}
        verdicts = {grade.question[:400]: str(grade.verdict) for grade in sheet.grades}
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return Entry(sheet.title[:400], answers, verdicts, (before.tries if before else 0) + 1, time)

    def export(self, path: str | Path) -> Path:
        """Write the progress to a `.csv` table (one row per question) or a `.json` file. Raises ValueError, OSError."""
        path = Path(path)
        if path.suffix == ".csv":
            return replace_file(path, self._table().encode())
        if path.suffix != ".json":
            raise ValueError(f"{str(path)!r}: progress is exported as '.csv' (a table) or '.json'")
        return replace_file(path, msgspec.json.format(msgspec.json.encode(_File(1, dict(self.entries())))))

    def _table(self) -> str:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["exercise", "title", "question", "answer", "verdict", "tries", "time"])
        for key, entry in self.entries().items():
            for question, verdict in entry.verdicts.items():
                row = [key, entry.title, question, entry.answers.get(question, ""), verdict, entry.tries, entry.time]
                table.writerow([_plain_cell(str(cell)) for cell in row])
        return text.getvalue()


def _plain_cell(text: str) -> str:
    """A cell that a spreadsheet does not take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
