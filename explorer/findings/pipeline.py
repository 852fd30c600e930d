"""The schedule of a pipeline as a chart: a row for each rank, a column for each step of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from compiler.record import Entity, PipelineSchedule, Record
from compiler.record.distributed_facts import PipelineStep
from compiler.record.plain_text import pluralize
from explorer.render.document import Items, Link, Parts, Row, Table, Tag, Text, Words
from explorer.render.finding import Finding
from explorer.render.text import document_finding

COSTS: Final = {"F": 1, "B": 2, "I": 1, "W": 1}
"""Units of time of each kind of step: a full backward computes gradients of inputs and of weights."""
_NAMES: Final = {"F": "forward", "B": "backward", "I": "backward for the inputs", "W": "backward for the weights"}
_STYLES: Final = {"F": "compiled", "B": "recompiled", "I": "recompiled", "W": "limit"}
MOST_COLUMNS: Final = 200
MOST_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class Timed:
    """A step of a rank with the time at which it begins, in units of one forward."""

    step: PipelineStep
    begin: int

    @property
    def end(self) -> int:
        return self.begin + COSTS[self.step.kind]


def pipeline_finding(record: Record) -> Finding | None:
    """Finding with a chart of each pipeline schedule; None for a record without pipelines."""
    if not record.pipelines:
        return None
    document = [part for schedule in record.pipelines for part in _parts(schedule, record)]
    entities = {f"pipeline.{index}": _entity(schedule, index) for index, schedule in enumerate(record.pipelines)}
    stages = sum(schedule.stages for schedule in record.pipelines)
    return document_finding("pipeline", "Pipeline schedule", document, entities, pluralize(stages, "stage"))


def _entity(schedule: PipelineSchedule, index: int) -> Entity:
    attrs = {"stages": schedule.stages, "microbatches": schedule.microbatches}
    return Entity(f"pipeline.{index}", "pipeline", schedule.name, attrs)


def timed_steps(schedule: PipelineSchedule) -> list[list[Timed]] | None:
    """When each step begins, if every step starts as soon as it can; None if the steps wait for each other.

    A forward waits for the stage before, a backward for its forward and for the stage after; sending takes no time.
    """
    ends: dict[tuple[int, str, int], int] = {}
    timed: list[list[Timed]] = [[] for _ in schedule.steps]
    todo = sum(map(len, schedule.steps))
    while todo:
        before = todo
        for rank, steps in enumerate(schedule.steps):
            while len(timed[rank]) < len(steps):
                step = steps[len(timed[rank])]
                ready = _ready(step, schedule.stages, ends)
                if ready is None:
                    break
                found = Timed(step, max(ready, timed[rank][-1].end if timed[rank] else 0))
                timed[rank].append(found)
                ends[step.stage, step.kind, step.microbatch] = found.end
                todo -= 1
        if todo == before:
            return None
    return timed


def _ready(step: PipelineStep, stages: int, ends: dict[tuple[int, str, int], int]) -> int | None:
    """Time at which a step's inputs are there; None if one of them is not scheduled yet."""
    needed: list[Sequence[tuple[int, str, int]]] = []
    if step.kind == "F":
        needed += [[(step.stage - 1, "F", step.microbatch)]] if step.stage else []
    elif step.kind == "W":
        needed.append([(step.stage, "I", step.microbatch)])
    else:
        needed.append([(step.stage, "F", step.microbatch)])
        if step.stage < stages - 1:
            needed.append([(step.stage + 1, kind, step.microbatch) for kind in ("B", "I")])
    found = [min((ends[key] for key in keys if key in ends), default=None) for keys in needed]
    known = [time for time in found if time is not None]
    return max(known, default=0) if len(known) == len(found) else None


def _parts(schedule: PipelineSchedule, record: Record) -> Iterator[Parts]:
    timed = timed_steps(schedule)
    ranks = len(schedule.steps)
    name = f"`{schedule.name}`: {pluralize(schedule.stages, 'stage')} on {pluralize(ranks, 'rank')}"
    yield Text(f"{name}, {pluralize(schedule.microbatches, 'microbatch', 'microbatches')} a step.", "lead")
    if timed is None:
        yield Text("The steps of this schedule wait for each other in a circle: it would hang.", "warning")
        return
    length = max((steps[-1].end for steps in timed if steps), default=0)
    idle = [length - sum(COSTS[each.step.kind] for each in steps) for steps in timed]
    yield Text(
        f"{length} units of time, of which this rank is idle for {idle[schedule.rank]} "
        f"({idle[schedule.rank] / max(length, 1):.0%}, an estimate: a forward of a stage takes 1 unit, a backward 2, "
        "sending nothing)."
    )
    several = schedule.stages > ranks
    yield _chart(schedule, timed, length, record, several=several)
    in_flight = [most_in_flight(steps) for steps in timed]
    yield Items(
        (
            "`F0` is the forward of microbatch 0, `B0` its backward"
            + (", `I0` and `W0` the backward for inputs and for weights" if _splits(schedule) else "")
            + ("; a number before it is the stage." if several else "."),
            f"Activations are kept for at most {pluralize(in_flight[schedule.rank], 'microbatch', 'microbatches')} at "
            f"a time on this rank, {max(in_flight)} on the rank with most.",
        ),
        bullet="- ",
    )  # fmt: skip


def _splits(schedule: PipelineSchedule) -> bool:
    return any(step.kind == "W" for steps in schedule.steps for step in steps)


def most_in_flight(steps: Sequence[Timed]) -> int:
    """The largest number of microbatches of a rank's stages whose forward has run, and whose backward has not."""
    now = most = 0
    for each in steps:
        now += {"F": 1, "B": -1, "W": -1}.get(each.step.kind, 0)
        most = max(most, now)
    return most


def _chart(
    schedule: PipelineSchedule, timed: Sequence[Sequence[Timed]], length: int, record: Record, *, several: bool
) -> Table:
    columns = min(length, MOST_COLUMNS)
    head: tuple[Words, ...] = ("time", *(str(column) for column in range(columns)))
    graph = next((artifact.id for artifact in record.of_stage("captured")), "")
    rows = []
    for rank, steps in enumerate(timed[:MOST_ROWS]):
        mine = rank == schedule.rank
        first: Words = Link(f"rank {rank}, this one", open=graph, title="Show its graph") if mine else f"rank {rank}"
        cells: list[Words] = [""] * columns
        for each in steps:
            for column in range(each.begin, min(each.end, columns)):
                cells[column] = _cell(each.step, rank, several=several)
        rows.append(Row((first, *cells)))
    cut = [f"{length - columns} later units of time"] if length > columns else []
    cut += [f"{len(timed) - MOST_ROWS} more ranks"] if len(timed) > MOST_ROWS else []
    caption: Words = Tag(f"Not shown: {' and '.join(cut)}", "muted") if cut else ""
    return Table(head, tuple(rows), caption, style="timeline", label="Steps by rank and time")


def _cell(step: PipelineStep, rank: int, *, several: bool) -> Link:
    name = f"{step.stage if several else ''}{step.kind}{step.microbatch}"
    title = f"Rank {rank}: {_NAMES[step.kind]} of microbatch {step.microbatch} at stage {step.stage}"
    return Link(name, title=title, style=_STYLES[step.kind])
