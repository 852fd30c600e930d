"""From a place in Python source to the entity of that line."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.record import Record, Span


class SourceLines:
    """The source lines of a record by file and number."""

    def __init__(self, record: Record) -> None:
        self._known = {entity.id for artifact in record.of_stage("source") for entity in artifact.entities}
        self._artifacts = {
            name: artifact.id
            for artifact in record.of_stage("source")
            for name in (artifact.attrs.get("path"), artifact.title)
            if name
        }

    def id_of(self, file: str, line: int) -> str:
        """The id of a line, "" where the record does not show it."""
        name = f"{self._artifacts.get(file, '')}.L{line}"
        return name if name in self._known else ""

    def ids(self, spans: Iterable[Span]) -> tuple[str, ...]:
        """The ids of the lines that spans begin on, each once; those that are not shown are left out."""
        found = (self.id_of(span.file, span.line) for span in spans)
        return tuple(dict.fromkeys(name for name in found if name))
