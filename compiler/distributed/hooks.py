"""The collectives that hooks of FSDP and DDP call outside of graphs, as facts of a record."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from torch.fx import GraphModule

from compiler.capture.sources import SourceBook, is_installed, span_of
from compiler.distributed.step_tape import RunEntry, StepTape, UnitEntry, arguments_of, first_forward, results_of
from compiler.record import BucketPlan, Collective, Problem, Span, Unit
from compiler.record.builder import Builder
from compiler.record.distributed_facts import CALLED_BY_JOIN, CollectiveHalf
from compiler.torch_api.collectives import is_initialized, is_simulated
from compiler.torch_api.ddp_buckets import Bucket, bucket_plans, parameter_paths
from compiler.torch_api.patching import Function, stack_height
from compiler.torch_api.pipelines import RunningStep
from compiler.torch_api.sharded_weights import Buckets, active_buckets, observe_units, parameters_without_gradient

if TYPE_CHECKING:  # these import torch's FSDP, which takes long, and is not in all builds
    from compiler.torch_api.fsdp_units import FsdpUnit
    from compiler.torch_api.hook_collectives import HookCall, HookWatch

DDP: Final = "DistributedDataParallel"
MOST_CALLS = 20_000
"""Maximum number of events that are kept of one step."""
_MOST_LINES = 4


@dataclass
class HookLog:
    """Collects calls of collectives, FSDP's gathers and runs of graphs in each step.

    A step is a call of the explored function. That of a pipeline's schedule, which calls it for each microbatch, is one
    step, with a negative number. `buckets` are those of a DistributedDataParallel model, once it was called.
    """

    builder: Builder
    call_number: Callable[[], int]
    """The number of the current call of the explored function, 0 if the user's own code calls compiled functions."""
    steps: dict[int, list[HookCall | UnitEntry | RunEntry]] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    plans: list[BucketPlan] = field(default_factory=list)
    buckets: Buckets | None = None
    _ddp: Any = None
    _base: int = 0
    _pipeline: RunningStep = field(default_factory=RunningStep)
    _watch: HookWatch | None = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _is_open: Callable[[], bool] = lambda: False

    def prepare(self, stack: ExitStack, is_observing: Callable[[], bool]) -> None:
        """Collect until the end of `stack`, while `is_observing()`. The caller's caller begins the exploration."""
        self._stack, self._is_open = stack, is_observing
        self._base = stack_height(sys._getframe(2))
        self.begin()

    def begin(self) -> None:
        """Start to collect, if there is a process group by now."""
        if self._watch is None and is_initialized():
            from compiler.torch_api.hook_collectives import watch_collectives

            self._watch = self._stack.enter_context(watch_collectives(self._add, self._base))
            self._stack.enter_context(self._pipeline.watch())
            self._stack.enter_context(observe_units(lambda moment, unit: self._add(UnitEntry(moment, unit))))

    def stop(self) -> None:
        """Collect no more: what follows are repeated calls for measurements."""
        self._is_open = lambda: False

    def _add(self, event: HookCall | UnitEntry | RunEntry) -> None:
        step = self.steps.setdefault(-self._pipeline.number or self.call_number(), [])
        is_in_step = self.call_number() or self._pipeline.number
        has_started = is_in_step or self.builder.frames or getattr(event, "unit", None)
        if self._is_open() and has_started and len(step) < MOST_CALLS:
            step.append(event)

    def note_runs(self, graph: str, captured: GraphModule, call: Function) -> Function:
        """A function that calls `call`, and notes that the graph ran."""
        watch = self._watch
        if watch is None:
            return call

        from compiler.torch_api.hook_collectives import current_unit_module

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._is_open():
                return call(*args, **kwargs)
            arguments = arguments_of(captured, args)
            with watch.leave_out_redistributions():  # they are in the graph
                results = call(*args, **kwargs)
            self.buckets = self.buckets or active_buckets()
            self._add(RunEntry(graph, arguments, results_of(results), current_unit_module()))
            return results

        return run

    def tape(self) -> StepTape:
        """The first forward: runs of graphs, and FSDP's gathers between them."""
        events = (event for number in (-1, 0, 1) for event in self.steps.get(number, ()))
        entries = (event for event in events if isinstance(event, UnitEntry | RunEntry))
        return StepTape(first_forward(entries), self.buckets)

    def watch_ddp(self) -> Any:
        """The DDP module whose forward runs now, if any; its reducer is observed from now on."""
        return self._watch.watch_active_ddp() if self._watch is not None else None

    def add_graph(self, graph: str, module: Any, bucket: Bucket | None) -> None:
        """Note the bucket that a graph of DistributedDataParallel belongs to, and let its reducer be observed."""
        ddp = self.watch_ddp()
        if ddp is None:
            return
        self._ddp = ddp
        if bucket is None or bucket.index == 0:
            plans = bucket_plans(bucket.whole if bucket else module, ddp)
            self.plans.extend(replace(plan, graph=graph.partition(" ")[0]) for plan in plans)
        if bucket is not None:
            name = f"bucket {bucket.index + 1} of {bucket.count}"
            paths = parameter_paths(bucket.parameters, ddp.module)
            self.units[graph] = Unit(f"unit[{graph}]", DDP, name, paths, bucket.bytes, bucket.bytes, graphs=(graph,))

    def finish(self, book: SourceBook) -> None:
        """Add the collectives of the fullest step to the record, in order, and the units that they belong to."""
        builder = self.builder
        steps = [[event for event in step if not isinstance(event, UnitEntry)] for step in self.steps.values()]
        events = max(steps, key=_count_calls, default=[])
        found = list(_place_calls(events, _graphs_of_units(events)))
        hooks = list(_collectives(found, book))
        builder.groups |= {each.call.group.name: each.call.group for each in found}
        runs = Counter(event.graph for event in events if isinstance(event, RunEntry))
        of_graphs = [replace(each, calls=max(runs[each.graph], 1)) for each in builder.collectives]
        builder.collectives[:] = merge(of_graphs, found, hooks)
        builder.units.extend(self.units.values())
        builder.units.extend(_fsdp_units(found, hooks))
        builder.bucket_plans.extend(self.plans)
        if self._ddp is not None and (unused := parameters_without_gradient(self._ddp)):
            builder.problem(_unreduced_bucket_problem(unused))
        if is_simulated() and any(each.call.is_of_join for each in found):
            builder.problem(_join_problem())


def _join_problem() -> Problem:
    """Why collectives of ranks are not compared once the program uses Join."""
    return Problem(
        "captured",
        "from the first call of torch.distributed.algorithms.Join on, it is not known whether ranks wait for each "
        "other: they may make different numbers of steps, which simulated ranks don't follow",
        "run the job itself to see whether it ends",
    )


def _unreduced_bucket_problem(unused: Sequence[str]) -> Problem:
    """Why DDP does not reduce a bucket: some of its parameters got no gradient."""
    more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
    return Problem(
        "captured",
        f"DistributedDataParallel waits for gradients of {unused[0]}{more}, which the backward did not reach: it does "
        "not reduce their buckets, and its next forward raises an error",
        "use them in the loss, freeze them with requires_grad_(False), or pass find_unused_parameters=True",
    )


def _count_calls(events: Iterable[HookCall | RunEntry]) -> int:
    return sum(not isinstance(event, RunEntry) for event in events)


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A collective of a hook and the graph next to it: the one that runs after it, or that ran before it."""

    call: HookCall
    graph: str
    runs_before: tuple[str, ...]
    """Graphs that ran since the last collective of a hook."""


def _graphs_of_units(events: Iterable[HookCall | RunEntry]) -> dict[FsdpUnit, tuple[str, ...]]:
    """The graphs that run in the call of each unit's modules, and not in that of a unit inside of it."""
    calls = (event for event in events if not isinstance(event, RunEntry))
    units = {module: call.unit for call in calls if call.unit for module in call.unit.modules}
    found: dict[FsdpUnit, dict[str, None]] = {}
    for event in events:
        if isinstance(event, RunEntry) and (unit := units.get(event.module)):
            found.setdefault(unit, {})[event.graph] = None
    return {unit: tuple(graphs) for unit, graphs in found.items()}


def _place_calls(
    events: Sequence[HookCall | RunEntry], graphs: dict[FsdpUnit, tuple[str, ...]]
) -> Iterator[PlacedCall]:
    later = deque(event.graph for event in events if isinstance(event, RunEntry))
    runs: list[str] = []
    for event in events:
        if isinstance(event, RunEntry):
            runs.append(later.popleft())
            continue
        own = graphs.get(event.unit, ()) if event.unit else ()
        following = later[0] if later and not event.in_backward else ""
        yield PlacedCall(event, own[-1 if event.in_backward else 0] if own else following, tuple(runs))
        runs.clear()


def _collectives(found: Iterable[PlacedCall], book: SourceBook) -> Iterator[Collective]:
    counts: Counter[str] = Counter()
    buckets = 0
    for placed in found:
        call = placed.call
        buckets += _reduces_bucket(call)
        name = _name(placed, buckets)
        counts[name] += 1
        yield call.collective(
            id=f"collective[{name}]" if counts[name] == 1 else f"collective[{name} {counts[name]}]",
            graph=placed.graph,
            half=_half(placed),
            lines=_lines(call, book),
            cause=CALLED_BY_JOIN if call.is_of_join else _cause(call, buckets),
            origin="hook",
        )


def _half(placed: PlacedCall) -> CollectiveHalf:
    """The half in which a collective is called.

    "" if the program calls it itself after all graphs of the forward, and for what a pipeline's schedule sends.
    """
    call = placed.call
    if call.in_backward:
        return "backward"
    if call.kind in ("send", "recv"):
        return ""
    return "forward" if placed.graph or call.unit or call.is_of_ddp or call.of_dtensor else ""


def _reduces_bucket(call: HookCall) -> bool:
    """Whether DDP's reducer reduces gradients; it reduces a map of integers, too, which tells who used a parameter."""
    return call.is_of_ddp and call.kind == "all_reduce" and call.dtype != "int32"


def _name(placed: PlacedCall, bucket: int) -> str:
    call = placed.call
    if call.bucket or _reduces_bucket(call):
        return f"DDP bucket {call.bucket or bucket} {call.kind}"
    if call.is_of_ddp:
        return f"DDP {call.kind}"
    where = f"FSDP {call.unit.name or 'root'}" if call.unit else "DTensor" if call.of_dtensor else "hook"
    return " ".join(filter(None, (where, _half(placed), call.kind)))


def _cause(call: HookCall, bucket: int) -> str:
    """Why a hook calls the collective, as a sentence without a full stop."""
    if call.bucket:
        return f"the communication hook of DistributedDataParallel sends the gradients of its bucket {call.bucket}"
    if _reduces_bucket(call):
        return f"DistributedDataParallel reduces the gradients of its bucket {bucket}, the moment they are ready"
    if call.is_of_ddp and call.kind == "all_reduce":
        return "DistributedDataParallel finds out which parameters no rank used"
    if call.is_of_ddp:
        return "DistributedDataParallel agrees with the other ranks on its buckets"
    if call.of_dtensor:
        return f"{call.of_dtensor}, outside of graphs"
    if call.unit is None:
        is_of_user = call.places and not call.in_backward
        return "the code calls it outside of graphs" if is_of_user else "called outside of graphs"
    name = call.unit.name or "the root module"
    if call.kind == "all_gather":
        again = "again " if call.in_backward else ""
        half = "backward" if call.in_backward else "forward"
        ahead = ", ahead of its turn (prefetch)" if call.is_prefetch else ""
        return f"{call.unit.wrapper} gathers the parameters of {name} {again}for its {half}{ahead}"
    if call.kind == "all_reduce":
        return f"{call.unit.wrapper} reduces the gradients of {name} over the replicas"
    if call.kind == "reduce_scatter":
        return f"{call.unit.wrapper} reduces the gradients of {name} and keeps this rank's shard"
    return f"{call.unit.wrapper} calls it for {name}"


def _lines(call: HookCall, book: SourceBook) -> tuple[Span, ...]:
    own = [place for place in call.places if not is_installed(place.file)]
    return tuple(span_of(place, book) for place in own[:_MOST_LINES])


def _fsdp_units(found: Sequence[PlacedCall], hooks: Sequence[Collective]) -> Iterator[Unit]:
    units: dict[FsdpUnit, list[tuple[PlacedCall, Collective]]] = {}
    for placed, collective in zip(found, hooks, strict=True):
        if placed.call.unit is not None:
            units.setdefault(placed.call.unit, []).append((placed, collective))
    names: Counter[str] = Counter()
    for unit, calls in units.items():
        names[unit.name] += 1
        number = f" {names[unit.name]}" if names[unit.name] > 1 else ""
        gathers = [placed for placed, _ in calls if placed.call.kind == "all_gather"]
        in_backward = [placed for placed in gathers if placed.call.in_backward]
        yield Unit(
            id=f"unit[{unit.name or 'root'}{number}]",
            wrapper=unit.wrapper,
            name=unit.name,
            parameters=unit.parameters,
            bytes=unit.bytes,
            shard_bytes=unit.shard_bytes,
            dtype=unit.dtype,
            gathered_as=unit.gathered_as,
            reduced_as=unit.reduced_as,
            policy=unit.policy,
            shards=unit.shards,
            replicas=unit.replicas,
            graphs=tuple(dict.fromkeys(placed.graph for placed, _ in calls if placed.graph)),
            collectives=tuple(collective.id for _, collective in calls),
            gathers_again=bool(in_backward),
            prefetched=any(placed.call.is_prefetch for placed in gathers),
        )


def merge(graphs: Sequence[Collective], found: Sequence[PlacedCall], hooks: Sequence[Collective]) -> list[Collective]:
    """The collectives of graphs and hooks in order of execution, numbered. `graphs` are in that order among themselves.

    In a forward, a graph's collectives are where the graph ran. In a backward, they come before its unit's gradients
    are reduced.
    """
    left = list(graphs)
    merged: list[Collective] = []

    def take(graph: str, is_backward: bool) -> None:
        mine = [each for each in left if each.graph == graph and (each.half == "backward") == is_backward]
        merged.extend(mine)
        left[:] = [each for each in left if each not in mine]

    for placed, hook in zip(found, hooks, strict=True):
        for graph in placed.runs_before:
            take(graph, is_backward=False)
        if hook.half == "backward":
            for graph in {each.graph: None for each in left if each.half != "backward"}:
                take(graph, is_backward=False)
            if hook.kind != "all_gather":
                take(hook.graph, is_backward=True)
        merged.append(hook)
    return [replace(each, order=order) for order, each in enumerate([*merged, *left])]
