"""Findings: facts of a record, such as graph breaks, as artifacts with selectable lines and entities.

A finding is derived from a record when it is shown. Neither the record nor its JSON contains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from compiler.record import Record
from explorer.findings.block_masks import block_masks_finding
from explorer.findings.breaks import breaks_finding
from explorer.findings.chain.finding import chain_views
from explorer.findings.check_text import checks_finding
from explorer.findings.collectives import collectives_finding
from explorer.findings.frame_map import frame_map_finding
from explorer.findings.fusion.finding import fusion_finding
from explorer.findings.guards import guards_finding
from explorer.findings.memory.finding import memory_finding
from explorer.findings.passes import passes_views
from explorer.findings.pipeline import pipeline_finding
from explorer.findings.placements import placements_finding
from explorer.findings.recompiles import recompiles_finding
from explorer.findings.steps import steps_finding
from explorer.findings.timing.finding import timing_finding
from explorer.findings.units import ddp_finding, fsdp_finding
from explorer.findings.versus import versus_finding
from explorer.findings.xray import xray_finding
from explorer.reading.stages import stage_place
from explorer.render.finding import Finding, kept_views

__all__ = ["Finding", "KnownFindings", "findings", "views", "with_findings"]


def advice_finding(record: Record) -> Finding | None:
    """The advice on a record. Imported when it is made: the pages of logs are made without it."""
    from explorer.findings.advice.finding import advice_finding

    return advice_finding(record)


#: Functions that make the findings, in ribbon order. They return None for a record without such facts.
MAKERS: Final[tuple[Callable[[Record], Finding | None], ...]] = (
    frame_map_finding,
    breaks_finding,
    xray_finding,
    guards_finding,
    recompiles_finding,
    steps_finding,
    ddp_finding,
    fsdp_finding,
    placements_finding,
    block_masks_finding,
    pipeline_finding,
    fusion_finding,
    collectives_finding,
    versus_finding,
    timing_finding,
    memory_finding,
    checks_finding,
    advice_finding,
)

#: Makers that import torch, which takes seconds where torch isn't imported yet.
NEEDING_TORCH: Final = frozenset((advice_finding,))

#: Functions that yield a finding for each of the record's own artifacts that has a view.
VIEWS: Final[tuple[Callable[[Record], Iterator[Finding]], ...]] = (
    chain_views,
    kept_views,
    passes_views,
)


def views(record: Record) -> Iterator[Finding]:
    """Findings for those of the record's own artifacts that have a view."""
    for shown in VIEWS:
        yield from shown(record)


def findings(record: Record, *, needing_torch: bool = True) -> tuple[Finding, ...]:
    """Findings of a record in ribbon order. Stages that the record already has as artifacts are left out."""
    present = {artifact.stage for artifact in record.artifacts}
    made = (make(record) for make in MAKERS if needing_torch or make not in NEEDING_TORCH)
    return tuple(finding for finding in made if finding is not None and finding.artifact.stage not in present)


def with_findings(record: Record, found: Iterable[Finding] | None = None) -> Record:
    """Record with findings added as artifacts, each at its stage's position on the ribbon; by default all findings."""
    derived = [finding.artifact for finding in (findings(record) if found is None else found)]
    if not derived:
        return record
    artifacts = list(record.artifacts)
    for artifact in derived:
        artifacts.insert(stage_place(artifact.stage, [other.stage for other in artifacts]), artifact)
    return record.with_fields(artifacts=tuple(artifacts))


class KnownFindings:
    """Cache of the most recent record's findings, for all views of this record."""

    def __init__(self, *, needing_torch: bool = True) -> None:
        self._needing_torch = needing_torch
        self._last: tuple[Record, tuple[Finding, ...], Record] | None = None

    def look_up(self, record: Record) -> tuple[tuple[Finding, ...], Record]:
        """A record's findings, and the record with its findings among the artifacts."""
        last = self._last
        if last is None or last[0] is not record:
            found = findings(record, needing_torch=self._needing_torch)
            self._last = last = (record, found, with_findings(record, found))
        return last[1], last[2]
