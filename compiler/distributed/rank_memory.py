"""Memory of one rank over a training step: weights and shards, gathered weights, activations, gradients, optimizer.

The step is put together from the forward that was observed (`step_tape`) and the memory events of each graph's code:
FSDP's hooks gather and free weights between graphs. The backward runs the same graphs in reverse; FSDP gathers weights
again that it freed, one unit ahead, and reduces each unit's gradients after its backward. Gradients of an earlier step
are gone, as `zero_grad()` frees them; the optimizer has its states, as after the first step.

Eager code between graphs and memory inside operators are not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compiler.distributed.gathered_weights import gathered_weights
from compiler.distributed.step_tape import RunEntry, StepTape, UnitEntry
from compiler.record.builder import Builder
from compiler.record.measure_facts import Half, MemoryEvent, MemoryKind, MemoryWhat
from compiler.torch_api.sharded_weights import Argument

if TYPE_CHECKING:  # it imports torch's FSDP, which takes long, and is not in all builds
    from compiler.torch_api.fsdp_units import FsdpUnit

STATES_OF_ADAMW = 2
"""AdamW keeps two tensors for each parameter that is trained, `exp_avg` and `exp_avg_sq`, of its size and type."""


@dataclass(slots=True, eq=False)
class _Item:
    """An allocation: its name, bytes and kind, and the graph's half that made it. `is_free` once it is gone."""

    name: str
    bytes: int
    kind: MemoryKind
    graph: str = ""
    half: Half = "forward"
    entity: str = ""
    role: str = ""
    is_free: bool = False


@dataclass(slots=True)
class _Run:
    """One run of a graph: what it took from graphs before it, what it returned, and what it keeps for the backward."""

    entry: RunEntry
    number: int
    taken: list[_Item] = field(default_factory=list)
    results: list[_Item] = field(default_factory=list)
    saved: dict[str, _Item] = field(default_factory=dict)
    kept_inputs: Counter[int] = field(default_factory=Counter)
    """Bytes of the inputs that the graph keeps for the backward."""
    units: list[str] = field(default_factory=list)


def rank_memory(
    tape: StepTape, events: Sequence[MemoryEvent], gathered: Collection[str] = (), *, on_cpu: bool = False
) -> tuple[MemoryEvent, ...]:
    """Memory events of one training step of this rank (of one forward, if no graph has a backward).

    `events` are those of the graphs' generated code, `gathered` the ids of nodes and loops that gather weights in it.
    With `on_cpu`, gloo's own copies of what it gathers and reduces in hooks are included.
    Returns () if no graph of the tape has events.
    """
    step = _Step(tape, events, gathered, on_cpu)
    step.run()
    return tuple(step.events())


def add_rank_memory(builder: Builder, tape: StepTape) -> None:
    """Add the memory events of this rank's step, in place of those that came with graphs of another rank."""
    events = [event for event in builder.memory if event.side != "rank"]
    runs = (entry for entry in tape.entries if isinstance(entry, RunEntry))
    weights = (each for run in runs for each in run.arguments.values() if each.is_weight)
    shards = {each.own_bytes for each in weights if each.own_bytes < each.whole_bytes}
    gathered = gathered_weights(builder.artifacts.values(), builder.collectives, shards)
    builder.memory[:] = [*events, *rank_memory(tape, events, gathered, on_cpu=builder.target == "cpu")]


class _Step:
    """Plays one step and logs every allocation and free."""

    def __init__(self, tape: StepTape, events: Sequence[MemoryEvent], gathered: Collection[str], on_cpu: bool) -> None:
        self.tape = tape
        self.on_cpu = on_cpu
        self.gathered = gathered
        self.log: list[tuple[MemoryWhat, _Item, Half, int, str]] = []
        self.live = 0
        self.of_graph: dict[tuple[str, Half], list[MemoryEvent]] = {}
        for event in events:
            if event.side == "compiled":
                self.of_graph.setdefault((event.graph, event.half), []).append(event)
        self.trains = any(half == "backward" for _, half in self.of_graph)
        self.half: Half = "forward"
        self.runs: list[_Run] = []
        self.units: dict[str, FsdpUnit] = {}
        self.unit_of: dict[int, str] = {}
        self.flat: dict[str, _Item] = {}
        self.weights: dict[str, list[_Item]] = {}
        self.parts: dict[str, _Item] = {}
        """The parts of gathered weights that are kept between forward and backward, by unit."""
        self.gradients: dict[str, list[_Item]] = {}
        self.handed: list[_Item] = []
        self.to_reduce: _Item | None = None
        self.by_memory: dict[int, _Item] = {}
        self._names: Counter[str] = Counter()

    def run(self) -> None:
        runs = [entry for entry in self.tape.entries if isinstance(entry, RunEntry)]
        if not any((entry.graph, "forward") in self.of_graph for entry in runs):
            return
        self._begin(runs)
        self._forward()
        if self.trains:
            self.half = "backward"
            self._backward()

    # Before the step

    def _begin(self, runs: Sequence[RunEntry]) -> None:
        """Allocate what is there before the step: weights or shards, optimizer states, buckets, inputs."""
        units = {entry.unit.title: entry.unit for entry in self.tape.entries if isinstance(entry, UnitEntry)}
        self.units = units
        self.unit_of = {weight.memory: unit.title for unit in units.values() for weight in unit.weights}
        trained = 0
        for unit in units.values():
            for weight in () if self._is_elsewhere(unit) else unit.weights:
                kind: MemoryKind = "shards" if unit.shards > 1 else "parameters"
                self._allocate_before_step(weight.name, weight.shard_bytes, kind)
                trained += weight.shard_bytes if weight.gradient_bytes else 0
        for name, argument in self._own_weights(runs):
            kind = "shards" if argument.own_bytes < argument.whole_bytes else "parameters"
            self._allocate_before_step(
                name, argument.bytes, kind, f"captured[{self._first_graph(runs, argument)}].{name}"
            )
            trained += argument.own_bytes if argument.trains else 0
        if self.tape.buckets is not None and self.tape.buckets.bytes > trained > 0:
            unused = self.tape.buckets.bytes - trained
            self._allocate_before_step("parameters that no graph uses", unused, "parameters")
            trained += unused
        if self.trains and trained:
            self._allocate_before_step("optimizer states (AdamW)", STATES_OF_ADAMW * trained, "optimizer states")
        if self.trains and self.tape.buckets is not None:
            self._allocate_before_step("buckets of DistributedDataParallel", self.tape.buckets.bytes, "buckets")
        for entry in runs[:1]:
            for name, argument in entry.arguments.items():
                if not argument.is_weight and argument.memory not in self.unit_of:
                    self._allocate_before_step(name, argument.bytes, "inputs", f"captured[{entry.graph}].{name}")

    def _is_elsewhere(self, unit: FsdpUnit) -> bool:
        """Whether the shards, gradients and optimizer states of a unit are on the CPU, beside a GPU."""
        return unit.is_offloaded and not self.on_cpu

    def _allocate_before_step(self, name: str, size: int, kind: MemoryKind, entity: str = "") -> None:
        if size:
            self._allocate(_Item(self._unique(name), size, kind, entity=entity), "input")

    def _own_weights(self, runs: Sequence[RunEntry]) -> Iterator[tuple[str, Argument]]:
        """Parameters that graphs take and FSDP does not gather, each storage once."""
        known = set(self.unit_of)
        for entry in runs:
            for name, argument in entry.arguments.items():
                if argument.is_weight and argument.memory not in known:
                    known.add(argument.memory)
                    yield name, argument

    def _first_graph(self, runs: Sequence[RunEntry], weight: Argument) -> str:
        return next(entry.graph for entry in runs if weight in entry.arguments.values())

    # Forward

    def _forward(self) -> None:
        last: dict[int, int] = {}
        runs = [entry for entry in self.tape.entries if isinstance(entry, RunEntry)]
        for number, entry in enumerate(runs):
            last |= dict.fromkeys((each.memory for each in entry.arguments.values()), number)
        before = ""
        for step in self.tape.entries:
            if isinstance(step, RunEntry):
                self._run_forward(step, last)
            elif step.moment == "gather":
                self._gather(step.unit)
            elif step.moment == "copy out":
                self._free(self.flat.pop(before, None))  # kept until the next unit is copied out
                self._copy_out(step.unit)
                before = step.unit.title
            else:
                self._free_weights(step.unit.title)
                self._keep_part(step.unit)
        self._free(self.flat.pop(before, None))

    def _keep_part(self, unit: FsdpUnit) -> None:
        """Keep what reshard_after_forward=N leaves on this rank after the forward."""
        if unit.kept_by and unit.title not in self.parts:
            part = _Item(self._unique(f"{unit.title}: part"), unit.gathered_bytes // unit.kept_by, "gathered weights")
            self.parts[unit.title] = part
            self._allocate(part)

    def _run_forward(self, entry: RunEntry, last: Mapping[int, int]) -> None:
        units = (self.unit_of.get(argument.memory) for argument in entry.arguments.values())
        run = _Run(entry, len(self.runs), units=list(dict.fromkeys(filter(None, units))))
        self.runs.append(run)
        for argument in entry.arguments.values():
            if not argument.is_weight and (item := self.by_memory.get(argument.memory)) is not None:
                run.taken.append(item)
        names: dict[str, _Item | None] = {}
        for event in self.of_graph.get((entry.graph, "forward"), ()):
            self._play(event, run, names)
        self._note_results(run)
        for item, argument in self._values_between(entry):
            is_last = last.get(argument.memory) == run.number
            if is_last and not run.kept_inputs[item.bytes]:
                self._free(item)

    def _note_results(self, run: _Run) -> None:
        """Match the tensors that a run returned with its allocations, by size."""
        left = list(run.results)
        for returned in run.entry.results:
            item = next((each for each in left if each.bytes == returned.bytes), None)
            if item is not None:
                left.remove(item)
                self.by_memory[returned.memory] = item

    def _values_between(self, entry: RunEntry) -> Iterator[tuple[_Item, Argument]]:
        for argument in entry.arguments.values():
            item = self.by_memory.get(argument.memory)
            if item is not None and not argument.is_weight:
                yield item, argument

    # Backward

    def _backward(self) -> None:
        entries = [entry for entry in self.tape.entries if isinstance(entry, UnitEntry)]
        freed = {entry.unit.title for entry in entries if entry.moment == "free"}
        order = [entry.unit.title for entry in entries if entry.moment == "copy out" and entry.unit.title in freed]
        first_run: dict[str, int] = {}
        for run in self.runs:
            for name in run.units:
                first_run.setdefault(name, run.number)
        if order:
            self._gather(self.units[order[-1]])
        for run in reversed(self.runs):
            for name in run.units:
                if name in freed:
                    self._prepare(name, order)
            self._run_backward(run)
            for name in run.units:
                if first_run[name] == run.number:
                    self._reduce(name)
        for name in self.units.keys() - first_run.keys():
            self._reduce(name)
        self._free(self.to_reduce)

    def _prepare(self, name: str, order: Sequence[str]) -> None:
        """Gather a unit's weights for its backward, and begin to gather those of the unit before it."""
        if not self.weights.get(name):
            if name not in self.flat:
                self._gather(self.units[name])
            self._copy_out(self.units[name])
            self._free(self.flat.pop(name, None))
            self._free(self.parts.pop(name, None))
        before = order[order.index(name) - 1] if order.index(name) else ""
        if before and not self.weights.get(before) and before not in self.flat:
            self._gather(self.units[before])
            if self.units[before].is_flat:
                self._copy_out(self.units[before])

    def _run_backward(self, run: _Run) -> None:
        names: dict[str, _Item | None] = dict(run.saved)
        made: list[_Item] = []
        for event in self.of_graph.get((run.entry.graph, "backward"), ()):
            self._play(event, run, names)
            if event.role == "gradient" and (item := names.get(event.buffer)) is not None:
                made.append(item)
        for item in run.saved.values():
            self._free(item)
        self._sort_gradients(run, list(dict.fromkeys(made)))
        self._free_all(run.taken)
        if not run.number:
            self._free_all(self.handed)

    def _sort_gradients(self, run: _Run, made: Sequence[_Item]) -> None:
        """Separate gradients of weights, by their sizes, from those that are handed to the graph before."""
        weights = [
            each
            for each in run.entry.arguments.values()
            if (each.is_weight or each.memory in self.unit_of) and each.trains
        ]
        for item in made:
            weight = next((each for each in weights if each.own_bytes == item.bytes), None)
            if weight is None:
                self.handed.append(item)
                continue
            weights.remove(weight)
            if (unit := self.unit_of.get(weight.memory)) is not None:
                self.gradients.setdefault(unit, []).append(item)
            elif self.tape.buckets is not None and self.tape.buckets.holds_gradients:
                self._free(item)

    def _reduce(self, name: str) -> None:
        """Reduce a unit's gradients, as FSDP does after its backward."""
        unit, gradients = self.units[name], self.gradients.pop(name, [])
        if unit.is_flat:
            self._reduce_flat(unit, gradients)
            return
        self._free_weights(name)
        self._free(self.to_reduce)  # kept until the next unit is reduced
        if unit.reduce_bytes:
            self.to_reduce = _Item(self._unique(f"{name}: gradients to reduce"), unit.reduce_bytes, "gradients")
            self._allocate(self.to_reduce)
            size = [weight.gradient_bytes for weight in unit.weights if weight.gradient_bytes][-1]
            last = next((each for each in gradients if each.bytes == size), None)  # torch's loop variable holds it
            self._free_all(each for each in gradients if each is not last)
            self._add_reduced(unit)
            self._free(last)

    def _copy_in_gloo(self, unit: FsdpUnit, size: int, kind: MemoryKind) -> None:
        """Allocate and free gloo's own copy of what it gathers or reduces; NCCL needs none."""
        if self.on_cpu and unit.shards > 1:
            copy = _Item(self._unique(f"{unit.title}: gloo's copy"), size, kind)
            self._allocate(copy)
            self._free(copy)

    def _reduce_flat(self, unit: FsdpUnit, gradients: Iterable[_Item]) -> None:
        """Join the gradients into that of the flat parameter, free the weights, and reduce."""
        flat = _Item(self._unique(f"{unit.title}: gradient"), unit.gradient_bytes, "gradients")
        self._allocate(flat)
        self._free_all(gradients)
        self._free_weights(unit.title)
        if unit.gathered_bytes > unit.gradient_bytes:
            padded = _Item(self._unique(f"{unit.title}: padded gradient"), unit.reduce_bytes, "gradients")
            self._allocate(padded)
            self._add_reduced(unit)
            self._free(padded)
        else:
            self._add_reduced(unit)
        self._free(flat)

    def _add_reduced(self, unit: FsdpUnit) -> None:
        """Allocate a shard of reduced gradients, in the dtype of the reduction and then in that of the parameters."""
        reduced = _Item(self._unique(f"{unit.title}: reduced gradients"), unit.reduce_bytes // unit.shards, "gradients")
        self._allocate(reduced)
        self._copy_in_gloo(unit, unit.reduce_bytes, "gradients")
        size = sum(weight.shard_bytes for weight in unit.weights if weight.gradient_bytes)
        if size > reduced.bytes:
            self._allocate(_Item(self._unique(f"{unit.title}: reduced gradients"), size, "gradients"))
            self._free(reduced)
        elif self._is_elsewhere(unit):
            self._free(reduced)

    # FSDP's hooks

    def _gather(self, unit: FsdpUnit) -> None:
        item = _Item(self._unique(f"{unit.title}: all-gather"), unit.gathered_bytes, "gathered weights")
        if unit.shards > 1 and not unit.is_flat:
            self.flat[unit.title] = item
            self._allocate(item)
            self._copy_in_gloo(unit, item.bytes, item.kind)

    def _copy_out(self, unit: FsdpUnit) -> None:
        self.weights[unit.title] = items = [
            _Item(self._unique(f"{weight.name} gathered"), weight.gathered_bytes, "gathered weights")
            for weight in unit.weights
        ]
        for item in items:
            self._allocate(item)
            if unit.is_flat:
                self._copy_in_gloo(unit, item.bytes, item.kind)

    def _free_weights(self, name: str) -> None:
        self._free_all(self.weights.pop(name, []))

    # Events of a graph's code

    def _play(self, event: MemoryEvent, run: _Run, names: dict[str, _Item | None]) -> None:
        """Follow an event of the generated code. `names` are the buffers of this run; None for what others hold."""
        if event.what == "input":
            if event.role == "tangent":
                names[event.buffer] = self._tangent(event)
            else:
                names.setdefault(event.buffer, None)
        elif event.what == "allocate":
            item = names[event.buffer] = self._item(event, run)
            self._allocate(item)
        elif event.what == "alias":
            names[event.buffer] = names.get(event.of)
        elif event.what == "reuse":
            names[event.buffer] = self._reuse(names.pop(event.of, None), self._item(event, run))
        elif event.what == "free":
            self._free(names.get(event.buffer))
        elif event.what == "output":
            self._keep(event, run, names)

    def _keep(self, event: MemoryEvent, run: _Run, names: Mapping[str, _Item | None]) -> None:
        item = names.get(event.buffer)
        if event.role == "gradient" and item is not None:
            item.kind, item.role = "gradients", "gradient"
        elif event.role == "result" and item is not None:
            run.results.append(item)
        elif event.role == "saved":
            if item is None:
                run.kept_inputs[event.bytes] += 1
            elif item not in run.results:
                run.saved[event.of] = item

    def _tangent(self, event: MemoryEvent) -> _Item:
        """The gradient that is handed in: of the graph after this one, or of code that is not seen."""
        found = next((item for item in self.handed if item.bytes == event.bytes), None)
        if found is not None:
            self.handed.remove(found)
            return found
        item = _Item(self._unique(event.buffer), event.bytes, "gradients", event.graph, self.half, event.entity)
        self._allocate(item)
        return item

    def _item(self, event: MemoryEvent, run: _Run) -> _Item:
        name = self._unique(event.buffer if not run.number else f"{event.buffer} of run {run.number + 1}")
        kind: MemoryKind = "gathered weights" if event.entity in self.gathered else "activations"
        return _Item(name, event.bytes, kind, event.graph, self.half, event.entity)

    # The log

    def _unique(self, name: str) -> str:
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name} ({self._names[name]})"

    def _allocate(self, item: _Item, what: MemoryWhat = "allocate") -> None:
        self.live += item.bytes
        self._note(what, item)

    def _reuse(self, before: _Item | None, item: _Item) -> _Item | None:
        """Hand the memory of an item on to a new one."""
        if before is None or before.is_free:
            return before
        before.is_free = True
        self.log.append(("reuse", item, self.half, self.live, before.name))
        return item

    def _free(self, item: _Item | None) -> None:
        if item is not None and not item.is_free:
            item.is_free = True
            self.live -= item.bytes
            self._note("free", item)

    def _free_all(self, items: Iterable[_Item]) -> None:
        for item in list(items):
            self._free(item)

    def _note(self, what: MemoryWhat, item: _Item) -> None:
        self.log.append((what, item, self.half, self.live, ""))

    def events(self) -> Iterator[MemoryEvent]:
        """The log as events. An item has its final kind, such as gradients, from its allocation on."""
        for what, item, half, live, before in self.log:
            yield MemoryEvent(
                item.graph, half, what, item.name, item.bytes, live, "rank", of=before, entity=item.entity,
                kind=item.kind,
            )  # fmt: skip
