"""Documents as text: which lines belong to which entity."""

from __future__ import annotations

from compiler.record import Entity
from explorer.render.document import Row, Table
from explorer.render.text import document_finding


def test_every_row_of_an_entity_leads_to_it() -> None:
    entity = Entity("timing.inductor", "candidate", "inductor")
    times, notes = (Table((head,), (Row(("inductor",), (entity.id,)),)) for head in ("times", "notes"))
    artifact = document_finding("timing", "times", (times, notes), {entity.id: entity}).artifact
    rows = [number for number, line in enumerate(artifact.text.split("\n"), 1) if line.strip() == "inductor"]
    assert len(rows) == 2
    assert artifact.lines == dict.fromkeys(rows, (entity.id,))
    assert artifact.entities == (entity,)
