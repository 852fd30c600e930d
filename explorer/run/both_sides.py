"""Merge two records, so that one view shows both: artifacts of the second side get new ids.

Source code that is the same on both sides is kept once, and its lines are linked to entities of both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from compiler.record import Artifact, Entity, Kernel, Record, ordered_stages
from explorer.findings import findings, with_findings
from explorer.findings.versus import names_of
from explorer.reading.stages import STAGE_WORDS
from explorer.render.finding import as_artifact
from explorer.run.compiling import KernelCompiler

SIDE, PAIR = "side", "pair"
"""Keys of `Artifact.attrs`: the artifact's side, and the id of its counterpart on the other side."""


def both_sides(before: Record, after: Record, labels: tuple[str, str]) -> Record:
    """Merge the artifacts, kernels, binaries and decisions of two records; most other fields are the first's."""
    from explorer.findings.kernel_diff import matching_ids

    before, after = _with_views(before), _with_views(after)
    shared = _shared_sources(before, after)
    kept = {entity.id for artifact in after.artifacts if artifact.id in shared for entity in artifact.entities}
    rename = _make_rename(labels[1], kept)
    own = _ids(after) - shared
    partner = matching_ids(before, after)
    second = [artifact for artifact in after.artifacts if artifact.id not in shared]
    others = {artifact.id: partner.get(artifact.id, artifact.id) for artifact in second}
    pairs = {other: rename(own_id) for own_id, other in others.items()}
    first = [artifact if artifact.id in shared or artifact.stage == "versus"
             else _mark_side(artifact, labels[0], pairs.get(artifact.id, ""))
             for artifact in before.artifacts]  # fmt: skip
    known = {artifact.id: artifact.id for artifact in before.artifacts}
    stages = [artifact.stage for artifact in (*before.artifacts, *after.artifacts)]
    places = {stage: place for place, stage in enumerate(ordered_stages(stages, [*STAGE_WORDS]))}
    moved = [
        _mark_side(_rename_artifact(artifact, rename, own), labels[1], known.get(others[artifact.id], ""))
        for artifact in second
    ]
    return before.with_fields(
        title=before.title if before.title == after.title else f"{before.title}, {after.title}",
        artifacts=tuple(sorted((*first, *moved), key=lambda artifact: places[artifact.stage])),
        trust="untrusted" if after.trust == "untrusted" else before.trust,
        versus=after if before.options.backend != after.options.backend else None,
        kernels=(*before.kernels, *(_rename_kernel(kernel, rename) for kernel in after.kernels)),
        binaries=(*before.binaries, *(replace(one, kernel=rename(one.kernel)) for one in after.binaries)),
        decisions=(
            *before.decisions,
            *(replace(one, subjects=tuple(map(rename, one.subjects))) for one in after.decisions),
        ),
    )


def with_other_side(record: Record) -> Record:
    """The record for a view: merged with the other backend's record, if there is one."""
    if record.versus is None or any(SIDE in artifact.attrs for artifact in record.artifacts):
        return record
    return both_sides(record, record.versus, names_of(record))


def _with_views(record: Record) -> Record:
    """Add the record's findings before merging, because a merged record would give findings of one side only."""
    return with_findings(record, [replace(found, artifact=as_artifact(found)) for found in findings(record)])


def _ids(record: Record) -> set[str]:
    """The ids of a record's entities and artifacts, except findings, whose ids are the stage names."""
    artifacts = {artifact.id for artifact in record.artifacts if artifact.id != artifact.stage}
    return artifacts | {entity.id for entity in record.entities()}


def _shared_sources(before: Record, after: Record) -> set[str]:
    """Ids of the source artifacts with the same text on both sides."""
    texts = {artifact.id: artifact.text for artifact in before.of_stage("source")}
    return {artifact.id for artifact in after.of_stage("source") if texts.get(artifact.id) == artifact.text}


def _make_rename(label: str, kept: Collection[str]) -> Callable[[str], str]:
    return lambda name: name if name in kept else f"{label}: {name}"


def _mark_side(artifact: Artifact, side: str, pair: str) -> Artifact:
    attrs: dict[str, Any] = {SIDE: side} | ({PAIR: pair} if pair else {})
    return replace(artifact, attrs=artifact.attrs | attrs)


def _rename_artifact(artifact: Artifact, rename: Callable[[str], str], own: Collection[str]) -> Artifact:
    return replace(
        artifact,
        id=rename(artifact.id),
        lines={line: tuple(map(rename, ids)) for line, ids in artifact.lines.items()},
        entities=tuple(_rename_entity(entity, rename) for entity in artifact.entities),
        attrs=_rename_ids(artifact.attrs, rename, own),
    )


def _rename_ids(value: Any, rename: Callable[[str], str], own: Collection[str]) -> Any:
    """Rename every string in a JSON value that is the id of an artifact or an entity."""
    if isinstance(value, str):
        return rename(value) if value in own else value
    if isinstance(value, Mapping):
        return {_rename_ids(key, rename, own): _rename_ids(each, rename, own) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rename_ids(each, rename, own) for each in value]
    return value


def _rename_entity(entity: Entity, rename: Callable[[str], str]) -> Entity:
    inputs, origins = tuple(map(rename, entity.inputs)), tuple(map(rename, entity.origins))
    return replace(entity, id=rename(entity.id), inputs=inputs, origins=origins)


def _rename_kernel(kernel: Kernel, rename: Callable[[str], str]) -> Kernel:
    nodes = tuple(map(rename, kernel.nodes))
    return replace(kernel, id=rename(kernel.id), artifact=rename(kernel.artifact), nodes=nodes)


class BothSides(KernelCompiler):
    """Kernel compiler of two merged records; each side's kernels are compiled for its own target."""

    def __init__(self, before: KernelCompiler, after: KernelCompiler, labels: tuple[str, str]) -> None:
        super().__init__(both_sides(before.record, after.record, labels))
        self._sides = (before, after)
        self._labels = labels

    def trust(self) -> Record:
        """Allow the code of both sides' kernels to be executed on this machine."""
        for side in self._sides:
            side.trust()
        return super().trust()

    @property
    def left(self) -> tuple[Kernel, ...]:
        return tuple(kernel for side in self._sides for kernel in side.left)

    def pending_stages(self) -> dict[str, int]:
        """Number of kernels of both sides that can still be compiled, by stage."""
        sides = [side.pending_stages() for side in self._sides]
        return {stage: sum(side.get(stage, 0) for side in sides) for stage in {**sides[0], **sides[1]}}

    def compile(self, kernels: Collection[str] | None = None, config: int = 0) -> Record:
        """Compile the remaining kernels of both sides in turn. Raises ValueError if arguments are given."""
        if kernels is not None or config:
            raise ValueError("both sides are compiled whole, in their first configuration: compile a run for more")
        if self.left:
            self._record.require_trust()
        self._cancelled.clear()
        total = len(self.left)

        def hear(_: Record, progress: dict[str, Any]) -> None:
            if progress:
                self._tell({"done": total - len(self.left) + progress["done"], "total": total})

        try:
            for side in self._sides:
                self._compile_side(side, hear)
        finally:
            self._record = both_sides(self._sides[0].record, self._sides[1].record, self._labels)
            self._tell({})
        return self._record

    def _compile_side(self, side: KernelCompiler, hear: Callable[[Record, dict[str, Any]], None]) -> None:
        side.listen(hear)
        try:
            if not self._cancelled.is_set():
                side.compile()
        finally:
            side.forget(hear)

    def cancel(self) -> None:
        super().cancel()
        for side in self._sides:
            side.cancel()
