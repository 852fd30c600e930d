"""What a finding is, and how its text is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.record import Artifact, Entity, Record
from explorer.render.document import Document


@dataclass(frozen=True, slots=True)
class Finding:
    """An artifact made of facts. `opens` is how it is shown first: as "view", "graph" or "text".

    `view` names the view of the front end (`static/views.js`) that can show it, and `data` is what that view is given:
    plain JSON values. Both are empty where text and graph are enough. `document` is what a finding was lowered from;
    `is_open` is whether the static view shows it unfolded.
    """

    artifact: Artifact
    opens: str = "text"
    view: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    document: Document = field(default=(), compare=False)
    is_open: bool = False


COUNT = "counted"
"""Name in `Artifact.attrs` of how much is in a finding, in words."""
VIEWS = ("document", "memory_chart", "times", "steps")
"""The views of findings. One that is given other data than before gets another name: saved records keep their data."""
OPENS, VIEW, VIEWED = "opens", "view", "viewed"
"""Names in `Artifact.attrs` of a finding that a record has as an artifact: how it opens, its view, the view's data."""


def as_artifact(finding: Finding) -> Artifact:
    """A finding as an artifact that has its view with it, for a record of which it can't be made again."""
    view = {VIEW: finding.view, VIEWED: finding.data} if finding.view else {}
    return replace(finding.artifact, attrs={**finding.artifact.attrs, OPENS: finding.opens, **view})


def kept_views(record: Record) -> Iterator[Finding]:
    """The findings that a record has as artifacts; as text those whose view was another version's."""
    for artifact in record.artifacts:
        view = artifact.attrs.get(VIEW, "")
        if OPENS in artifact.attrs and (not view or view in VIEWS):
            yield Finding(artifact, artifact.attrs[OPENS], view, artifact.attrs.get(VIEWED, {}))


@dataclass
class LinkedText:
    """A text that grows block by block, now of `count` lines, and the lines each entity is on."""

    blocks: list[str] = field(default_factory=list)
    lines: dict[int, tuple[str, ...]] = field(default_factory=dict)
    entities: list[Entity] = field(default_factory=list)
    count: int = 0

    def add(self, text: str, *entities: Entity, within: Iterable[str] = ()) -> None:
        """Add lines that belong to these entities, and to those with the ids `within`, which are there already."""
        first, self.count = self.count + 1, self.count + text.count("\n") + 1
        ids = (*within, *(entity.id for entity in entities))
        self.lines |= {line: ids for line in range(first, self.count + 1) if ids}
        self.blocks.append(text)
        self.entities += entities

    def artifact(self, stage: str, title: str, language: str = "text", count: str = "") -> Artifact:
        """All that was added, as an artifact with the stage's name as its id. `count` is how much is in it in words
        (`4 sites, 19 breaks`), where the number of its entities does not say it.
        """
        text = "\n".join(self.blocks) + "\n"
        attrs = {COUNT: count} if count else {}
        return Artifact(
            stage, stage, title, language, text, lines=self.lines, entities=tuple(self.entities), attrs=attrs
        )
