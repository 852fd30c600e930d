"""Compare every stage of a capture with eager and float64 on the inputs of its call, and find where values diverge.

Here, eager means the captured graph run by torch; `compiler.numerics.call_check` compares that with the user's code.
Random numbers are eager's at every stage that draws them in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.autograd.provenance import Provenance
from compiler.calls.graph_runs import HookedInterpreter, keep_values
from compiler.calls.kept_graphs import KeptFrame
from compiler.decompose.graphs import LevelError, LevelGraphs, Results
from compiler.decompose.levels import TABLES
from compiler.decompose.random_draws import Values, give_values, place_draws, seed_and_restore
from compiler.numerics.policy.by_dtype import Named
from compiler.numerics.policy.judge import judge
from compiler.numerics.random_replay import draws_of
from compiler.numerics.stage_runs import NotComparableError, Stage, StageRunner, stages_of
from compiler.numerics.stage_words import input_names, not_comparable, on_cpu, rename_input, stage_checks
from compiler.record import Artifact, Check, Problem
from compiler.record.builder import Builder
from compiler.torch_api import fx
from compiler.torch_api.level_traces import Kind, first_line

CAPTURED = "captured"
NodeValues = Mapping[str, Any]


def check_stages(builder: Builder, kept: Mapping[str, KeptFrame]) -> None:
    """Add a `Check` for each stage of each called capture to a record under construction."""
    for captured in [item for item in builder.artifacts.values() if item.stage == CAPTURED]:
        frame = kept.get(captured.graph)
        if frame is None or frame.arguments is None:
            continue
        try:
            builder.checks.extend(StageCheck(captured, frame, LevelGraphs(captured.graph, frame, captured)).checks())
        except LevelError as error:
            builder.problem(Problem(CAPTURED, str(error), graph=captured.graph))


class StageCheck:
    """Checks the stages of one capture. Raises LevelError if the captured graph can't be traced or run again."""

    def __init__(self, captured: Artifact, kept: KeptFrame, levels: LevelGraphs) -> None:
        self.graph, self._captured_artifact, self._kept, self._levels = captured.graph, captured, kept, levels
        assert kept.eager is not None  # LevelGraphs requires it
        self._module, self._inputs = kept.eager, input_names(captured)
        self._values: dict[str, Any] = {}
        try:
            self._eager, draws = levels.run_captured()
            self._drawn: dict[Kind, Values] = {}
            self._levels.aot.run = lambda kind, args: self._levels.draw(kind, args, self._drawn)
            self._aten = self._run_level()
        except Exception as error:
            raise LevelError(f"the graph of {captured.graph} can't be run again: {first_line(error)}") from error
        self._exact = levels.run_exact(self._eager, draws)
        made = [draws_of(graph, self._drawn.get(kind, {})) for kind, graph in self._levels.aot.graphs.items()]
        self._runner = StageRunner(kept, self._eager, made[0])

    def checks(self) -> Iterator[Check]:
        """Checks of each stage; the first stage that differs names the first differing node."""
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
            yield self._check(stage.name, partial(self._runner.run, stage))
        yield self._check("decomposed ATen", lambda: self._aten)
        for level in TABLES:
            yield self._check(f"decomposed {level}", partial(self._run_at, level))
        if post_grad is not None:
            yield self._check(post_grad.name, partial(self._runner.run, post_grad))

    def _check(self, stage: str, run: Callable[[], Results]) -> tuple[Check, ...]:
        try:
            found = run()
        except NotComparableError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - graphs fail in many ways, and the other stages are independent
            reason = f"it can't be run: {type(error).__name__}: {first_line(error)}"
        else:
            return self._compare(stage, found)
        return (not_comparable(stage, self.graph, reason),)

    def _compare(self, stage: str, mine: Results) -> tuple[Check, ...]:
        """Compare a stage's results with eager's: one `Check` for each dtype."""
        changed = sorted(mine.changed | self._eager.changed)
        own, eager = (
            self._named_results(mine, changed),
            self._named_results(_with_gradients_of(mine, self._eager), changed),
        )
        exact = self._named_results(_with_gradients_of(mine, self._exact), changed) if self._exact else None
        return stage_checks(own, eager, exact, stage, self.graph)

    def _named_results(self, found: Results, changed: Sequence[int]) -> Named:
        """Pairs of name and result on the CPU, with the user's names for inputs."""
        return on_cpu([(rename_input(name, self._inputs), value) for name, value in found.with_names(changed)])

    def _run_level(self) -> Results:
        with seed_and_restore():
            return self._levels.results(self._levels.aot.call, self._levels.own_arguments())

    def _run_at(self, level: str) -> Results:
        self._levels.aot.run = partial(self._levels.run_with_draws, level, self._drawn)
        return self._run_level()

    def _node(self, name: str, stages: Mapping[str, Stage], post_grad: Stage | None) -> str:
        """Id of the first node of a stage that differs from the previous stage; "" if unknown."""
        if name.startswith("decomposed "):
            return self._node_of_level(name.removeprefix("decomposed "))
        order = [*stages.values(), *([post_grad] if post_grad else [])]
        place = next(index for index, stage in enumerate(order) if stage.name == name)
        mine, before = order[place], order[place - 1] if place else None
        values: dict[str, dict[str, Any]] = {}
        known: dict[str, dict[str, Any]] = {}
        self._runner.run(mine, values)
        if before:
            self._runner.run(before, known)
        for kind, graph in mine.graphs.items():
            if before is None:
                found = self._node_after_captured(mine, kind, values[kind])
            else:
                found = by_name(graph, values[kind], known.get(kind) or known.get("joint", {}))
            if found:
                return self._id(mine, kind, found)
        return ""

    def _node_after_captured(self, stage: Stage, kind: str, values: Mapping[str, Any]) -> str:
        """Name of the first node that differs from the captured graph; "" if unknown.

        The captured graph has no nodes for gradients. If only gradients differ, it is the node that returns
        the first wrong gradient.
        """
        self._know_captured()
        origins = self._origins(self._kept.stages[kind])
        found = by_origin(stage.graphs[kind], values, self._values, origins)
        return found or self._first_wrong(stage.graphs[kind], values)

    def _first_wrong(self, graph: GraphModule, values: Mapping[str, Any]) -> str:
        """Name of the node that returns the first gradient that differs from eager's; "" if there is none."""
        returned: Any = graph.graph.output_node().args[0]
        outputs = [*(returned if isinstance(returned, tuple | list) else (returned,))][
            -len(self._kept.arguments or ()) :
        ]
        pairs = ((outputs[place], value) for place, value in self._eager.gradients.items() if place < len(outputs))
        wrong = (node.name for node, value in pairs if isinstance(node, Node) and departs(values.get(node.name), value))
        return next(wrong, "")

    def _node_of_level(self, level: str) -> str:
        if level == "ATen":
            return self._node_of_aten()
        for kind, graph in self._levels.aot.graphs.items():
            traced = self._levels.trees[level, kind].traced
            inputs = self._levels.half(self._levels.id_of(level, kind)).inputs
            before: dict[str, Any] = {}
            mine: dict[str, Any] = {}
            with seed_and_restore(), torch.no_grad():
                HookedInterpreter(graph, keep_values(before)).run(*inputs)
                given = give_values(place_draws(self._drawn.get(kind, {}), traced.values))
                HookedInterpreter(traced.module, keep_values(mine), given).run(*inputs)
            if found := by_holder(mine, before, traced.values):
                return f"{self._levels.id_of(level, kind)}.{found}"
        return ""

    def _node_of_aten(self) -> str:
        """Id of the first node of the ATen graphs whose value differs from the value of its captured node."""
        self._know_captured()
        for kind, graph in self._levels.aot.graphs.items():
            inputs = self._levels.half(self._levels.id_of("ATen", kind)).inputs
            values: dict[str, Any] = {}
            with seed_and_restore(), torch.no_grad():
                HookedInterpreter(graph, keep_values(values)).run(*inputs)
            origins = self._origins(self._levels.aot.joint or graph)
            found = by_origin(graph, values, self._values, origins)
            if found := found or self._first_wrong(graph, values):
                return f"{self._levels.id_of('ATen', kind)}.{found}"
        return ""

    def _origins(self, graph: GraphModule) -> Callable[[Node], Sequence[str]]:
        """A function that maps a forward node to the names of the captured nodes it originates from."""
        known = Provenance(graph, self._captured_artifact, fx.homes(self._module), same_names=False)
        names = {entity.id: entity.label for entity in self._captured_artifact.entities}
        forward = [node for node in graph.graph.nodes if not fx.is_backward(node)]
        found = {node.name: [names[origin] for origin in known(node) if origin in names] for node in forward}
        return lambda node: found.get(node.name, ())

    def _know_captured(self) -> None:
        if not self._values:
            self._levels.run_captured(HookedInterpreter(self._module, keep_values(self._values)).run)

    def _id(self, stage: Stage, kind: str, name: str) -> str:
        """Entity id of a node. Nodes that Inductor's joint passes added are looked up in the halves."""
        if stage.name == "post_grad":
            return f"post_grad[{self.graph} {kind}].{name}"
        if stage.name != "joint passes":
            return f"{kind}[{self.graph}].{name}"
        halves = (half for half in ("forward", "backward") if half in self._kept.stages)
        inside = (half for half in halves if any(node.name == name for node in self._kept.stages[half].graph.nodes))
        return f"{next(inside, 'joint')}[{self.graph}].{name}"


def _with_gradients_of(mine: Results, other: Results) -> Results:
    """`other` with only the gradients that `mine` has."""
    return replace(other, gradients={place: other.gradients[place] for place in mine.gradients})


# Find the first node of a graph whose value differs from the previous stage.


def departs(mine: Any, before: Any) -> bool:
    """Whether two values are tensors that differ by the policy."""
    return isinstance(mine, Tensor) and isinstance(before, Tensor) and judge("", mine, before).verdict == "differs"


def by_name(graph: GraphModule, mine: NodeValues, before: NodeValues) -> str:
    """The first node whose value differs from the node of the same name in the previous stage; "" if there is none."""
    names = (node.name for node in graph.graph.nodes if node.name in mine and node.name in before)
    return next((name for name in names if departs(mine[name], before[name])), "")


def by_origin(
    graph: GraphModule, mine: NodeValues, before: NodeValues, origins: Callable[[Node], Iterable[str]]
) -> str:
    """The first node whose value differs from the value of its origin in the previous stage; "" if there is none.

    A node is decomposed into several; the last one with its shape and dtype holds its value. `origins` returns the
    names of a node's origins in the previous stage.
    """
    holders: dict[str, list[str]] = {}
    for node in graph.graph.nodes:
        for origin in origins(node):
            holders.setdefault(origin, []).append(node.name)
    for name, value in before.items():
        alike = [holder for holder in holders.get(name, ()) if _same_type(mine.get(holder), value)]
        if alike and all(departs(mine[holder], value) for holder in alike):
            return alike[-1]
    return ""


def by_holder(mine: NodeValues, before: NodeValues, holders: Mapping[str, Sequence[str | None]]) -> str:
    """The first node whose value differs from the value of the node it was traced from; "" if there is none."""
    for name, value in before.items():
        places = holders.get(name, ())
        whole = value if isinstance(value, tuple | list) else (value,)
        for holder, part in zip(places, whole, strict=False):
            if holder is not None and _same_type(mine.get(holder), part) and departs(mine[holder], part):
                return holder
    return ""


def _same_type(mine: Any, value: Any) -> bool:
    both = isinstance(mine, Tensor) and isinstance(value, Tensor)
    return both and mine.shape == value.shape and mine.dtype == value.dtype
