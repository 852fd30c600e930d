"""Memory in use over a call as a document: peaks of eager and of the generated code, and the lifetime of every tensor
with its line of Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compiler.record import Entity, Record
from compiler.record.measure_facts import MemoryEvent
from compiler.record.plain_text import one_line, pluralize, size_text
from explorer.findings.memory.memory import (
    InputNames,
    Line,
    Tensor,
    Timeline,
    peak_error,
    rank_timeline,
    text_of,
    timelines,
)
from explorer.reading.provenance import innermost_lines, place
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Bar, Chart, Only, Parts, Row, Section, Table, Tag, Text, payload
from explorer.render.finding import Finding
from explorer.render.places import line_link
from explorer.render.text import document_finding

STAGE = "memory"
AT_PEAK = 12
"""Maximum number of tensors listed at the peak."""

OTHERS = "What operators use inside, and what code around the graphs holds, is only in the latter."
RANK_WORDS = (
    "One training step of this rank, simulated: its forward as it ran, then the backward of the same graphs, with what "
    "FSDP's and DistributedDataParallel's hooks gather, keep and reduce. Optimizer: AdamW is assumed, 2 tensors of the "
    "size of each trained parameter. Not in it: eager code between graphs, memory inside operators and of NCCL."
)
EAGER_WORDS = (
    "Eager mode is taken to free a value after its last use. A name in Python holds one until its function returns, so "
    "that eager mode may need more: run.memory.trace(call) measures it."
)
ROLES = {"saved": "kept for the backward", "result": "result", "gradient": "gradient", "tangent": "gradient handed in"}
SHOWN = ("compiled", "eager", "measured", "rank")
SIDES = {"eager": "eager", "compiled": "generated code", "measured": "measured", "rank": "the rank"}


def memory_finding(record: Record) -> Finding | None:
    """Finding with the memory timelines of a record; None if no code was generated."""
    if not record.memory:
        return None
    found, known = timelines(record), Known(record)
    rank = rank_timeline(record)
    drawn = [*([rank] if rank else []), *(found[1:] if len(found) > 1 else found)]
    lines = [(timeline, timeline.lines[side]) for timeline in drawn
             for side in ("rank", "compiled", "eager") if side in timeline.lines]  # fmt: skip
    found = [*([rank] if rank else []), *found]
    entities = {
        entity.id: entity for _, line in lines for each in line.tensors if (entity := tensor_entity(each, known))
    }
    every = tuple(tensors_section(timeline, line, known) for timeline, line in lines)
    caveat = [Text(EAGER_WORDS, "why")] if any("eager" in timeline.lines for timeline in found) else []
    told = Only(("text", "html"), (*(timeline_section(timeline, known) for timeline in found), *caveat, *every))
    chart = Only(("view",), (Chart("memory", chart_data(found, known), Table((), ())),))
    return document_finding(STAGE, "memory in use", [told, chart], entities, view="memory_chart", is_open=False)


class Known:
    """Lookup tables for the tensors in memory: the calls that write them, and their source lines."""

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

    def maker(self, event: MemoryEvent) -> str:
        """Name of the kernel or operator that writes a tensor: `triton_poi_fused_relu_1`, `conv2d`; "" if unknown."""
        if (call := self.call(event)) is not None:
            return call.label
        entity = self.entities.get(event.entity)
        return str(entity.attrs.get("target", "")) if entity is not None and event.side == "eager" else ""

    def call(self, event: MemoryEvent) -> Entity | None:
        """The call in the generated code that writes a tensor; None if unknown. Outputs of an operator share a call."""
        entity = self.entities.get(event.entity)
        nodes = (event.entity, *entity.inputs) if entity is not None and entity.kind == "extern" else (event.entity,)
        return next((self.makers[node] for node in nodes if node in self.makers), None)

    def source_inputs(self, event: MemoryEvent) -> str:
        """Names of the graph inputs that a tensor is made from, such as a parameter in a new layout; "" if none."""
        entity = self.entities.get(event.entity)
        names = entity.attrs.get("reads", ()) if entity is not None else ()
        given = (self.inputs.user_name(event.graph, event.half, name) for name in names)
        return ", ".join(dict.fromkeys(name for name in given if name))

    def name(self, event: MemoryEvent) -> str:
        """Name of a tensor: that of its buffer; of a rank's weights and inputs, that in the user's code."""
        return self.inputs.name(event) if event.side == "rank" and event.what == "input" else event.buffer

    def origins(self, event: MemoryEvent) -> tuple[str, ...]:
        """Ids of a tensor's origins: the call that writes it, with the kernel of the call; else the node."""
        call = self.call(event)
        if call is None:
            return (event.entity,) if event.entity in self.entities else ()
        kernel = self.kernels.get((self.homes[call.id], call.label))
        return (call.id, kernel) if kernel in self.entities else (call.id,)

    def line(self, event: MemoryEvent) -> str:
        """Id of the line of Python that a tensor came from, the last of several; "" if there is none."""
        return next(reversed(self.lines.get(event.entity, ())), "")

    def code(self, event: MemoryEvent) -> str:
        """Code of the line that a tensor came from; "" if there is none."""
        entity = self.entities.get(self.line(event))
        return one_line(entity.label) if entity is not None else ""

    def row(self, event: MemoryEvent) -> Row:
        """Row of a tensor in the table: bytes, name and half, role (filled in by the view), line, producer."""
        entity = self.entities.get(self.line(event))
        place = entity.attrs if entity is not None else {}
        file, number = str(place.get("file", "")), int(place.get("line", 0))
        asked = (line_link(file, number, self.spots), " ") if file else ()
        code = self.code(event) or self.source_inputs(event)
        half = Tag(" fwd" if event.half == "forward" else " bwd", "muted", f"Made in the {event.half}")
        half = Tag("", "muted") if event.what == "input" and event.side == "rank" else half
        size = (size_text(event.bytes), Bar(((event.bytes, "now"),), "tensors"))
        cells = (
            size,
            (Tag(self.name(event), "code"), half),
            "",
            (*asked, Tag(code, "code", code)),
            Tag(self.maker(event), "place"),
        )
        return Row(cells, (tensor_id(event),))


def tensor_id(event: MemoryEvent) -> str:
    """Id of a tensor's entity."""
    side = "" if event.side == "compiled" else f" {event.side}"
    return f"memory[{event.graph} {event.half}{side}].{event.buffer}"


def tensor_entity(each: Tensor, known: Known) -> Entity:
    """Entity of a tensor, linked to the call or node that writes it."""
    attrs: dict[str, Any] = {"bytes": each.event.bytes}
    if role := role_of(each):
        attrs["role"] = role
    if each.event.at:
        attrs["wrapper line"] = each.event.at
    return Entity(tensor_id(each.event), "tensor", each.event.buffer, attrs, (), known.origins(each.event))


def role_of(each: Tensor) -> str:
    """What a tensor is kept as, "" for nothing in particular; of a rank's tensors, their kind."""
    return each.event.kind or ROLES.get(each.role, "")


def timeline_section(timeline: Timeline, known: Known) -> Section:
    """Section of a timeline: peaks, and the tensors in memory at the peak of the generated code."""
    base = ", ".join(f"{size_text(size)} of {kind}" for kind, size in timeline.base.items())
    parts: list[Parts] = [figures(timeline)]
    if (ratio := peak_error(timeline)) is not None:
        side = "above" if ratio > 0 else "below"
        apart = f"{100 * abs(ratio):.1f} % {side} what was measured"
        parts.append(Text(f"The peak computed for the generated code is {apart}. {OTHERS}", "line"))
    line = timeline.lines.get("compiled") or timeline.lines.get("rank")
    if line is not None and line.steps:
        parts.append(peak_section(line, known))
    if line is not None and line.side == "rank":
        return Section((*parts, Text(RANK_WORDS, "why")), f"Memory of {timeline.title}")
    return Section(tuple(parts), f"Memory in use: {timeline.title}; on top of {base or 'nothing'}")


def figures(timeline: Timeline) -> Table:
    """Table that compares the peaks of eager, of the generated code, and of the measurement."""
    if (rank := timeline.lines.get("rank")) is not None:
        return rank_figures(rank)
    sides = [side for side in SIDES if side in timeline.lines]
    trains = any(step.event.half == "backward" for line in timeline.lines.values() for step in line.steps)
    lines = [timeline.lines[side] for side in sides]
    rows = [("peak", *(size_text(line.peak_bytes) for line in lines))]
    if trains:
        kept = ("" if line.side == "measured" else size_text(line.kept) for line in lines)
        rows.append(("between forward and backward", *kept))
    rows.append(("at the end", *(size_text(line.steps[-1].above) if line.steps else "" for line in lines)))
    right = tuple(range(1, len(sides) + 1))
    return Table(("", *(SIDES[side] for side in sides)), tuple(map(Row, rows)), right=right, style="figures")


def rank_figures(line: Line) -> Table:
    """Table of what a rank keeps: bytes of each kind at the peak, between the halves and at the end."""
    places = [line.peak, max(line.turn - 1, 0), len(line.steps) - 1]
    rows = [(kind, *(size_text(sizes[place]) for place in places)) for kind, sizes in line.layers.items()]
    rows.append(("in all", *(size_text(line.steps[place].above) for place in places)))
    head = ("", "at the peak", "after the forward", "at the end")
    return Table(head, tuple(map(Row, rows)), right=(1, 2, 3), style="figures")


def peak_section(line: Line, known: Known) -> Section:
    """The step of the peak, and the largest tensors in memory after this step."""
    event, alive = line.steps[line.peak].event, line.alive(line.peak)
    title = f"Peak: step {line.peak + 1} of {len(line.steps)}, {event.half}: {text_of(event)}. In memory then:"
    rows = tuple(Row(tuple(tensor_row(each, known))) for each in alive[:AT_PEAK])
    parts: list[Parts] = [Table((), rows, right=(0,))] if rows else []
    if rest := alive[AT_PEAK:]:
        size = size_text(sum(each.event.bytes for each in rest))
        parts.append(Text(f"… and {pluralize(len(rest), 'more tensor')}, {size} in all", "line"))
    return Section(tuple(parts), title)


def tensor_row(each: Tensor, known: Known) -> list[str]:
    """Cells of a tensor: bytes, name, role, maker, source line."""
    event, line = each.event, known.line(each.event)
    where = f"{place(line)}  {known.code(event)}" if line else known.source_inputs(event)
    return [size_text(event.bytes), known.name(event), role_of(each), known.maker(event), where]


def tensors_section(timeline: Timeline, line: Line, known: Known) -> Section:
    """Table of all tensors of one side, in order of allocation."""
    rows = tuple(Row((span(each), *tensor_row(each, known)), (tensor_id(each.event),)) for each in line.tensors)
    name = timeline.title if line.side == "rank" else f"{SIDES[line.side]}, {timeline.title}"
    title = f"{name[:1].upper()}{name[1:]}: each tensor, and the steps that it is there"
    return Section((Table((), rows, right=(1,)),) if rows else (), title)


def span(each: Tensor) -> str:
    """Lifetime of a tensor: `12-40` is its first and last step; `12-` if it stays."""
    return f"{each.first + 1}-{'' if each.end is None else each.end}"


def chart_data(found: Sequence[Timeline], known: Known) -> dict[str, Any]:
    """Data of the chart: the timelines, and one row per tensor."""
    drawn = (line for timeline in found for line in timeline.lines.values() if line.side != "measured")
    every = {tensor_id(each.event): each.event for line in drawn for each in line.tensors}
    numbers = {name: number for number, name in enumerate(every)}
    sizes = [event.bytes for event in every.values()]
    return {
        "bytes": sizes,
        "most": {"tensors": max(sizes, default=1)},
        "rows": payload([Table((), tuple(known.row(event) for event in every.values()))])["parts"][0]["rows"],
        "timelines": [
            {
                "title": timeline.title,
                "figures": payload([figures(timeline), *_base(timeline)])["parts"],
                "sides": [_line_data(timeline.lines[side], numbers) for side in SHOWN if side in timeline.lines],
            }
            for timeline in found
        ],
    }


def _base(timeline: Timeline) -> Iterator[Text]:
    """What the chart leaves out: the memory that is in use all the time; of a rank, what is not seen."""
    if timeline.base:
        kinds = " and ".join(f"{size_text(size)} of {kind}" for kind, size in timeline.base.items())
        yield Text(f"On top of {kinds}, which are there all the time.", "why")
    if "rank" in timeline.lines:
        yield Text(RANK_WORDS, "why")
    elif "eager" in timeline.lines:
        yield Text(EAGER_WORDS, "why")


def _line_data(line: Line, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Data of one side of a timeline. `spans` are `[tensor index, first step, end step (-1: stays), role]`."""
    is_known = line.side != "measured"
    return {
        "side": line.side,
        "name": SIDES[line.side],
        "turn": line.turn,
        "peak": line.peak,
        "above": [step.above for step in line.steps],
        "words": [text_of(step.event) for step in line.steps] if is_known else [],
        "spans": [_span_data(each, numbers) for each in line.tensors] if is_known else [],
    } | ({"layers": list(line.layers.items())} if line.side == "rank" else {})


def _span_data(each: Tensor, numbers: Mapping[str, int]) -> list[Any]:
    end = -1 if each.end is None else each.end
    return [numbers[tensor_id(each.event)], each.first, end, role_of(each)]
