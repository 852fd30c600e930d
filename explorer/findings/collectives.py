"""The collectives of a rank as a document: sums by kind and by line of Python, each call, and when it runs.

Bytes are exact, seconds are estimates by torch's cost model (`compiler.timing.overlap`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.advise.facts import seconds as duration
from compiler.record import Collective, Entity, Group, Record
from compiler.record import Span as Place
from compiler.record.distributed_facts import GPUS_A_NODE
from compiler.record.plain_text import pluralize, size_text
from compiler.targets import known_target
from compiler.timing.overlap import HIDDEN, Schedule, schedules
from explorer.findings.lanes_chart import COLOURS, draw_lanes
from explorer.reading.provenance import place_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Chart, Document, Only, Parts, Picture, Row, Section, Table, Tag, Text, Words
from explorer.render.finding import Finding
from explorer.render.places import line_link
from explorer.render.text import document_finding

STAGE = "collectives"
VIEW = "collectives"
RANKS_NAMED = 4
OUTSIDE = "outside of graphs"
"""In place of the half, for what the program calls itself after the graphs of its forward."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The collectives of one kind, or of one line, added up. `seconds` is None if one of them has no estimate."""

    name: str
    calls: int
    input_bytes: int
    output_bytes: int
    seconds: float | None
    ids: tuple[str, ...]
    place: Place | None = None


def collectives_finding(record: Record) -> Finding | None:
    """Finding with the collectives of a rank; None if it has none."""
    if not record.collectives:
        return None
    lines = SourceLines(record)
    entities = {found.id: collective_entity(found, lines) for found in record.collectives}
    count = pluralize(len(record.collectives), "collective")
    return document_finding(STAGE, "collectives of this rank", collectives_document(record), entities, count, VIEW)


def collective_entity(found: Collective, lines: SourceLines) -> Entity:
    """Entity of a collective, linked to its calls in the last graph and in the generated code, or else to its lines."""
    attrs: dict[str, Any] = {
        "group": found.group, "ranks": found.group_size, "dtype": found.dtype, "bytes in": found.input_bytes,
        "bytes out": found.output_bytes,
    }  # fmt: skip
    if found.seconds is not None:
        attrs["estimate"] = f"{duration(found.seconds)} ({found.algorithm or 'ring'})"
    if found.cause:
        attrs["cause"] = found.cause
    return Entity(found.id, "collective", title_of(found), attrs, (), found.entities or tuple(lines.ids(found.lines)))


def title_of(found: Collective) -> str:
    """A collective in short: `all_gather 64.0 KiB`."""
    return f"{found.kind} {size_text(found.bytes)}"


def collectives_document(record: Record) -> Document:
    """Sums, the two lanes of each half, a table by line of Python, and a table of all calls."""
    lines, found = SourceLines(record), schedules(record)
    words = Text(lead_words(record), "lead"), Text(basis_words(record, found), "why")
    parts: list[Parts] = [*words, kinds_table(record)]
    parts += [schedule_section(schedule, record) for schedule in found]
    parts += [lines_table(record, lines), calls_table(record, found, lines)]
    return parts


def lead_words(record: Record) -> str:
    """What the rank sends in one step, in a sentence."""
    place, halves = record.place, sums((half_words(found), found) for found in record.collectives)
    whose = f"Rank {place.rank} of {place.world}" if place is not None else "This rank"
    simulated = " (simulated)" if record.origin == "simulated" else ""
    each = ", ".join(f"{found.calls} {'' if found.name == OUTSIDE else 'in the '}{found.name}" for found in halves)
    total = sum(found.bytes for found in record.collectives)
    calls = pluralize(len(record.collectives), "collective")
    return f"{whose}{simulated} makes {calls} in one step ({each}): messages of {size_text(total)}, {total:,} bytes."


def basis_words(record: Record, found: Sequence[Schedule]) -> str:
    """What is exact, what is an estimate, and of what."""
    exact = (
        'Bytes are exact. "In" is what this rank passes to the collective, "out" what it gets back; a message is the '
        "larger of both."
    )
    if record.origin == "log":
        return f"{exact} A log has no times, and no collectives of hooks, such as those of DDP and FSDP."
    gpu = known_target(record.target)
    if all(each.seconds is None for each in record.collectives):
        why = "torch's cost model knows NVIDIA GPUs" if gpu is None or gpu.vendor != "nvidia" else "torch has no model"
        return f"{exact} There are no times: {why}, and the code is for {gpu.title if gpu else record.target}."
    node = (record.place.node_size if record.place else 0) or GPUS_A_NODE
    where = gpu.title if gpu else record.target
    model = f"Seconds are estimates: torch's own cost model of NCCL, for nodes of {node} × {where}."
    unknown = dict.fromkeys(name for schedule in found for name in schedule.unknown)
    missing = f" No time is known of {', '.join(unknown)}." if unknown else ""
    return f"{exact} {model}{missing}"


def sums(named: Iterable[tuple[str, Collective]]) -> list[Sum]:
    """Add up collectives by name, in order of first appearance."""
    grouped: dict[str, list[Collective]] = {}
    for name, found in named:
        grouped.setdefault(name, []).append(found)
    return [_sum(name, group) for name, group in grouped.items()]


def _sum(name: str, group: Sequence[Collective], place: Place | None = None) -> Sum:
    known = [found.seconds for found in group if found.seconds is not None]
    seconds = sum(known) if len(known) == len(group) else None
    ids = tuple(found.id for found in group)
    into, out = (sum(getattr(found, name) for found in group) for name in ("input_bytes", "output_bytes"))
    return Sum(name, len(group), into, out, seconds, ids, place)


def sums_by_line(record: Record) -> list[Sum]:
    """The collectives at each of the user's lines or in what it calls, largest first.

    A collective counts for every line of its stack, so lines don't add up.
    """
    grouped: dict[tuple[str, int], tuple[Place, list[Collective]]] = {}
    for found in record.collectives:
        for line in {(line.file, line.line): line for line in found.lines}.values():
            grouped.setdefault((line.file, line.line), (line, []))[1].append(found)
    found_sums = [_sum(place_text(*key), group, line) for key, (line, group) in grouped.items()]
    return sorted(found_sums, key=lambda each: -max(each.input_bytes, each.output_bytes))


def kinds_table(record: Record) -> Table:
    """One row per kind and half."""
    named = ((f"{found.kind}, {half_words(found)}", found) for found in record.collectives)
    rows = tuple(Row((each.name, *_numbers(each))) for each in sums(named))
    return Table(("kind", *_NUMBERS), rows, right=(1, 2, 3, 4), label="Collectives by kind", style="figures")


def half_words(found: Collective) -> str:
    """The half of the graph, or of the step, in which a collective is called."""
    return found.half or ("graph" if found.origin == "graph" else OUTSIDE)


_NUMBERS = ("calls", "bytes in", "bytes out", "estimate")


def _numbers(each: Sum) -> tuple[Words, ...]:
    time = duration(each.seconds) if each.seconds is not None else "-"
    return str(each.calls), exact_bytes(each.input_bytes), exact_bytes(each.output_bytes), time


def exact_bytes(size: int) -> Words:
    """Bytes in a readable unit; the exact number is in the tooltip."""
    return Tag(size_text(size), "", f"{size:,} bytes")


def lines_table(record: Record, lines: SourceLines) -> Table:
    """One row per line of Python."""
    rows = []
    for each in sums_by_line(record):
        place = each.place
        where: Words = line_link(place.file, place.line, lines) if place is not None else each.name
        rows.append(Row((where, Tag(place.code if place else "", "code"), *_numbers(each)), each.ids[:1]))
    caption = "By line of Python: a collective counts for each line that it was called through."
    return Table(
        ("line", "code", *_NUMBERS), tuple(rows), caption, (2, 3, 4, 5), label="Collectives by line", style="calls"
    )


def calls_table(record: Record, found: Sequence[Schedule], lines: SourceLines) -> Table:
    """One row per collective, in the order of the step."""
    exposed = {name: seconds for schedule in found for name, seconds in schedule.exposed.items()}
    hidden = {name: schedule.kernels_during(name) for schedule in found for name in schedule.exposed}
    groups = {group.name: group for group in record.groups}
    rows = []
    for each in record.collectives:
        line = each.lines[0] if each.lines else None
        where: Words = line_link(line.file, line.line, lines) if line is not None else "-"
        half = f"{each.half}, hook" if each.half and each.origin == "hook" else half_words(each)
        over = group_words(groups.get(each.group), each)
        time = (duration(each.seconds), muted_tag(f" {each.algorithm}")) if each.seconds is not None else "-"
        meanwhile = ", ".join(dict.fromkeys(span.name for span in hidden.get(each.id, ())))
        overlap = Tag(exposed_words(each, exposed), "", f"runs beside {meanwhile}" if meanwhile else "")
        cells: tuple[Words, ...] = (
            (f"{each.kind} ", muted_tag(half)), over, each.dtype, exact_bytes(each.input_bytes),
            exact_bytes(each.output_bytes), time, overlap, where,
        )  # fmt: skip
        rows.append(Row(cells, (each.id,), title=each.cause))
    head = ("collective", "group", "dtype", "bytes in", "bytes out", "estimate", "exposed", "line")
    caption = "Every call, in the order of the step. Exposed: how long the code stands still for it (estimate)."
    return Table(head, tuple(rows), caption, (3, 4), label="All collectives", style="calls")


def muted_tag(words: str) -> Tag:
    return Tag(words, "muted")


def exposed_words(found: Collective, exposed: dict[str, float]) -> str:
    """`all of it`, `hidden`, `12 µs`, or `-` if it is not known."""
    if found.seconds is None or found.id not in exposed:
        return "-"
    seconds = exposed[found.id]
    if seconds < HIDDEN * found.seconds:
        return "hidden"
    return "all of it" if seconds > 0.99 * found.seconds else duration(seconds)


def group_words(group: Group | None, found: Collective) -> str:
    """A group by torch's description of it, and its ranks: `mesh_tp: ranks 0, 1, 2, …, 7`."""
    if group is None or not group.ranks:
        return f"{found.group or '-'}"
    ranks = [str(rank) for rank in group.ranks]
    shown = ranks if len(ranks) <= RANKS_NAMED + 1 else [*ranks[: RANKS_NAMED - 1], "…", ranks[-1]]
    name = group.description if group.description not in ("", "default_pg", "undefined") else ""
    return f"{name + ': ' if name else ''}{len(ranks)} ranks ({', '.join(shown)})"


def schedule_section(schedule: Schedule, record: Record, side: str = "When", *, has_links: bool = True) -> Section:
    """The two lanes of one half of a graph: a sentence, and the chart.

    `side` names the exploration; `has_links` is whether its spans can be selected.
    """
    title = f"{side}: {schedule.title}"
    chart = Chart("lanes", lanes_data(schedule, record, has_links=has_links), Table((), (), label=title))
    drawn = Picture(f"{title}: compute and communication", draw_lanes, schedule)
    sentence = Text(schedule_words(schedule), "line")
    return Section((sentence, Only(("view",), (chart,)), Only(("html",), (drawn,))), title)


def schedule_words(schedule: Schedule) -> str:
    """How long the half takes, and how much of its communication is exposed; all estimates."""
    sent = schedule.busy("communication")
    share = f" ({schedule.exposed_seconds / sent:.0%})" if sent else ""
    missing = ", ".join(dict.fromkeys(schedule.unknown))
    left_out = f" Left out, as their time is not known: {missing}." if missing else ""
    return (
        f"{duration(schedule.seconds)} (estimate): compute {duration(schedule.busy('compute'))}, communication "
        f"{duration(sent)}, of which {duration(schedule.exposed_seconds)}{share} is exposed.{left_out}"
    )


def lanes_data(schedule: Schedule, record: Record, *, has_links: bool = True) -> dict[str, Any]:
    """Data of the chart (`static/lanes_view.js`): spans as `[lane, start, seconds, tone, name, entity, more words]`."""
    known = {found.id: found for found in record.collectives}
    spans = []
    for span in schedule.spans:
        found = known.get(span.collective)
        exposed = schedule.exposed.get(span.collective, 0.0)
        name = title_of(found) if found is not None else span.name.removeprefix("extern_kernels.")
        more = f"exposed {duration(exposed)}" if found is not None and exposed else "hidden" if found else ""
        tone = 0 if found is None else 1 if exposed < HIDDEN * span.seconds else 2
        entity, lane = (span.collective or span.entity) if has_links else "", int(found is not None)
        spans.append([lane, span.start, span.seconds, tone, name, entity, more])
    return {"end": schedule.seconds, "lanes": ["compute", "communication"], "tones": list(COLOURS.items()),
            "spans": spans, "title": schedule.title}  # fmt: skip
