"""What `tcompile show`, `xray` and `diagnose` say, as answers for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from compiler.record import Artifact, Record
from explorer.run.answers import Answer

if TYPE_CHECKING:
    from compiler.logs.job import Job
    from explorer.findings.diagnosis import Diagnosis

BLOCK_LINES = 40
FACTS = ("breaks", "recompiles", "guards")


def record_answer(record: Record) -> Answer:
    """The summary of a record: its options, counts, stages and problems."""
    counts = {name: len(getattr(record, name)) for name in (*FACTS, "frames", "kernels")}
    facts = {
        "record_schema": record.schema,
        "origin": record.origin,
        "target": record.target,
        "calls": record.calls,
        "options": record.options,
        "environment": record.environment,
        "counts": counts,
    }
    stages = [
        {
            "id": artifact.id, "stage": artifact.stage, "title": artifact.title, "graph": artifact.graph,
            "half": artifact.half, "language": artifact.language, "lines": artifact.text.count("\n"),
            "entities": len(artifact.entities),
        }
        for artifact in record.artifacts
    ]  # fmt: skip
    problems = [{"id": f"problem.{number}", **asdict(each)} for number, each in enumerate(record.problems)]
    return Answer("record", record.full_title, facts, [*stages, *problems])


def facts_answer(record: Record, name: str) -> Answer:
    """A record's `breaks`, `recompiles` or `guards`, as they are in the record."""
    return Answer(name, record.full_title, {"record_schema": record.schema}, getattr(record, name))


def stage_answer(record: Record, artifacts: Sequence[Artifact]) -> Answer:
    """Artifacts of a stage: their texts in blocks of lines, then their entities with their origins."""
    items = [item for artifact in artifacts for item in (*_blocks(artifact), *_entities(artifact))]
    facts = {"record_schema": record.schema, "artifacts": [artifact.id for artifact in artifacts]}
    return Answer("stage", record.full_title, facts, items)


def _blocks(artifact: Artifact) -> Iterator[dict[str, Any]]:
    lines = artifact.text.removesuffix("\n").split("\n")
    for start in range(0, len(lines), BLOCK_LINES):
        rows = range(start + 1, min(start + BLOCK_LINES, len(lines)) + 1)
        yield {
            "id": f"{artifact.id}:{start + 1}", "artifact": artifact.id, "first_line": start + 1,
            "text": "\n".join(lines[start : start + BLOCK_LINES]),
            "entities": {str(row): artifact.lines[row] for row in rows if row in artifact.lines},
        }  # fmt: skip


def _entities(artifact: Artifact) -> Iterator[dict[str, Any]]:
    for each in artifact.entities:
        yield {
            "id": each.id, "kind": each.kind, "label": each.label, "attrs": each.attrs, "inputs": each.inputs,
            "origins": each.origins,
        }  # fmt: skip


def text_answer(kind: str, title: str, text: str) -> Answer:
    """A text in blocks of lines, for what has no other form."""
    lines = text.removesuffix("\n").split("\n")
    blocks = [
        {"id": f"{kind}:{start + 1}", "first_line": start + 1, "text": "\n".join(lines[start : start + BLOCK_LINES])}
        for start in range(0, len(lines), BLOCK_LINES)
    ]
    return Answer(kind, title, {}, blocks)


def job_answer(job: Job, title: str) -> Answer:
    """The index of a job: the compilations of all ranks, in order."""
    several = len(job.ranks) > 1
    items = [
        {
            "id": f"{number}:{one.id}" if several else one.id, "function": one.function, "file": one.file,
            "line": one.line, "status": one.status, "reason": one.reason, "seconds": one.total, "nodes": one.nodes,
            "kernels": one.kernels, "guards": one.guards, "breaks": len(one.breaks),
            "recompile_reasons": one.recompile_reasons, "cache": one.cache,
        }
        for number, rank in job.ranks.items()
        for one in rank.compilations
    ]  # fmt: skip
    return Answer("job", title, {"ranks": len(job.ranks)}, items)


def diagnosis_answer(found: Diagnosis) -> Answer:
    """A diagnosis: its findings in order. The patch is among the facts."""
    return Answer("diagnosis", found.title, {"patch": found.patch, "notes": found.notes}, found.findings)
