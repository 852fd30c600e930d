"""Map a location in Python source to its entity, its row on the screen, and its text."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.record import Artifact, Record, Span

Place = tuple[str, int]
"""A source artifact's id, and the 1-based row of its text."""


class SourceLines:
    """The source lines of a record, by file and line number; only the first side's if the record compares two sides."""

    def __init__(self, record: Record) -> None:
        self._known = {entity.id for artifact in record.of_stage("source") for entity in artifact.entities}
        self._artifacts = {
            name: artifact
            for artifact in reversed(record.of_stage("source"))
            for name in (artifact.attrs.get("path"), artifact.title)
            if name
        }

    def id_of(self, file: str, line: int) -> str:
        """Id of a line; "" if the record does not show it."""
        artifact = self._artifacts.get(file)
        name = f"{artifact.id}.L{line}" if artifact else ""
        return name if name in self._known else ""

    def ids(self, spans: Iterable[Span]) -> tuple[str, ...]:
        """Ids of the first lines of spans, without duplicates; lines that are not shown are left out."""
        found = (self.id_of(span.file, span.line) for span in spans)
        return tuple(dict.fromkeys(name for name in found if name))

    def place(self, file: str, line: int) -> Place | None:
        """Artifact and row of a line, whether or not anything links to it; None if the record lacks it."""
        artifact = self._artifacts.get(file)
        row = row_of(artifact, line) if artifact else None
        return None if artifact is None or row is None else (artifact.id, row)

    def code(self, file: str, first: int, last: int) -> tuple[str, ...]:
        """Text of a range of lines; empty if one of them is not shown."""
        text = self._artifacts[file].text.splitlines() if file in self._artifacts else []
        if last - first >= len(text):
            return ()
        rows = [self.place(file, line) for line in range(first, max(first, last) + 1)]
        return (
            tuple(text[row[1] - 1] for row in rows if row) if all(row and row[1] <= len(text) for row in rows) else ()
        )


def row_of(artifact: Artifact, number: int) -> int | None:
    """1-based row of an artifact's text with this line number; None if the artifact does not have it."""
    numbers = artifact.attrs.get("numbers")
    if numbers:
        return numbers.index(number) + 1 if number in numbers else None
    return number if 0 < number <= len(artifact.text.splitlines()) else None
