"""Findings: facts of a record as separate artifacts."""

from __future__ import annotations

import pytest

from compiler.record import Record
from compiler.record.plain_text import pluralize
from explorer.findings import Finding, findings, with_findings
from explorer.render.document import Row, Table
from explorer.render.text import document_finding
from explorer.run.payload import Payload
from explorer.run.run import Run
from explorer.run.static_view import twin
from tests.explorer.small_record import small_record


def test_findings_come_between_source_and_graphs() -> None:
    stages = [artifact.stage for artifact in with_findings(small_record()).artifacts]
    assert stages.index("source") < stages.index("breaks") < stages.index("captured")


def test_finding_entities_are_on_lines_and_link() -> None:
    record = with_findings(small_record())
    known = {entity.id for entity in record.entities()}
    for finding in findings(small_record()):
        shown = {name for names in finding.artifact.lines.values() for name in names}
        assert {entity.id for entity in finding.artifact.entities} <= shown
        assert {origin for entity in finding.artifact.entities for origin in entity.origins} <= known


def test_findings_are_derived_and_not_saved() -> None:
    record = small_record()
    twice = with_findings(with_findings(record))
    assert twice == with_findings(record)
    assert "breaks" not in {artifact.stage for artifact in Run(record).record.artifacts}


def test_a_record_without_facts_has_no_findings() -> None:
    assert findings(Record("nothing", small_record().options)) == ()


def test_unchanged_finding_is_not_sent_again() -> None:
    payload = Payload(small_record())
    before = payload.parts_of("breaks")
    payload.update(small_record())
    assert all(payload.parts_of("breaks")[name] is part for name, part in before.items())


def test_a_finding_is_a_stage_of_a_run() -> None:
    run = Run(small_record())
    assert "graph break 1 of" in run["breaks"].text
    assert run["Breaks"] == run["breaks"]
    run.selection = run["breaks"].entities[0].id
    assert run.selection == (run["breaks"].entities[0].id,)


def largest_tensors(record: Record) -> Finding:
    rows = (Row((entity.label, str(entity.attrs.get("shape", "")))) for entity in record["captured"].entities)
    table = Table(("tensor", "shape"), tuple(rows))
    return document_finding("largest", "largest tensors", [table], {}, pluralize(len(table.rows), "tensor"))


def test_registered_finding_is_text_static_html_and_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer.findings.MAKERS", (largest_tensors,))
    record = small_record()
    run = Run(record)
    assert run["largest"].text.splitlines()[0].split() == ["tensor", "shape"]
    assert "<b>largest tensors</b>" in twin(record)
    [shown] = [stage for stage in Payload(record).manifest()["stages"] if stage["name"] == "largest"]
    assert shown["artifacts"][0]["view"] == "document"
    assert shown["count"] == len(record["captured"].entities)


def test_findings_are_computed_once_per_run_and_view(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Record] = []
    monkeypatch.setattr("explorer.findings.MAKERS", (made.append,))
    run = Run(small_record())
    assert run["captured"].stage == "captured"
    run.widget().update(run.record)
    assert made == [run.record]
