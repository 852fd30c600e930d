"""The bytes in use over a call as a finding: peaks of eager and of the generated code, and every tensor that is in
memory, from which step to which, with the line of Python that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compiler.record import Entity, Record
from compiler.record.measure_facts import MemoryEvent
from compiler.record.plain_text import one_line, pluralize, size_text
from explorer.findings.memory.memory import (
    InputNames,
    Line,
    Tensor,
    Timeline,
    computed_over_measured,
    text_of,
    timelines,
)
from explorer.reading.plain_text import columns
from explorer.reading.provenance import innermost_lines, place
from explorer.reading.source_lines import SourceLines
from explorer.reading.spots import line_spot
from explorer.render.finding import Finding, LinkedText

STAGE = "memory"
AT_PEAK = 12
"""So many tensors are listed of those that are in memory at the peak."""

OTHERS = "What operators use inside, and what code around the graphs holds, is only in the latter."
ROLES = {"saved": "kept for the backward", "result": "result", "gradient": "gradient", "tangent": "gradient handed in"}
SHOWN = ("compiled", "eager", "measured")
SIDES = {"eager": "eager", "compiled": "generated code", "measured": "measured"}


def memory_finding(record: Record) -> Finding | None:
    """The timelines of a record; None where no code was generated."""
    if not record.memory:
        return None
    found, known = timelines(record), Known(record)
    text = LinkedText()
    for timeline in found:
        _tell(text, timeline, known)
    _tell_tensors(text, found, known)
    data = {
        "tensors": [known.tensor_data(event) for event in known.numbered(found)],
        "timelines": [_timeline_data(timeline, known) for timeline in found],
    }
    return Finding(text.artifact(STAGE, "memory in use"), "view", "memory", data)


class Known:
    """What else the record says of the tensors in memory: what makes them, and from which lines they come."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.inputs = InputNames(record)
        self.spots = SourceLines(record)
        self.lines = innermost_lines(record)
        self.entities = {entity.id: entity for entity in record.entities()}
        self.makers = {node: entity for artifact in record.of_stage("kernels") for entity in artifact.entities
                       if entity.kind in ("call", "extern") for node in entity.origins}  # fmt: skip
        self.homes = {entity.id: artifact.id for artifact in record.of_stage("kernels") for entity in artifact.entities}
        self.kernels = {(kernel.artifact, kernel.name): kernel.id for kernel in record.kernels}
        self.numbers: dict[str, int] = {}

    def numbered(self, found: Sequence[Timeline]) -> list[MemoryEvent]:
        """Every tensor of all timelines once; `number` is its place among them."""
        lines = (line for timeline in found for line in timeline.lines.values() if line.side != "measured")
        every = {tensor_id(each.event): each.event for line in lines for each in line.tensors}
        self.numbers = {name: number for number, name in enumerate(every)}
        return list(every.values())

    def maker(self, event: MemoryEvent) -> str:
        """The kernel or operator that writes a tensor: `triton_poi_fused_relu_1`, `conv2d`."""
        if (call := self.call(event)) is not None:
            return call.label
        entity = self.entities.get(event.entity)
        return str(entity.attrs.get("target", "")) if entity is not None and event.side == "eager" else ""

    def call(self, event: MemoryEvent) -> Entity | None:
        """The call in the generated code; that of an operator with several results is the call of them all."""
        entity = self.entities.get(event.entity)
        nodes = (event.entity, *entity.inputs) if entity is not None and entity.kind == "extern" else (event.entity,)
        return next((self.makers[node] for node in nodes if node in self.makers), None)

    def copied(self, event: MemoryEvent) -> str:
        """What a tensor is computed of that comes from no line of its own: parameters in another layout."""
        entity = self.entities.get(event.entity)
        names = entity.attrs.get("reads", ()) if entity is not None else ()
        given = (self.inputs.named(event.graph, event.half, name) for name in names)
        return ", ".join(dict.fromkeys(name for name in given if name))

    def origins(self, event: MemoryEvent) -> tuple[str, ...]:
        """What a tensor comes from: the call that writes it, with its kernel; else the node."""
        call = self.call(event)
        if call is None:
            return (event.entity,) if event.entity in self.entities else ()
        kernel = self.kernels.get((self.homes[call.id], call.label))
        return (call.id, kernel) if kernel in self.entities else (call.id,)

    def line(self, event: MemoryEvent) -> str:
        """The id of the line of Python that a tensor comes from, the last where there are several; "" for none."""
        return next(reversed(self.lines.get(event.entity, ())), "")

    def code(self, event: MemoryEvent) -> str:
        """That line's code."""
        entity = self.entities.get(self.line(event))
        return one_line(entity.label) if entity is not None else ""

    def tensor_data(self, event: MemoryEvent) -> dict[str, Any]:
        """A tensor for the front end."""
        entity = self.entities.get(self.line(event))
        place = entity.attrs if entity is not None else {}
        return {
            "id": tensor_id(event),
            "name": event.buffer,
            "bytes": event.bytes,
            "maker": self.maker(event),
            "half": event.half,
            "at": line_spot(place["file"], place["line"], self.spots) if place.get("file") else None,
            "code": self.code(event) or self.copied(event),
        }


def tensor_id(event: MemoryEvent) -> str:
    """The id of a tensor's entity."""
    side = "" if event.side == "compiled" else " eager"
    return f"memory[{event.graph} {event.half}{side}].{event.buffer}"


def tensor_entity(each: Tensor, known: Known) -> Entity:
    """A tensor as an entity: it comes from what writes it."""
    attrs: dict[str, Any] = {"bytes": each.event.bytes}
    if each.role:
        attrs["role"] = ROLES[each.role]
    if each.event.at:
        attrs["wrapper line"] = each.event.at
    return Entity(tensor_id(each.event), "tensor", each.event.buffer, attrs, (), known.origins(each.event))


def _tell(text: LinkedText, timeline: Timeline, known: Known) -> None:
    if text.blocks:
        text.add("")
    text.add(heading(timeline))
    text.add("\n".join(f"  {row}" for row in table_rows(timeline)))
    if (ratio := computed_over_measured(timeline)) is not None:
        side = "above" if ratio > 0 else "below"
        apart = f"{100 * abs(ratio):.1f} % {side} what was measured"
        text.add(f"  The peak computed for the generated code is {apart}. {OTHERS}")
    for line in timeline.lines.values():
        if line.side == "compiled" and line.steps:
            text.add("\n".join(peak_lines(line, known)))


def heading(timeline: Timeline) -> str:
    """What is shown, and what is there all the time."""
    base = ", ".join(f"{size_text(size)} of {kind}" for kind, size in timeline.base.items())
    return f"Memory in use: {timeline.title}; on top of {base or 'nothing'}"


def table_rows(timeline: Timeline) -> list[str]:
    """Eager beside the generated code."""
    sides = [side for side in SIDES if side in timeline.lines]
    trains = any(step.event.half == "backward" for line in timeline.lines.values() for step in line.steps)
    lines = [timeline.lines[side] for side in sides]
    rows = [["", *(SIDES[side] for side in sides)], ["peak", *(size_text(line.peak_bytes) for line in lines)]]
    if trains:
        kept = ("" if line.side == "measured" else size_text(line.kept) for line in lines)
        rows.append(["between forward and backward", *kept])
    rows.append(["at the end", *(size_text(line.steps[-1].above) if line.steps else "" for line in lines)])
    return columns(rows, right=range(1, len(sides) + 1))


def peak_lines(line: Line, known: Known) -> Iterator[str]:
    """Where the peak is, and the biggest tensors that are in memory then."""
    event, alive = line.steps[line.peak].event, line.alive(line.peak)
    yield f"  Peak: step {line.peak + 1} of {len(line.steps)}, {event.half}: {text_of(event)}. In memory then:"
    rows = [tensor_row(each, known) for each in alive[:AT_PEAK]]
    yield from (f"    {row}" for row in columns(rows, right=(0,)))
    if rest := alive[AT_PEAK:]:
        size = size_text(sum(each.event.bytes for each in rest))
        yield f"    … and {pluralize(len(rest), 'more tensor')}, {size} in all"


def tensor_row(each: Tensor, known: Known) -> list[str]:
    """Bytes, name, what it is kept for, the line."""
    event, line = each.event, known.line(each.event)
    where = f"{place(line)}  {known.code(event)}" if line else known.copied(event)
    return [size_text(event.bytes), event.buffer, ROLES.get(each.role, ""), known.maker(event), where]


def _tell_tensors(text: LinkedText, found: Sequence[Timeline], known: Known) -> None:
    """Every tensor on a line, in the order in which they come."""
    for timeline in found[1:] if len(found) > 1 else found:
        for line in (timeline.lines[side] for side in ("compiled", "eager") if side in timeline.lines):
            side = SIDES[line.side].capitalize()
            text.add(f"\n{side}, {timeline.title}: each tensor, and the steps that it is there")
            shown = [[span(each), *tensor_row(each, known)] for each in line.tensors]
            for each, row in zip(line.tensors, columns(shown, right=(1,)) if shown else (), strict=True):
                text.add(f"  {row}", tensor_entity(each, known))


def span(each: Tensor) -> str:
    """`12-40`: from step to step, the last that it is there in; `12-` where it stays."""
    return f"{each.first + 1}-{'' if each.end is None else each.end}"


def _timeline_data(timeline: Timeline, known: Known) -> dict[str, Any]:
    return {
        "title": timeline.title,
        "base": [[kind, size] for kind, size in timeline.base.items()],
        "sides": [_line_data(timeline.lines[side], known) for side in SHOWN if side in timeline.lines],
    }


def _line_data(line: Line, known: Known) -> dict[str, Any]:
    """`spans` are of tensors, by their numbers: from step, to step (-1: stays), role."""
    return {
        "side": line.side,
        "name": SIDES[line.side],
        "turn": line.turn,
        "peak": line.peak,
        "above": [step.above for step in line.steps],
        "words": [text_of(step.event) for step in line.steps] if line.side != "measured" else [],
        "spans": [
            [
                known.numbers[tensor_id(each.event)],
                each.first,
                -1 if each.end is None else each.end,
                ROLES.get(each.role, ""),
            ]
            for each in line.tensors
            if line.side != "measured"
        ],
    }
