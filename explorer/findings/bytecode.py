"""Bytecode side by side: for each frame what was written, what Dynamo made of it, and that as Python.

The instructions are in the entities of the artifacts. Here is which belong together, and what Dynamo's own are for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compiler.record import Artifact, Entity, Record
from explorer.render.finding import Finding

_CALLS_GRAPH, _CALLS_RESUME = "call the compiled graph ", "call the resume function "
_GOES_ON = "rebuild stack and variables, to go on in Python"
_RETURNS = "put together what the function returns"
TIDYING = 3
"""So many instructions only tidy up."""


def bytecode_views(record: Record) -> Iterator[Finding]:
    """The bytecode artifacts that show a frame's code, each with its view: the two listings of every frame."""
    known = {artifact.id: artifact for artifact in record.of_stage("bytecode")}
    sides = {name: f"{name[:-1]} modified]" for name in known if f"{name[:-1]} modified]" in known}
    frames = [[name, _title_with_side(known[name], frame_title(record, known[name].graph))] for name in sides]
    for written, rewritten in sides.items():
        python = f"{written[:-1]} as Python]"
        data: dict[str, Any] = {
            "frames": frames,
            "sides": [written, rewritten],
            "python": python if python in known else "",
            "stopped": known[python].attrs.get("stopped", "") if python in known else "",
            "groups": groups(known[rewritten]),
        }
        for name in (written, rewritten):
            yield Finding(known[name], "view", "bytecode", data)


def _title_with_side(artifact: Artifact, title: str) -> str:
    """The title with the side that the artifact is of, in a record of two."""
    side = artifact.attrs.get("side")
    return f"{side}: {title}" if side else title


def frame_title(record: Record, name: str) -> str:
    """What a frame is called in a list: `f (0/0)`, and of a resume function where it goes on."""
    found = next((frame for frame in record.frames if frame.id == name), None)
    if found is None:
        return name
    broke = next((item for item in record.breaks if found.resumes == item.id), None)
    return f"{broke.function}, from line {broke.line} on ({name})" if broke else f"{found.function} ({name})"


def groups(rewritten: Artifact) -> list[list[str]]:
    """The stretches of instructions that Dynamo inserted: the first and the last one's id, and what they are for.

    A stretch ends with a call of the graph or of a resume function, with a return, and before the user's own code.
    """
    named = ((stretch, _purpose(stretch, rewritten.graph)) for stretch in _stretches(rewritten.entities))
    return [[stretch[0].id, stretch[-1].id, words] for stretch, words in named if words]


def _stretches(entities: Sequence[Entity]) -> Iterator[list[Entity]]:
    stretch: list[Entity] = []
    for entity in entities:
        own = bool(entity.attrs.get("line"))
        if not own:
            stretch.append(entity)
        if stretch and (own or _ends(entity)):
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _ends(entity: Entity) -> bool:
    return entity.label.startswith("RETURN_") or _comment_of(entity).startswith((_CALLS_GRAPH, _CALLS_RESUME))


def _purpose(stretch: Sequence[Entity], graph: str) -> str:
    """What a stretch is for; "" where it only tidies up."""
    last = stretch[-1]
    words = _comment_of(last)
    if words.startswith(_CALLS_GRAPH):
        return f"{_CALLS_GRAPH}{graph} {words.removeprefix(_CALLS_GRAPH)}"
    if words.startswith(_CALLS_RESUME):
        return words
    if last.label.startswith("RETURN_"):
        return _RETURNS
    return _GOES_ON if len(stretch) > TIDYING else ""


def _comment_of(entity: Entity) -> str:
    return str(entity.attrs.get("says", ""))
