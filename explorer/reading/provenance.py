"""Trace an entity back through all stages to the Python lines it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import PurePosixPath

from compiler.record import Entity, Record

_LINE = re.compile(r"source\[(?P<file>.+)\]\.L(?P<number>\d+)")

SourceLines = Mapping[str, tuple[str, ...]]
"""Entity id -> ids of source lines; entities without source lines are left out."""


def source_lines(record: Record) -> SourceLines:
    """Source lines that each entity came from, with the whole call chain, outermost first."""
    return _collect_lines(record, lambda chain: chain)


def innermost_lines(record: Record) -> SourceLines:
    """Source lines that each entity came from, with only the innermost line of a call chain."""
    return _collect_lines(record, lambda chain: chain[-1:])


def _collect_lines(record: Record, of_chain: Callable[[tuple[str, ...]], tuple[str, ...]]) -> SourceLines:
    origins = {entity.id: entity.origins for entity in record.entities()}
    known: dict[str, tuple[str, ...]] = {}
    for entity_id in origins:
        _follow(entity_id, origins, of_chain, known)
    return {entity_id: lines for entity_id, lines in known.items() if lines}


def _follow(
    entity_id: str,
    origins: Mapping[str, tuple[str, ...]],
    of_chain: Callable[[tuple[str, ...]], tuple[str, ...]],
    known: dict[str, tuple[str, ...]],
) -> None:
    """Add the source lines of an entity to `known`. There are few stages, so the recursion is shallow."""
    if entity_id in known:
        return
    known[entity_id] = (entity_id,) if _LINE.fullmatch(entity_id) else ()
    parents = origins.get(entity_id, ())
    chain = tuple(parent for parent in parents if _LINE.fullmatch(parent))
    lines = [*known[entity_id], *of_chain(chain)]
    for parent in parents:
        if parent not in chain:
            _follow(parent, origins, of_chain, known)
            lines.extend(known[parent])
    known[entity_id] = tuple(dict.fromkeys(lines))


def ancestors(ids: Iterable[str], origins: Mapping[str, tuple[str, ...]]) -> set[str]:
    """All direct and indirect origins of the ids; `origins` maps an id to its direct origins."""
    todo = [origin for entity_id in ids for origin in origins.get(entity_id, ())]
    seen = set(todo)
    while todo:
        for origin in origins.get(todo.pop(), ()):
            if origin not in seen:
                seen.add(origin)
                todo.append(origin)
    return seen


def with_source_kernels(record: Record, ids: Iterable[str]) -> tuple[str, ...]:
    """Each id, followed by the id it was compiled from: the Triton line of an instruction, the kernel of a binary.

    This links PTX and SASS of the same line, though neither was compiled from the other.
    """
    known = {entity.id: entity for entity in record.entities()}
    alike = {"instructions": "triton", "kernel": "kernel"}

    def _origin_of_same_line(entity: Entity) -> tuple[str, ...]:
        origin = known.get(entity.origins[0]) if len(entity.origins) == 1 else None
        return (origin.id,) if origin and alike.get(entity.kind) == origin.kind else ()

    return tuple(name for entity_id in ids for name in (entity_id, *_origin_of_same_line(known[entity_id])))


def place(line_id: str) -> str:
    """Location of a source line: `source[cell].L12` is `cell:12`. Any other id is returned unchanged."""
    match = _LINE.fullmatch(line_id)
    return place_text(match["file"], int(match["number"])) if match else line_id


def place_text(file: str, line: int) -> str:
    """Location as `m.py:12`."""
    return f"{short_file(file)}:{line}"


@lru_cache(maxsize=1024)
def short_file(file: str) -> str:
    """Last part of a path; `cell` for the file names that notebooks give to cells."""
    name = PurePosixPath(file.replace("\\", "/")).name
    return "cell" if name.startswith("<") or re.fullmatch(r"ipykernel_\d+|\d{6,}\.py", name) else name


def input_sources(record: Record) -> dict[str, str]:
    """Graph input -> its TorchDynamo source, as Python: `L['x']`, `L['self']._parameters['weight']`."""
    found: dict[str, str] = {}
    for entity in record.entities():
        if entity.kind in ("placeholder", "get_attr"):
            known = (found[origin] for origin in entity.origins if origin in found)
            source = str(entity.attrs.get("source") or "") or next(known, "")
            if source:
                found[entity.id] = source
    return found


def saved_tensors(record: Record) -> dict[str, str]:
    """Id of a tensor that a forward graph saves -> id of the backward graph's input of the same name."""
    taken = {
        (artifact.graph, entity.label): entity.id
        for artifact in record.of_stage("backward")
        for entity in artifact.entities
        if entity.kind == "placeholder"
    }
    saved: dict[str, str] = {}
    for artifact in record.of_stage("forward"):
        labels = {entity.id: entity.label for entity in artifact.entities}
        outputs = [entity for entity in artifact.entities if entity.kind == "output"]
        for given in (source for output in outputs for source in output.inputs):
            place = taken.get((artifact.graph, labels.get(given, "")))
            if place is not None:
                saved[given] = place
    return saved
