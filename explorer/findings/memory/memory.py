"""Memory in use over a call, eager and compiled: steps in order, and the lifetime of each tensor.

If a call runs several graphs, the timeline covers all of them: the forwards in order, then the backwards in reverse.
Each graph adds its allocations to the baseline, which is parameters and inputs. A rank of a distributed job has one
more timeline: a training step with all that the rank keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from compiler.capture.guard_words import plain
from compiler.record import Record
from compiler.record.measure_facts import Half, MemoryEvent, MemoryKind
from explorer.reading.provenance import input_sources

WHOLE = "the whole call"
RANK = "the rank, one training step"
KINDS: tuple[MemoryKind, ...] = (
    "parameters", "shards", "optimizer states", "buckets", "inputs", "gathered weights", "activations", "gradients",
)  # fmt: skip
"""What a rank keeps, in the order in which it is stacked: what is there all the time comes first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a timeline. `above` are the bytes in use after the event, above the baseline.

    `taken` marks an incoming gradient that the backward of a later graph has already allocated.
    """

    event: MemoryEvent
    above: int
    taken: bool = False


@dataclass(slots=True)
class Tensor:
    """A tensor in memory from step `first` up to, but not including, step `end` (None: to the end).

    `role` is "saved" (for the backward), "result", "gradient", "tangent" (an incoming gradient), or "" for none.
    """

    event: MemoryEvent
    first: int
    end: int | None = None
    role: str = ""


@dataclass(frozen=True)
class Line:
    """The steps of one side: "compiled", "eager", "measured" or "rank". "measured" has no halves."""

    side: str
    steps: tuple[Step, ...]

    @cached_property
    def peak(self) -> int:
        """Index of the first step with the most bytes in use."""
        return max(range(len(self.steps)), key=lambda number: self.steps[number].above, default=0)

    @property
    def peak_bytes(self) -> int:
        """Peak bytes above the baseline."""
        return self.steps[self.peak].above if self.steps else 0

    @property
    def turn(self) -> int:
        """Number of forward steps."""
        return sum(step.event.half == "forward" for step in self.steps)

    @cached_property
    def layers(self) -> Mapping[MemoryKind, list[int]]:
        """Bytes of each kind after each step, of a rank; without the kinds that it never has."""
        changes: dict[MemoryKind, list[int]] = {kind: [0] * (len(self.steps) + 1) for kind in KINDS}
        for each in self.tensors:
            of_kind = changes[each.event.kind or "activations"]
            of_kind[each.first] += each.event.bytes
            of_kind[len(self.steps) if each.end is None else each.end] -= each.event.bytes
        layers = {kind: list(accumulate(sizes[:-1])) for kind, sizes in changes.items()}
        return {kind: sizes for kind, sizes in layers.items() if any(sizes)}

    @property
    def kept(self) -> int:
        """Bytes in use between forward and backward, above the baseline."""
        return self.steps[self.turn - 1].above if self.turn else 0

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors with their lifetimes, in order of allocation."""
        return tuple(_tensors(self.steps))

    def alive(self, number: int) -> list[Tensor]:
        """Tensors in memory after a step, largest first."""
        there = (each for each in self.tensors if each.first <= number and (each.end is None or number < each.end))
        return sorted(there, key=lambda each: (-each.event.bytes, each.first))


@dataclass(frozen=True)
class Timeline:
    """Memory timeline of one graph, or of all graphs of a call. `base` has the bytes of "parameters" and "inputs"."""

    title: str
    graphs: tuple[str, ...]
    base: Mapping[str, int]
    lines: Mapping[str, Line] = field(default_factory=dict)


def timelines(record: Record) -> list[Timeline]:
    """Timelines of a record: the whole call first, if it runs several graphs, then each graph."""
    graphs = list(dict.fromkeys(event.graph for event in record.memory if event.graph and event.side != "rank"))
    inputs = InputNames(record)
    again = {frame.id for frame in record.frames if frame.compilation}
    first_call = [graph for graph in graphs if graph not in again]
    each = [_timeline(record, f"graph {graph}", [graph], inputs, [graph] == first_call) for graph in graphs]
    whole = [_timeline(record, WHOLE, first_call, inputs, True)] if len(first_call) > 1 else []
    return [timeline for timeline in whole + each if timeline.lines]


def rank_timeline(record: Record) -> Timeline | None:
    """Timeline of a training step of a rank; its steps count all memory of the rank. None if no rank was observed."""
    steps = tuple(Step(event, event.live) for event in record.memory if event.side == "rank")
    return Timeline(RANK, (), {}, {"rank": Line("rank", steps)}) if steps else None


def peak_error(timeline: Timeline) -> float | None:
    """Relative error of the computed peak against the measured peak; None if either is unknown."""
    computed, measured = timeline.lines.get("compiled"), timeline.lines.get("measured")
    if computed is None or measured is None or not measured.peak_bytes:
        return None
    return computed.peak_bytes / measured.peak_bytes - 1


class InputNames:
    """Names of graph inputs in the user's code, and whether an input is a parameter."""

    def __init__(self, record: Record) -> None:
        self._sources = input_sources(record)
        self._ids = {(event.graph, event.half, event.buffer): event.entity for event in record.memory
                     if event.what == "input"}  # fmt: skip

    def user_name(self, graph: str, half: Half, buffer: str) -> str:
        """Name of a graph input in the user's code; "" if the buffer is not an input."""
        return plain(self._sources.get(self._ids.get((graph, half, buffer), ""), ""))

    def name(self, event: MemoryEvent) -> str:
        """Name of an input in the user's code, such as `self.first.weight`; the buffer's name if there is none."""
        return plain(self._sources.get(event.entity, "")) or event.buffer

    def kind(self, event: MemoryEvent) -> str:
        """Kind of an input: "parameters" (module buffers included) or "inputs"."""
        source = self._sources.get(event.entity, "")
        return "parameters" if "_parameters[" in source or "_buffers[" in source else "inputs"


def _timeline(record: Record, title: str, graphs: Sequence[str], inputs: InputNames, of_call: bool) -> Timeline:
    of_side = {side: [event for event in record.memory if event.side == side] for side in ("compiled", "eager")}
    made = {side: Line(side, tuple(_steps(found, graphs))) for side, found in of_side.items()}
    lines = {side: line for side, line in made.items() if line.steps}
    measured = tuple(Step(event, event.live) for event in record.memory if event.side == "measured")
    if measured and of_call:
        lines["measured"] = Line("measured", measured)
    base: Counter[str] = Counter()
    for event in of_side["compiled"]:
        if event.graph in graphs and _is_there_before(event):
            kind = inputs.kind(event)
            if kind == "parameters" or event.graph == graphs[0]:  # inputs of later graphs are results of earlier ones
                base[kind] += event.bytes
    return Timeline(title, tuple(graphs), dict(base), lines)


def _is_there_before(event: MemoryEvent) -> bool:
    return event.what == "input" and event.half == "forward"


def _steps(events: Sequence[MemoryEvent], graphs: Sequence[str]) -> Iterator[Step]:
    """Steps of the forwards in order, then of the backwards in reverse. Allocations of a graph persist while other
    graphs run.
    """
    own = dict.fromkeys(graphs, 0)
    handed: Counter[int] = Counter()
    for half, order in (("forward", graphs), ("backward", list(reversed(graphs)))):
        for graph in order:
            mine = [event for event in events if event.graph == graph]
            base = sum(event.bytes for event in mine if _is_there_before(event))
            taken = 0
            for event in mine:
                known = event.role == "tangent" and handed[event.bytes] > 0
                if event.half != half or _is_there_before(event):
                    continue
                if known:
                    handed[event.bytes] -= 1
                    taken += event.bytes
                own[graph] = event.live - base - taken
                yield Step(event, sum(own.values()), known)
            if half == "backward":
                handed.update(event.bytes for event in mine if event.role == "gradient")


def _tensors(steps: Sequence[Step]) -> Iterator[Tensor]:
    """Lifetimes of the tensors. Reused memory ends the old tensor and starts a new one; an alias starts no tensor."""
    alive: dict[tuple[str, str], Tensor] = {}
    outside: dict[tuple[str, str], Tensor] = {}
    found: list[Tensor] = []
    for number, step in enumerate(steps):
        event = step.event
        is_rank = event.side == "rank"  # its names are unique over all graphs
        graph = "" if is_rank else event.graph
        key = (graph, event.buffer)
        is_there_before = event.what == "input" and is_rank
        if event.what in ("allocate", "reuse") or event.role == "tangent" or is_there_before:
            if step.taken:
                made = (each for each in reversed(found) if each.role == "gradient" and each.end is None)
                if (gradient := next((each for each in made if each.event.bytes == event.bytes), None)) is not None:
                    gradient.end = number
            if event.what == "reuse" and (before := alive.pop((graph, event.of), None)) is not None:
                before.end = number
            alive[key] = new = Tensor(event, number, role="tangent" if event.role == "tangent" else "")
            found.append(new)
        elif event.what == "alias" and (event.graph, event.of) in alive:
            alive[key] = alive[event.graph, event.of]
        elif event.what == "free" and key in alive:
            alive.pop(key).end = number
        elif event.what == "output" and key in alive:
            alive[key].role = alive[key].role or event.role
            outside[event.graph, event.of] = alive[key]
        elif event.what == "input" and key in outside:
            alive[key] = outside[key]
    yield from found


def text_of(event: MemoryEvent) -> str:
    """Describe an event in words: "buf3 takes over the memory of buf1"."""
    words: Mapping[str, str] = {
        "allocate": f"{event.buffer} is allocated",
        "reuse": f"{event.buffer} takes over the memory of {event.of}",
        "alias": f"{event.buffer} is another name for {event.of}",
        "free": f"{event.buffer} is freed",
        "input": f"{event.buffer} is {'there before the step' if event.side == 'rank' else 'handed in'}",
        "output": f"{event.buffer} stays: {event.role or 'output'}",
    }
    return words[event.what]
