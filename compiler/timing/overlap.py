"""When a rank computes and when it communicates: a schedule of two lanes for each half of a graph, by estimates.

The generated code runs on one stream, in its order. A collective runs on another stream: it starts where the code
starts it, after the collectives before it, and the code stands still at its wait until it has finished. Kernels take
their least time on the target GPU (`compiler.timing.estimates`), collectives the time of torch's cost model. Gaps
between launches, and compute that slows down while a collective runs, are not included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from compiler.inductor.kernels import WAIT, nodes_of_call
from compiler.record import Artifact, Collective, Entity, GraphHalf, Record

Lane = Literal["compute", "communication"]
HIDDEN = 0.01
"""A collective counts as hidden if less than this share of it is exposed."""


@dataclass(frozen=True, slots=True)
class Span:
    """A kernel or a collective in the schedule. `entity` is its call in the generated code; times are in seconds."""

    lane: Lane
    name: str
    start: float
    seconds: float
    entity: str
    collective: str = ""

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class Schedule:
    """One half of a graph. `exposed` maps each collective to the seconds that the code stands still for it.

    `seconds` is the time from the first to the last span. `unknown` names calls whose time is not known: they take none
    here.
    """

    graph: str
    half: GraphHalf
    spans: tuple[Span, ...]
    exposed: Mapping[str, float]
    seconds: float
    unknown: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.half or 'graph'} {self.graph}"

    def busy(self, lane: Lane) -> float:
        """Seconds in which this lane is in use."""
        return sum(span.seconds for span in self.spans if span.lane == lane)

    @property
    def exposed_seconds(self) -> float:
        return sum(self.exposed.values())

    def kernels_during(self, collective: str) -> tuple[Span, ...]:
        """The kernels that run while a collective runs."""
        span = next((span for span in self.spans if span.collective == collective), None)
        if span is None:
            return ()
        compute = (other for other in self.spans if other.lane == "compute")
        return tuple(other for other in compute if other.start < span.end and span.start < other.end)


def schedules(record: Record) -> tuple[Schedule, ...]:
    """The schedule of each half of a graph with collectives; () if torch has no estimate for the target."""
    if all(found.seconds is None for found in record.collectives):
        return ()
    from compiler.timing.estimates import estimate  # imports torch, which is not needed to read other records

    estimated = estimate(record)
    if estimated is None:
        return ()
    seconds = {each.kernel: each.seconds / each.launches for each in estimated.kernels if each.seconds}
    up = {entity.id: entity.origins for artifact in record.artifacts for entity in artifact.entities}
    made = (_schedule(artifact, record.collectives, seconds, up) for artifact in record.of_stage("kernels"))
    return tuple(schedule for schedule in made if schedule is not None)


def _schedule(
    artifact: Artifact, known: Sequence[Collective], seconds: Mapping[str, float], up: Mapping[str, tuple[str, ...]]
) -> Schedule | None:
    own = [found for found in known if (found.graph, found.half) == (artifact.graph, artifact.half)]
    called = {identity: found for found in own for identity in found.entities}
    waits = {found.wait: found for found in own if found.wait}
    if not own:
        return None
    lanes = _Lanes()
    for entity in _calls(artifact):
        waited = next((waits[node] for node in nodes_of_call(entity, up) if node in waits), None)
        if found := called.get(entity.id):
            lanes.start(entity, found)
        elif entity.kind == "extern" and entity.label.startswith(WAIT):
            lanes.wait(waited)
        else:
            kernel = entity.id if entity.kind == "extern" else f"{artifact.id}.{entity.label}"
            lanes.compute(entity, seconds.get(kernel))
    lanes.unknown += [found.operator for found in own if found.origin == "graph" and found.id not in lanes.exposed]
    return lanes.finish(artifact)


def with_earliest_starts(schedule: Schedule, record: Record) -> Schedule:
    """The same kernels in the same order, if each collective started as soon as its input is there.

    The code waits where a kernel reads the result. No order of collectives alone can be faster, and a pass that also
    limits memory is slower.
    """
    needs = _needs(schedule, record)
    ends: dict[str, float] = {}
    exposed = dict.fromkeys(schedule.exposed, 0.0)
    spans: list[Span] = []
    left = [span for span in schedule.spans if span.collective]
    now = free = 0.0

    def start_collectives() -> None:
        nonlocal free
        for span in [span for span in left if needs[span.entity] <= ends.keys()]:
            left.remove(span)
            ready = max((ends[name] for name in needs[span.entity]), default=0.0)
            spans.append(replace(span, start=max(free, ready)))
            free = ends[span.entity] = spans[-1].end

    sent = {span.entity: span.collective for span in schedule.spans if span.collective}
    for span in schedule.spans:
        start_collectives()
        if not span.collective:
            last = max(needs[span.entity] & sent.keys(), key=ends.__getitem__, default="")
            if last and ends[last] > now:
                exposed[sent[last]] += ends[last] - now
                now = ends[last]
            spans.append(replace(span, start=now))
            now = ends[span.entity] = spans[-1].end
    start_collectives()
    for name in sorted(sent, key=ends.__getitem__):
        exposed[sent[name]] += max(0.0, ends[name] - now)
        now = max(now, ends[name])
    return replace(schedule, spans=tuple(spans), exposed=exposed, seconds=now)


def _needs(schedule: Schedule, record: Record) -> dict[str, set[str]]:
    """For each span, the earlier spans that compute what it reads, by the dataflow of the last graph."""
    mine = [found for found in record.artifacts if (found.graph, found.half) == (schedule.graph, schedule.half)]
    up = {entity.id: entity.origins for artifact in mine for entity in artifact.entities}
    inputs = {entity.id: entity.inputs for found in mine if found.stage == "post_grad" for entity in found.entities}
    calls = {entity.id: entity for found in mine if found.stage == "kernels" for entity in found.entities}
    makers: dict[str, list[str]] = {}
    found: dict[str, set[str]] = {}
    for span in schedule.spans:
        own = tuple(nodes_of_call(calls[span.entity], up))
        todo, seen = list(own), set(own)
        needed: set[str] = set()
        while todo:
            for name in inputs.get(todo.pop(), ()):
                if name not in seen:
                    seen.add(name)
                    needed.update(makers.get(name, ()))
                    todo += [] if name in makers else [name]
        found[span.entity] = needed - {span.entity}
        for name in own:
            makers.setdefault(name, []).append(span.entity)
    return found


def _calls(artifact: Artifact) -> list[Entity]:
    """Calls of the generated code, in its order."""
    found = (entity for entity in artifact.entities if entity.kind in ("call", "extern"))
    return sorted(found, key=lambda entity: int(entity.attrs.get("line", 0)))


class _Lanes:
    """Both lanes while a half is gone through; `now` is where the code is, `free` when communication is idle again."""

    def __init__(self) -> None:
        self.now = self.free = 0.0
        self.spans: list[Span] = []
        self.ends: dict[str, float] = {}
        self.exposed: dict[str, float] = {}
        self.unknown: list[str] = []

    def compute(self, entity: Entity, seconds: float | None) -> None:
        if seconds is None:
            self.unknown.append(entity.label)
            return
        self.spans.append(Span("compute", entity.label, self.now, seconds, entity.id))
        self.now += seconds

    def start(self, entity: Entity, found: Collective) -> None:
        if found.seconds is None:
            self.unknown.append(found.operator)
            return
        begin = max(self.now, self.free)
        self.spans.append(Span("communication", found.kind, begin, found.seconds, entity.id, found.id))
        self.free = self.ends[found.id] = begin + found.seconds
        self.exposed[found.id] = 0.0
        if not found.wait:  # the call itself returns the result
            self.wait(found)

    def wait(self, found: Collective | None) -> None:
        end = self.ends.pop(found.id, self.now) if found is not None else self.now
        if found is not None and end > self.now:
            self.exposed[found.id] += end - self.now
            self.now = end

    def finish(self, artifact: Artifact) -> Schedule:
        """The schedule; a collective that nothing waits for in this half is exposed after the last kernel."""
        for name, end in sorted(self.ends.items(), key=lambda item: item[1]):
            self.exposed[name] += max(0.0, end - self.now)
            self.now = max(self.now, end)
        unknown = tuple(dict.fromkeys(self.unknown))
        return Schedule(artifact.graph, artifact.half, tuple(self.spans), self.exposed, self.now, unknown)
