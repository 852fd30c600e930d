"""Every stage of a capture against eager and against float64, on the inputs of its call, and where numbers depart.

Eager is here the captured graph, run as it is; whether that graph gives what the user's code gives is told by
`compiler.measure.captured_check`. Random numbers are eager's own at every stage, where a stage draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from compiler.autograd.provenance import Provenance
from compiler.builder import Builder
from compiler.decompose.drawn import Drawing, Given, Values, placed, random_state, seeded
from compiler.decompose.graphs import (
    CHECKPOINTED,
    LevelError,
    LevelGraphs,
    Results,
    autocast,
    double,
    is_checkpointed,
)
from compiler.decompose.levels import TABLES
from compiler.decompose.numbers import AS_NEAR, numbers
from compiler.interpret.kept import KeptFrame
from compiler.measure.departures import by_holder, by_name, by_origin, outputs_of, watched
from compiler.measure.handed_draws import Exact, draws_of
from compiler.measure.input_names import InputNames
from compiler.measure.stage_runs import NotComparableError, Stage, StageRunner, stages_of
from compiler.measure.stage_words import Named, distance, not_comparable, on_cpu, stage_checks
from compiler.record import Artifact, Check, Problem
from compiler.torch_api.level_traces import Kind, first_line

CAPTURED = "captured"
MOST = 0.1
"""A float64 reference from which eager is farther than this, of the largest magnitude, says nothing."""


@dataclass
class Levels:
    """Captures at each level, traced when one is first asked for."""

    builder: Builder
    kept: Mapping[str, KeptFrame]
    _known: dict[str, LevelGraphs | LevelError] = field(default_factory=dict)

    def __call__(self, graph: str) -> LevelGraphs:
        """Raises LevelError where it can't be traced again."""
        if graph not in self._known:
            try:
                self._known[graph] = LevelGraphs(graph, self.kept[graph], self._captured(graph))
            except LevelError as error:
                self._known[graph] = error
        known = self._known[graph]
        if isinstance(known, LevelError):
            raise known
        return known

    def _captured(self, graph: str) -> Artifact:
        return next(item for item in self.builder.artifacts.values() if (item.stage, item.graph) == (CAPTURED, graph))


def check_stages(builder: Builder, kept: Mapping[str, KeptFrame], levels: Callable[[str], LevelGraphs]) -> None:
    """Put a `Check` for each stage of each capture that was called into a record under construction."""
    for captured in [item for item in builder.artifacts.values() if item.stage == CAPTURED]:
        frame = kept.get(captured.graph)
        if frame is None or frame.arguments is None:
            continue
        try:
            builder.checks.extend(StageCheck(captured, frame, levels(captured.graph)).checks())
        except LevelError as error:
            builder.problem(Problem(CAPTURED, str(error), graph=captured.graph))


class StageCheck:
    """The stages of one capture. Raises LevelError where the captured graph can't be traced or run again."""

    def __init__(self, captured: Artifact, kept: KeptFrame, levels: LevelGraphs) -> None:
        self.graph, self._captured, self._kept, self._levels = captured.graph, captured, kept, levels
        assert kept.captured is not None  # LevelGraphs asks for it
        self._module, self._inputs = kept.captured, InputNames.of(captured)
        self._values: dict[str, Any] = {}
        try:
            self._eager = self._run_captured()
            self._drawn: dict[Kind, Values] = {}
            self._levels.aot.run = lambda kind, args: self._levels.draw(kind, args, self._drawn)
            self._aten = self._run_level()
        except Exception as error:
            raise LevelError(f"the graph of {captured.graph} can't be run again: {first_line(error)}") from error
        self._exact = self._run_exact()
        self._own_error = self._error_of_eager()
        if self._own_error > MOST:
            self._exact, self._own_error = None, 0.0
        made = [draws_of(graph, self._drawn.get(kind, {})) for kind, graph in self._levels.aot.graphs.items()]
        self._refusal = CHECKPOINTED if self._draws and is_checkpointed(self._module) else ""
        self._runner = StageRunner(kept, self._eager, made[0])

    def _judged(self, check: Check) -> Check:
        """A check, "close" where eager itself is about as far from float64: rounding alone gives such numbers.

        The largest errors of all results are compared: which of them rounding hits is a matter of chance.
        """
        error = check.max_relative if check.max_relative_float64 is None else check.max_relative_float64
        if check.verdict != "differs" or not error or error > AS_NEAR * self._own_error:
            return check
        return replace(check, verdict="close", note=f"eager itself is {self._own_error:.2g} from float64")

    def _error_of_eager(self) -> float:
        """The largest relative error of the captured graph's results against float64; 0 where that is not known."""
        own = on_cpu(self._eager.named(()))
        exact = on_cpu(self._exact.named(())) if self._exact else None
        formats = {str(value.dtype).removeprefix("torch.") for _, value in own if isinstance(value, Tensor)}
        return max((distance(own, exact, name)[1] or 0.0 for name in formats), default=0.0)

    def checks(self) -> Iterator[Check]:
        """Stage by stage; the first that departs has the node where it does."""
        stages = {stage.name: stage for stage in stages_of(self._kept)}
        post_grad = stages.pop("post_grad", None)
        named = False
        for found in self._each([*stages.values()], post_grad):
            departs = any(check.verdict == "differs" for check in found)
            node = self._node(found[0].stage, stages, post_grad) if departs and not named else ""
            named = named or departs
            yield from (replace(check, node=node) if check.verdict == "differs" else check for check in found)

    def _each(self, stages: Sequence[Stage], post_grad: Stage | None) -> Iterator[tuple[Check, ...]]:
        for stage in stages:
            yield self._checked(stage.name, partial(self._stage_results, stage))
        yield self._checked("decomposed ATen", lambda: self._aten)
        for level in TABLES:
            yield self._checked(f"decomposed {level}", partial(self._run_at, level))
        if post_grad is not None:
            yield self._checked(post_grad.name, partial(self._stage_results, post_grad))

    def _checked(self, stage: str, run: Callable[[], Results]) -> tuple[Check, ...]:
        try:
            if self._refusal:
                raise NotComparableError(self._refusal)
            found = run()
        except NotComparableError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - graphs fail in many ways, and the other stages don't care
            reason = f"it can't be run: {type(error).__name__}: {first_line(error)}"
        else:
            return self._told(stage, found)
        return (not_comparable(stage, self.graph, reason),)

    def _told(self, stage: str, mine: Results) -> tuple[Check, ...]:
        """One `Check` a format. Where the captured graph is the one that was run, only float64 says something."""
        changed = sorted(mine.changed | self._eager.changed)
        own, eager = self._named(mine, changed), self._named(_as_in(mine, self._eager), changed)
        exact = self._named(_as_in(mine, self._exact), changed) if self._exact else None
        return tuple(map(self._judged, stage_checks(own, eager, exact, stage, self.graph)))

    def _named(self, found: Results, changed: Sequence[int]) -> Named:
        """Results on the CPU, by the names that the user has for inputs."""
        return on_cpu([(self._inputs.named(name), value) for name, value in found.named(changed)])

    def _run_captured(self, into: dict[str, Any] | None = None) -> Results:
        """The captured graph as eager runs it; with the values of its nodes, if they are wanted."""
        call = self._module if into is None else watched(Interpreter(self._module), into).run
        with seeded(), autocast(self._kept):
            before = random_state()
            found = self._levels.results(call, self._levels.own_arguments())
            self._draws = random_state() != before
        return found

    def _run_level(self) -> Results:
        with seeded():
            return self._levels.results(self._levels.aot.call, self._levels.own_arguments())

    def _run_at(self, level: str) -> Results:
        self._levels.aot.run = partial(self._levels.given, level, self._drawn)
        return self._run_level()

    def _run_exact(self) -> Results | None:
        """The ATen graphs in float64; None where they take no other formats than their own."""
        graphs = self._levels.aot.graphs
        self._levels.aot.run = lambda kind, args: Exact(graphs[kind], self._drawn.get(kind, {})).run(*args)
        arguments = [double(value) for value in self._levels.own_arguments()]
        try:
            found = self._levels.results(self._levels.aot.call, arguments)
        except Exception:  # noqa: BLE001 - what works in one format only fails in many ways
            return None
        return found if found.alike(self._eager) else None

    def _stage_results(self, stage: Stage) -> Results:
        return self._runner.run(stage).results

    def _node(self, name: str, stages: Mapping[str, Stage], post_grad: Stage | None) -> str:
        """The id of the first node of a stage that departs from the stage before; "" where it can't be told."""
        if name.startswith("decomposed "):
            return self._node_of_level(name.removeprefix("decomposed "))
        order = [*stages.values(), *([post_grad] if post_grad else [])]
        place = next(index for index, stage in enumerate(order) if stage.name == name)
        mine, before = order[place], order[place - 1] if place else None
        values = self._runner.run(mine, watch=True).values
        known = self._runner.run(before, watch=True).values if before else {}
        for kind, graph in mine.graphs.items():
            if before is None:
                found = self._from_captured(mine, kind, values[kind])
            else:
                found = by_name(graph, values[kind], known.get(kind) or known.get("joint", {}))
            if found:
                return self._id(mine, kind, found)
        return ""

    def _from_captured(self, stage: Stage, kind: str, values: Mapping[str, Any]) -> str:
        """Gradients have no node in the captured graph: for those, the node that gives the first wrong one."""
        self._know_captured()
        origins = self._origins(self._kept.stages[kind])
        found = by_origin(stage.graphs[kind], values, self._values, partial(_by_name, origins))
        return found or self._first_wrong(stage.graphs[kind], values)

    def _first_wrong(self, graph: GraphModule, values: Mapping[str, Any]) -> str:
        """The node that gives the first gradient that is not eager's."""
        names = [*outputs_of(graph)][-len(self._kept.arguments or ()) :]
        pairs = ((names[place], value) for place, value in self._eager.gradients.items() if place < len(names))
        wrong = (name for name, value in pairs if name and not _agree(values.get(name), value))
        return next(wrong, "")

    def _node_of_level(self, level: str) -> str:
        if level == "ATen":
            return self._node_of_aten()
        for kind, graph in self._levels.aot.graphs.items():
            traced = self._levels.trees[level, kind].traced
            inputs = self._levels.half(self._levels.id_of(level, kind)).inputs
            before: dict[str, Any] = {}
            mine: dict[str, Any] = {}
            with seeded(), torch.no_grad():
                watched(Drawing(graph), before).run(*inputs)
                given = placed(self._drawn.get(kind, {}), traced.values)
                watched(Given(traced.module, given), mine).run(*inputs)
            if found := by_holder(mine, before, traced.values):
                return f"{self._levels.id_of(level, kind)}.{found}"
        return ""

    def _node_of_aten(self) -> str:
        """The first node of the ATen graphs that should hold the value of a captured node, and holds another."""
        self._know_captured()
        for kind, graph in self._levels.aot.graphs.items():
            inputs = self._levels.half(self._levels.id_of("ATen", kind)).inputs
            values: dict[str, Any] = {}
            with seeded(), torch.no_grad():
                watched(Drawing(graph), values).run(*inputs)
            origins = self._origins(self._levels.aot.joint or graph)
            found = by_origin(graph, values, self._values, partial(_by_name, origins))
            if found := found or self._first_wrong(graph, values):
                return f"{self._levels.id_of('ATen', kind)}.{found}"
        return ""

    def _origins(self, graph: GraphModule) -> dict[str, list[str]]:
        """The captured nodes that each forward node of a graph comes from."""
        known = Provenance(graph, self._captured, same_names=False)
        names = {entity.id: entity.label for entity in self._captured.entities}
        forward = [node for node in graph.graph.nodes if not node.meta.get("autograd_backward")]
        return {node.name: [names[origin] for origin in known(node) if origin in names] for node in forward}

    def _know_captured(self) -> None:
        if not self._values:
            self._run_captured(self._values)

    def _id(self, stage: Stage, kind: str, name: str) -> str:
        """The entity that stands for a node. What Inductor's passes made of the joint graph is seen in its halves."""
        if stage.name == "post_grad":
            return f"post_grad[{self.graph} {kind}].{name}"
        if stage.name != "joint passes":
            return f"{kind}[{self.graph}].{name}"
        halves = (half for half in ("forward", "backward") if half in self._kept.stages)
        inside = (half for half in halves if any(node.name == name for node in self._kept.stages[half].graph.nodes))
        return f"{next(inside, 'joint')}[{self.graph}].{name}"


def _by_name(origins: Mapping[str, Sequence[str]], node: Node) -> Sequence[str]:
    return origins.get(node.name, ())


def _as_in(mine: Results, other: Results) -> Results:
    """Results with the gradients that there are in `mine`."""
    return replace(other, gradients={place: other.gradients[place] for place in mine.gradients})


def _agree(mine: Any, eager: Any) -> bool:
    if not (isinstance(mine, Tensor) and isinstance(eager, Tensor)):
        return True
    (found,) = numbers([("", mine)], [("", eager.cpu())])
    return found.verdict != "differs"
