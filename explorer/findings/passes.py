"""Triton's passes and layouts of a kernel as documents: a list of passes with their diffs, and grids of layouts."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.record import Artifact, Entity, Record
from compiler.record.plain_text import pluralize
from explorer.render.document import Chart, Code, Document, Fold, Items, Parts, Row, Section, Table, Tag, Text, payload
from explorer.render.finding import Finding

HEAD = ("pass", "removed", "added", "operations")


def passes_views(record: Record) -> Iterator[Finding]:
    """Views of the passes and the layouts of each kernel that was compiled with them."""
    for artifact in record.of_stage("passes"):
        document = _passes(artifact)
        yield Finding(artifact, "view", "passes", payload(document), document)
    for artifact in record.of_stage("layouts"):
        document = _layouts(artifact)
        yield Finding(artifact, "view", "layouts", payload(document), document)


def _passes(artifact: Artifact) -> Document:
    found = [entity for entity in artifact.entities if entity.kind == "pass"]
    idle = ", ".join(artifact.attrs["idle"])
    count = pluralize(len(artifact.attrs["idle"]), "pass", "passes")
    return (
        Items(tuple(artifact.attrs["notes"])),
        Table(
            HEAD, tuple(map(_pass_row, found)), "Lines that differ in renumbered values alone are no change.", (1, 2)
        ),
        Fold(f"{count} changed nothing", (Text(idle),)),
        *(_diff(artifact, number, entity) for number, entity in enumerate(found, 1)),
    )


def _pass_row(entity: Entity) -> Row:
    attrs = entity.attrs
    counts = ("failed", "") if attrs["failed"] else (f"{attrs['removed']:,}", f"{attrs['added']:,}")
    name = (f"{entity.label} ", Tag(f"to {attrs['pipeline']}", "muted"))
    return Row((name, *counts, attrs["operations"]), ids=(entity.id,), title=attrs["words"])


def _diff(artifact: Artifact, number: int, entity: Entity) -> Fold:
    attrs = entity.attrs
    title = (f"{number}. {entity.label} ", Tag(attrs["words"] or attrs["argument"], "muted"))
    code = Code(source=(artifact.id, attrs["line"] + 1, attrs["last"]), label=f"What {entity.label} changed")
    return Fold(title, (code,))


def _layouts(artifact: Artifact) -> Document:
    if not artifact.entities:
        return (Text("No tensor of this kernel has a layout."),)
    return tuple(map(_layout, artifact.entities))


def _layout(entity: Entity) -> Section:
    attrs = entity.attrs
    row = Row((entity.label,), ids=(entity.id,))
    parts: list[Parts] = [Text(words) for words in attrs["words"]]
    if attrs["bases"] and not attrs["problem"]:
        data = {"bases": attrs["bases"], "shape": attrs["shape"], "title": entity.label}
        parts.append(Chart("layout", data, Table((), (), "")))
    return Section((Table((), (row,), label=entity.label), *parts))
