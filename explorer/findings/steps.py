"""TorchDynamo's analysis of the code: an outline of calls and lines, and data for the view that steps through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from compiler.record import Artifact, Entity, Record, Step
from explorer.findings.replay import break_step
from explorer.reading.source_lines import SourceLines
from explorer.render.finding import Finding

#: Exception that ends an attempt when Dynamo can't continue; the next attempt ends the graph before that point.
_SPECULATION = "SpeculationRestartAnalysis"


@dataclass(frozen=True, slots=True)
class Reading:
    """One attempt to trace a frame. `spans` are ranges of its step indices (end exclusive), in record order."""

    frame: str
    attempt: int
    spans: tuple[tuple[int, int], ...]

    def steps(self, record: Record) -> Iterator[Step]:
        for first, end in self.spans:
            yield from record.steps[first:end]


def steps_finding(record: Record) -> Finding | None:
    """Finding with the recorded steps; None for a record made without `--step`."""
    if not record.steps:
        return None
    found = readings(record.steps)
    return Finding(outline(record, found), "view", "steps", steps_data(record, found))


def readings(steps: Iterable[Step]) -> list[Reading]:
    """The attempts to trace each frame, in order of their first step."""
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    at = 0
    for key, group in groupby(steps, key=lambda step: (step.frame, step.attempt)):
        end = at + sum(1 for _ in group)
        spans.setdefault(key, []).append((at, end))
        at = end
    return [Reading(frame, attempt, tuple(found)) for (frame, attempt), found in spans.items()]


# As text.


def outline(record: Record, found: Iterable[Reading]) -> Artifact:
    """Outline of the calls that Dynamo inlined, the lines it read, and the nodes that each line added to the graph.

    An entity is a source line in one attempt, however often it was read.
    """
    places = SourceLines(record)
    code = {entity.id: entity.label for source in record.of_stage("source") for entity in source.entities}
    text: list[str] = []
    lines: dict[int, tuple[str, ...]] = {}
    entities: dict[str, Entity] = {}
    for reading in found:
        text.append(f"frame {reading.frame}, attempt {reading.attempt}")
        for row, step in _rows(reading.steps(record), places, code):
            text.append(row)
            name = f"steps.{reading.frame}.{reading.attempt}.{step.file}:{step.line}"
            lines[len(text)] = (name,)
            if name not in entities:
                attrs = {"function": step.function, "file": step.file, "line": step.line, "frame": reading.frame}
                origin = places.id_of(step.file, step.line)
                entities[name] = Entity(name, "read line", f"line {step.line}", attrs, (), (origin,) if origin else ())
    attrs = {"count": len(record.steps)}
    body = "\n".join(text) + "\n"
    return Artifact("steps", "steps", "how Dynamo read it", "text", body, "", lines, tuple(entities.values()), attrs)


def _rows(steps: Iterable[Step], places: SourceLines, code: dict[str, str]) -> Iterator[tuple[str, Step]]:
    """Text rows of one attempt, each with the step it belongs to."""
    last: tuple[object, ...] = ()
    for step in steps:
        indent = "  " * (2 * step.depth + 1)
        if step.first:
            yield f"{indent}{step.function}  {step.file}", step
        here = (step.depth, step.file, step.line)
        if step.first or here != last:
            yield f"{indent}{step.line:>6}  {code.get(places.id_of(step.file, step.line), '')}".rstrip(), step
        last = here
        for node in step.nodes:
            yield f"{indent}        + {node}", step
        if step.ended:
            yield f"{indent}        ! {step.ended}", step


# As data.


@dataclass
class _Strings:
    """String table: each distinct string has an index."""

    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def all(self, texts: Iterable[str]) -> list[int]:
        return [self(text) for text in texts]


def steps_data(record: Record, found: Iterable[Reading]) -> dict[str, Any]:
    """The steps as columns; strings are indices into `strings`.

    `at` is a step's row in `places` (function, file, line, offset, opcode, argument, id of the source line). `calls` is
    twice the step's depth, plus one at the first step of a call. `kept`, `pushed`, `changed` (alternating names and
    values), `nodes` and `guards` are fields of `Step`. `ended` pairs a step with its exception, `breaks` a step with
    its break.
    """
    text, lines = _Strings(), SourceLines(record)
    places: dict[tuple[int, ...], int] = {}

    def place(step: Step) -> int:
        where = (text(step.function), text(step.file), step.line, step.offset, text(step.opcode), text(step.argument))
        return places.setdefault((*where, text(lines.id_of(step.file, step.line))), len(places))

    steps = record.steps
    columns = {
        "at": [place(step) for step in steps],
        "calls": [2 * step.depth + step.first for step in steps],
        "kept": [step.kept for step in steps],
        "pushed": [text.all(step.pushed) for step in steps],
        "changed": [text.all(part for pair in step.changed.items() for part in pair) for step in steps],
        "nodes": [text.all(step.nodes) for step in steps],
        "guards": [text.all(step.guards) for step in steps],
        "ended": [[number, text(step.ended)] for number, step in enumerate(steps) if step.ended],
    }
    return columns | {
        "readings": [reading_entry(record, reading) for reading in found],
        "breaks": [list(pair) for pair in break_steps(record)],
        "cut": cut(record),
        "places": [list(where) for where in places],
        "strings": list(text.numbers),
    }


def frame_title(record: Record, name: str) -> str:
    """Title of a frame in a list: `f (0/0)`; the title of a resume function has the line of its break."""
    found = next((frame for frame in record.frames if frame.id == name), None)
    if found is None:
        return name
    broke = next((item for item in record.breaks if found.resumes == item.id), None)
    return f"{broke.function}, from line {broke.line} on ({name})" if broke else f"{found.function} ({name})"


def reading_entry(record: Record, reading: Reading) -> dict[str, Any]:
    """An attempt as data, with the reason for the restart; "" for the first attempt."""
    entry = {"title": frame_title(record, reading.frame), "frame": reading.frame, "attempt": reading.attempt}
    return entry | {"why": _restart_reason(record, reading), "spans": [list(span) for span in reading.spans]}


def _restart_reason(record: Record, reading: Reading) -> str:
    reasons = next((frame.restarts for frame in record.frames if frame.id == reading.frame), ())
    again = reading.attempt - 2
    if 0 <= again < len(reasons):
        return reasons[again]
    earlier = (step for step in record.steps if (step.frame, step.attempt) == (reading.frame, reading.attempt - 1))
    breaks = any(step.ended.startswith(_SPECULATION) for step in earlier)
    return "the graph has to end before the instruction that broke it." if breaks else ""


def break_steps(record: Record) -> Iterator[tuple[int, str]]:
    """Step index and description of each graph break; breaks whose step was not recorded are left out."""
    for number, found in enumerate(record.breaks):
        step = break_step(record, number)
        if step is not None:
            yield step, found.what or found.kind


def cut(record: Record) -> str:
    """Warning, with a hint, if not all steps were recorded; "" otherwise."""
    said = [problem for problem in record.problems if problem.stage == "steps"]
    return f"{said[0].reason}: {said[0].hint}" if said else ""
