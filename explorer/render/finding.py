"""The type of a finding, and the text that a finding is built from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.record import Artifact, Entity, Record
from explorer.render.document import Document


@dataclass(frozen=True, slots=True)
class Finding:
    """An artifact computed from recorded facts. `opens` is its initial form: "view", "graph" or "text".

    `view` names the front end's view of it (`static/views.js`), and `data` is that view's input as plain JSON. Both are
    empty if text and graph suffice. `document` is the source that the finding was rendered from. `is_open` is
    whether the static view shows the finding unfolded.
    """

    artifact: Artifact
    opens: str = "text"
    view: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    document: Document = field(default=(), compare=False)
    is_open: bool = False


COUNT = "counted"
"""Key in `Artifact.attrs` of a finding's count in words (`4 sites, 19 breaks`)."""
VIEWS = (
    "document",
    "passes",
    "layouts",
    "memory_chart",
    "times",
    "steps",
    "program_map",
    "xray",
    "profile",
    "collectives",
)
"""The views of findings. Rename a view if the format of its data changes: saved records keep the old data."""
OPENS, VIEW, VIEWED = "opens", "view", "viewed"
"""Keys in `Artifact.attrs` of a finding stored as an artifact: its initial form, its view, the view's data."""


def as_artifact(finding: Finding) -> Artifact:
    """Convert a finding to an artifact that includes its view, for records from which it can't be recomputed."""
    view = {VIEW: finding.view, VIEWED: finding.data} if finding.view else {}
    return replace(finding.artifact, attrs={**finding.artifact.attrs, OPENS: finding.opens, **view})


def kept_views(record: Record) -> Iterator[Finding]:
    """Yield findings stored as artifacts in a record, except findings with a view that this version lacks."""
    for artifact in record.artifacts:
        view = artifact.attrs.get(VIEW, "")
        if OPENS in artifact.attrs and (not view or view in VIEWS):
            yield Finding(artifact, artifact.attrs[OPENS], view, artifact.attrs.get(VIEWED, {}))


@dataclass
class LinkedText:
    """A text built block by block, with the entities of each line; `count` is its number of lines so far."""

    blocks: list[str] = field(default_factory=list)
    lines: dict[int, tuple[str, ...]] = field(default_factory=dict)
    entities: list[Entity] = field(default_factory=list)
    count: int = 0

    def add(self, text: str, *entities: Entity, within: Iterable[str] = ()) -> None:
        """Append lines, linked to the given new entities and to earlier entities with the ids `within`."""
        first, self.count = self.count + 1, self.count + text.count("\n") + 1
        ids = (*within, *(entity.id for entity in entities))
        self.lines |= {line: ids for line in range(first, self.count + 1) if ids}
        self.blocks.append(text)
        self.entities += entities

    def artifact(self, stage: str, title: str, language: str = "text", count: str = "") -> Artifact:
        """Convert the text to an artifact with the stage's name as its id. `count` is its size in words
        (`4 sites, 19 breaks`), if the number of its entities does not tell it.
        """
        text = "\n".join(self.blocks) + "\n"
        attrs = {COUNT: count} if count else {}
        return Artifact(
            stage, stage, title, language, text, lines=self.lines, entities=tuple(self.entities), attrs=attrs
        )
