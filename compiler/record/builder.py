"""A record under construction: artifacts are added one by one, and a listener is notified of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from compiler import record as facts
from compiler.record import MACHINE_STAGES, Artifact, Problem, Record, Timing, ordered_stages
from compiler.record.options import Options


@dataclass(frozen=True, slots=True)
class Event:
    """An event for listeners: a stage has started, an artifact was added or updated, a stage is not available,
    something slow is in progress, or the exploration has finished. `seconds` is PyTorch's time for the stage, `words`
    describe the progress.
    """

    kind: Literal["started", "progress", "artifact", "problem", "finished"]
    stage: str
    graph: str = ""
    artifact: Artifact | None = None
    seconds: float = 0.0
    problem: Problem | None = None
    words: str = ""


Listener = Callable[[Event], None]


@dataclass
class Builder:
    """Collects the parts of a `Record`; `record()` returns the record so far, in pipeline order."""

    title: str
    options: Options
    environment: facts.Environment
    listener: Listener | None = None
    target: str = ""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    frames: dict[str, facts.Frame] = field(default_factory=dict)
    breaks: list[facts.GraphBreak] = field(default_factory=list)
    guards: list[facts.Guard] = field(default_factory=list)
    symbols: list[facts.Symbol] = field(default_factory=list)
    recompiles: list[facts.Recompile] = field(default_factory=list)
    decisions: list[facts.Decision] = field(default_factory=list)
    merges: list[facts.Merge] = field(default_factory=list)
    kernels: list[facts.Kernel] = field(default_factory=list)
    binaries: list[facts.Binary] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    measurement: facts.Measurement | None = None
    candidates: list[facts.Candidate] = field(default_factory=list)
    kernel_times: list[facts.KernelTime] = field(default_factory=list)
    line_times: list[facts.LineTime] = field(default_factory=list)
    memory: list[facts.MemoryEvent] = field(default_factory=list)
    phases: list[facts.Phase] = field(default_factory=list)
    checks: list[facts.Check] = field(default_factory=list)
    hidden: dict[str, tuple[str, ...]] = field(default_factory=dict)
    hidden_kernels: dict[str, Artifact] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    steps: tuple[facts.Step, ...] = ()
    calls: int = 0
    autograd_saved: list[facts.Saved] = field(default_factory=list)
    versus: Record | None = None
    origin: facts.Origin = "observed"
    place: facts.RankPlace | None = None
    groups: dict[str, facts.Group] = field(default_factory=dict)
    collectives: list[facts.Collective] = field(default_factory=list)
    units: list[facts.Unit] = field(default_factory=list)
    bucket_plans: list[facts.BucketPlan] = field(default_factory=list)
    pipelines: list[facts.PipelineSchedule] = field(default_factory=list)

    def add(self, artifact: Artifact, seconds: float | None = None) -> Artifact:
        """Add an artifact. If `options.stages` excludes its stage, keep only the origins, which links need.

        Returns the artifact, in which the next stage finds its origins.
        """
        if not self.keeps(artifact.stage):
            self.hidden.update((entity.id, self._visible(entity.origins)) for entity in artifact.entities)
            if artifact.stage == "kernels":  # their compiled stages may still be requested
                self.hidden_kernels[artifact.id] = artifact
            return artifact
        if self.hidden:
            entities = (replace(entity, origins=self._visible(entity.origins)) for entity in artifact.entities)
            artifact = replace(artifact, entities=tuple(entities))
        if self.artifacts.get(artifact.id) == artifact:
            return artifact
        self.artifacts[artifact.id] = artifact
        if seconds is not None:
            self.timings.append(Timing(artifact.id, "compile", seconds))
        self._tell(Event("artifact", artifact.stage, artifact.graph, artifact, seconds or 0.0))
        return artifact

    def keeps(self, stage: str) -> bool:
        asked = self.options.stages
        return not asked or stage == "source" or stage in asked or "all" in asked

    def _visible(self, origins: Iterable[str]) -> tuple[str, ...]:
        found = (visible for origin in origins for visible in self.hidden.get(origin, (origin,)))
        return tuple(dict.fromkeys(found))

    def start(self, stage: str, graph: str = "") -> None:
        self._tell(Event("started", stage, graph))

    def progress(self, stage: str, words: str) -> None:
        self._tell(Event("progress", stage, words=words))

    def problem(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            self._tell(Event("problem", problem.stage, problem.graph, problem=problem))

    def finish(self) -> None:
        self._tell(Event("finished", ""))

    def _tell(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)

    def record(self) -> Record:
        kept = {name: _freeze(getattr(self, name)) for name in _IN_RECORD}
        return Record(**kept | {"artifacts": tuple(in_pipeline_order(self.artifacts.values()))})


_IN_RECORD = {field.name for field in fields(Builder)} & {field.name for field in fields(Record)}


def _freeze(value: Any) -> Any:
    """Convert a list or dict of the builder to a tuple; return other values unchanged."""
    return tuple(value) if isinstance(value, list) else tuple(value.values()) if isinstance(value, dict) else value


def in_pipeline_order(artifacts: Iterable[Artifact]) -> list[Artifact]:
    found = list(artifacts)
    place = {stage: index for index, stage in enumerate(ordered_stages(artifact.stage for artifact in found))}
    return sorted(found, key=lambda artifact: place[artifact.stage])


def in_kernel_order(record: Record) -> Record:
    """The record with its binaries, and their artifacts and problems, in the order of its kernels."""
    place = {kernel.id: index for index, kernel in enumerate(record.kernels)}
    artifacts = sorted(record.artifacts, key=lambda artifact: place.get(artifact.attrs.get("kernel", ""), -1))
    late = [problem for problem in record.problems if problem.stage in MACHINE_STAGES]
    early = [problem for problem in record.problems if problem.stage not in MACHINE_STAGES]
    return replace(
        record,
        artifacts=tuple(in_pipeline_order(artifacts)),
        binaries=tuple(sorted(record.binaries, key=lambda found: place.get(found.kernel, -1))),
        problems=(*early, *sorted(late, key=lambda problem: (problem.graph, problem.reason))),
    )


class Clock:
    """Measures PyTorch's time for a stage, without tcompile's own time in between."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since `resume`, when PyTorch last continued."""
        return time.perf_counter() - self._last

    def resume(self) -> None:
        self._last = time.perf_counter()
