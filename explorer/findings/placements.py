"""DTensors as a document: why each redistribution is there, and the placement of every value."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.capture.guard_words import input_name
from compiler.record import Artifact, Entity, Record
from compiler.record.plain_text import pluralize
from explorer.reading.placements import mesh_text
from explorer.reading.shapes import shape_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Fold, Link, Only, Parts, Row, Table, Tag, Text, Words
from explorer.render.finding import Finding
from explorer.render.places import line_link
from explorer.render.text import document_finding

_BEFORE, _AFTER = "captured", ("joint", "inference")


def placements_finding(record: Record) -> Finding | None:
    """Finding with DTensor's redistributions and values; None for a record without DTensors."""
    lines = SourceLines(record)
    values = [entity for artifact in record.of_stage(_BEFORE) for entity in _values(artifact)]
    if not values:
        return None
    moved = [entity for stage in _AFTER for artifact in record.of_stage(stage) for entity in _results(artifact)]
    causes = {entity.attrs["cause"] for entity in moved}
    sent = sum(found.cause in causes for found in record.collectives)
    meshes = dict.fromkeys(mesh_text(entity.attrs) for entity in values)
    words = f"{pluralize(len(values), 'DTensor')} on the mesh {' and '.join(meshes)}; DTensor changes placements "
    words += f"{pluralize(len(moved), 'time')}, which takes {pluralize(sent, 'collective')}."
    rows = tuple(_moved_row(entity, lines) for entity in moved)
    redistributions = Table(("redistributions, in the order of the graph",), rows, label="Redistributions")
    names = ("line", "value", "whole", "this rank's part", "placements")
    table = Table(names, tuple(_value_row(entity, lines) for entity in values), label="Values")
    document: list[Parts] = [Text(words, "lead")]
    document += [redistributions] if moved else []
    document += [Only(("text",), (table,)), Fold("Values", (table,), is_open=len(values) <= 20)]
    entities = {f"placements.{entity.id}": _entity(entity) for entity in (*moved, *values)}
    return document_finding("placements", "Placements", document, entities, pluralize(len(moved), "redistribution"))


def _values(artifact: Artifact) -> Iterator[Entity]:
    return (entity for entity in artifact.entities if "local_shape" in entity.attrs)


def _results(artifact: Artifact) -> Iterator[Entity]:
    """The results of redistributions in a graph of local tensors."""
    return (entity for entity in artifact.entities if {"from_placements", "placements"} <= entity.attrs.keys())


def _entity(entity: Entity) -> Entity:
    return Entity(f"placements.{entity.id}", "placement", entity.label, {}, (), (entity.id,))


def _moved_row(entity: Entity, lines: SourceLines) -> Row:
    attrs = entity.attrs
    change = Tag(" → ".join(_placements_text(attrs[name]) for name in ("from_placements", "placements")), "strong")
    half = " in the backward of " if attrs.get("backward") else " at "
    words: Words = (change, half, _line(entity, lines), f": {attrs['cause']}")
    return Row((words,), ids=(f"placements.{entity.id}",))


def _value_row(entity: Entity, lines: SourceLines) -> Row:
    attrs = entity.attrs
    name = input_name(str(attrs.get("source", ""))) or entity.label
    shapes = shape_text(attrs.get("shape", ())), shape_text(attrs["local_shape"])
    return Row((_line(entity, lines), f"`{name}`", *shapes, _placements_text(attrs["placements"])),
               ids=(f"placements.{entity.id}",))  # fmt: skip


def _line(entity: Entity, lines: SourceLines) -> Link:
    attrs = entity.attrs
    return line_link(attrs["file"], attrs["line"], lines) if "line" in attrs else Link("an unknown line")


def _placements_text(placements: list[str]) -> str:
    return ", ".join(placements)
