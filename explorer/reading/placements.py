"""Placements of DTensors and their redistributions, by source line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.record import Artifact, Entity, Record
from explorer.reading.shapes import tensor_type
from explorer.reading.source_lines import Place, SourceLines

MOST = 12
"""Maximum number of values and redistributions that are listed for one line."""
ATTRIBUTE = "DTensor"
_REDISTRIBUTED = "redistributed"


def placed_lines(record: Record) -> dict[str, dict[int, str]]:
    """Source artifact -> row -> why DTensors are redistributed there, and the placement of each, in words."""
    found: dict[Place, dict[str, None]] = {}
    lines = SourceLines(record)
    for artifact in record.artifacts:
        if artifact.stage in ("captured", "joint", "inference"):
            for entity in artifact.entities:
                place = _place(entity, lines)
                words = _words(entity, artifact.stage) if place is not None else ""
                if place is not None and words:
                    found.setdefault(place, {})[words] = None
    rows: dict[str, dict[int, str]] = {}
    for (artifact_id, row), words_of in sorted(found.items()):
        listed = sorted(words_of, key=lambda words: not words.startswith(_REDISTRIBUTED))
        more = [f"and {len(listed) - MOST} more"] if len(listed) > MOST else []
        rows.setdefault(artifact_id, {})[row] = "\n".join([*listed[:MOST], *more])
    return rows


def _place(entity: Entity, lines: SourceLines) -> Place | None:
    attrs = entity.attrs
    if entity.kind != "call" or not ("placements" in attrs or "cause" in attrs) or "line" not in attrs:
        return None
    return lines.place(attrs["file"], attrs["line"])


def _words(entity: Entity, stage: str) -> str:
    """A captured DTensor, or the cause of a redistribution; "" for a local tensor."""
    if "cause" in entity.attrs and "placements" in entity.attrs and stage != "captured":
        way = f"{_REDISTRIBUTED} in the backward" if entity.attrs.get("backward") else _REDISTRIBUTED
        return f"{way}: {entity.attrs['cause']}"
    if stage != "captured" or "cause" in entity.attrs:
        return ""
    return f"{entity.label}: {tensor_type(entity.attrs)} on {mesh_text(entity.attrs)}"


def mesh_text(attrs: Mapping[str, list[tuple[str, int]]]) -> str:
    """The mesh of a DTensor, as `tp=8`; `dp=2, tp=4`."""
    return ", ".join(f"{name}={size}" for name, size in attrs.get("mesh", ()))


def add_placed_lines(record: Record) -> Record:
    """Add to source lines, as an attribute, the DTensors on them; the same record without DTensors."""
    rows = placed_lines(record)
    if not rows:
        return record
    artifacts = (_with_words(artifact, rows.get(artifact.id, {})) for artifact in record.artifacts)
    return record.with_fields(artifacts=tuple(artifacts))


def _with_words(artifact: Artifact, rows: Mapping[int, str]) -> Artifact:
    words = {name: rows[row] for row, names in artifact.lines.items() if row in rows for name in names}
    if not words:
        return artifact
    return replace(artifact, entities=tuple(
        replace(entity, attrs=entity.attrs | {ATTRIBUTE: words[entity.id]}) if entity.id in words else entity
        for entity in artifact.entities
    ))  # fmt: skip
