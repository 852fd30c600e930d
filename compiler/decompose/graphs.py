"""The graphs of one capture at each level, such as `decomposed[0/0 forward core ATen]`.

AOTAutograd traces the captured graph with an empty decomposition table, on the inputs of its first call. Its forward
and backward are traced again with each level's table, node by node. Sizes and autocast are as in that call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.autograd.provenance import Provenance
from compiler.calls.call import autocast
from compiler.calls.graph_runs import HookedInterpreter, copy_tensor
from compiler.calls.kept_graphs import KeptFrame
from compiler.capture.graphs import graph_artifact
from compiler.decompose.levels import TABLES
from compiler.decompose.random_draws import Values, give_values, place_draws, record_draws, seed_and_restore
from compiler.decompose.reasons import A_PRIM
from compiler.decompose.tree import LevelTree, ops_of, source_of
from compiler.numerics.policy.by_dtype import Numbers, not_comparable, numbers, worst_verdict
from compiler.numerics.policy.judge import is_reference
from compiler.record import Artifact, Problem
from compiler.record.builder import Builder
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import table
from compiler.torch_api.level_traces import AotGraphs, Kind, aot_graphs, expand_node, first_line
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.widened import Drawn, Recording, Widened, wide_leaf


class LevelError(RuntimeError):
    """Raised if a captured graph, or a node of it, can't be traced, decomposed or run again; the message says why."""


class LevelGraphs:
    """The graphs of one capture at each level.

    Raises LevelError if the graph or the call's inputs were not kept, or if AOTAutograd can't trace the graph.
    """

    def __init__(self, frame: str, kept: KeptFrame, captured: Artifact) -> None:
        if kept.captured is None or kept.eager is None or kept.book is None:
            raise LevelError(f"the graph of {frame} was not kept: a saved record has text, and no graph to trace")
        if kept.arguments is None:
            raise LevelError(f"the graph of {frame} was not called, so there are no inputs to trace it with")
        if any(map(_is_freed, kept.arguments)):
            why = f"weights of the graph of {frame} were freed after its call, as FSDP does"
            raise LevelError(f"{why}: explore the model before it is sharded")
        self.frame, self.captured = frame, captured
        self._module, self._eager, self._kept, self._arguments = kept.captured, kept.eager, kept, kept.arguments
        try:
            with autocast(kept.autocast):
                self.aot: AotGraphs = aot_graphs(self._module, self.own_arguments())
            self.trees: dict[tuple[str, Kind], LevelTree] = {
                (level, kind): LevelTree(level, graph, expand_node(graph, table(level)))
                for level in TABLES
                for kind, graph in self.aot.graphs.items()
            }
        except Exception as error:
            raise LevelError(f"the graph of {frame} can't be traced again: {first_line(error)}") from error

    def artifacts(self) -> tuple[Artifact, ...]:
        """One artifact for each half and level, ATen first; `attrs` have the level and the comparison with eager."""
        checks = self.numbers()
        aten = {kind: self._aten_artifact(kind, checks["ATen"]) for kind in self.aot.graphs}
        lower = [self._artifact(level, kind, aten[kind], checks[level]) for level in TABLES for kind in aten]
        return (*aten.values(), *lower)

    def half(self, artifact_id: str) -> HalfGraph:
        """The graph of a `decomposed` artifact, with its inputs in this run. Raises KeyError for any other id."""
        places = {self.id_of(level, kind): (level, kind) for kind in self.aot.graphs for level in ("ATen", *TABLES)}
        level, kind = places[artifact_id]
        return HalfGraph(self._module_at(level, kind), self._inputs_of(kind))

    def _module_at(self, level: str, kind: Kind) -> GraphModule:
        return self.aot.graphs[kind] if level == "ATen" else self.trees[level, kind].traced.module

    def _inputs_of(self, kind: Kind) -> Sequence[Any]:
        given: dict[Kind, Sequence[Any]] = {}

        def run(half: Kind, args: Sequence[Any]) -> Any:
            given[half] = args
            return self.aot.graphs[half](*args)

        self.aot.run = run
        with seed_and_restore():
            self.results(self.aot.call, self.own_arguments())
        return given[kind]

    def id_of(self, level: str, kind: Kind) -> str:
        return f"decomposed[{self.frame} {kind} {level}]"

    def _aten_artifact(self, kind: Kind, checks: Sequence[Numbers]) -> Artifact:
        whole = self.aot.joint or self.aot.graphs[kind]
        known = Provenance(whole, self.captured, fx.homes(self._module), same_names=False)
        found = {name: known(node) for node, name in fx.qualified_names(whole).items()}
        names = fx.qualified_names(self.aot.graphs[kind])
        artifact = self._level_artifact("ATen", kind, lambda node: found.get(names[node], ()), self.captured)
        return _with_verdict(artifact, "ATen", checks)

    def _artifact(self, level: str, kind: Kind, before: Artifact, checks: Sequence[Numbers]) -> Artifact:
        tree = self.trees[level, kind]
        module = tree.traced.module
        inside = Provenance(module, before, fx.homes(self.aot.graphs[kind]), same_names=False)

        def origins(node: Node) -> tuple[str, ...]:
            if node.graph is not module.graph:
                return inside(node)
            name = tree.origin(node) or (node.name if node.op == "placeholder" else "")
            return (f"{before.id}.{name}",) if name else ()

        artifact = self._level_artifact(level, kind, origins, before)
        notes = {f"{artifact.id}.{node.name}": _node_notes(tree, node) for node in ops_of(module)}
        entities = tuple(replace(each, attrs=each.attrs | notes.get(each.id, {})) for each in artifact.entities)
        return _with_verdict(replace(artifact, entities=entities), level, checks)

    def _level_artifact(
        self, level: str, kind: Kind, origins: Callable[[Node], tuple[str, ...]], parent: Artifact
    ) -> Artifact:
        assert self._kept.book is not None
        artifact = graph_artifact(
            self._module_at(level, kind), artifact_id=self.id_of(level, kind), stage="decomposed",
            title=f"{kind} at level {level}", graph=self.frame, book=self._kept.book, origins=origins, parent=parent,
        )  # fmt: skip
        return replace(artifact, half=kind)

    def numbers(self) -> dict[str, tuple[Numbers, ...]]:
        """Comparison of outputs, gradients and mutated inputs with the captured graph in eager mode, by level."""
        if any(isinstance(value, Tensor) and value.is_meta for value in self._arguments or ()):
            return dict.fromkeys(("ATen", *TABLES), (not_comparable("", "meta tensors have no values"),))
        eager, draws = self.run_captured()
        exact = self.run_exact(eager, draws)
        drawn: dict[Kind, Values] = {}
        found = {"ATen": self._compare(eager, exact, lambda kind, args: self.draw(kind, args, drawn))}
        for level in TABLES:
            run = partial(self.run_with_draws, level, drawn)
            found[level] = self._compare(eager, exact, run)
        return {level: _note_draws(checks, drawn if level != "ATen" else {}) for level, checks in found.items()}

    def _compare(
        self, eager: Results, exact: Results | None, run: Callable[[Kind, Sequence[Any]], Any]
    ) -> tuple[Numbers, ...]:
        self.aot.run = run
        try:
            with seed_and_restore():
                mine = self.results(self.aot.call, self.own_arguments())
        except Exception as error:  # noqa: BLE001 - graphs fail in many ways; the other levels continue
            return (not_comparable("", f"it can't be run: {type(error).__name__}: {first_line(error)}"),)
        changed = sorted(mine.changed | eager.changed)
        return numbers(
            mine.with_names(changed), eager.with_names(changed), exact.with_names(changed) if exact else None
        )

    def run_captured(self, call: Callable[..., Any] | None = None) -> tuple[Results, list[Drawn]]:
        """Run the captured graph in eager mode, or `call` instead; return the results and the random numbers drawn."""
        with seed_and_restore(), autocast(self._kept.autocast), Recording() as recording:
            return self.results(call or self._eager, self.own_arguments()), recording.drawn

    def run_exact(self, eager: Results, draws: Sequence[Drawn]) -> Results | None:
        """The captured graph's results in float64 with these draws; None if they can't serve as a reference."""
        try:
            with autocast(self._kept.autocast), Widened(draws) as widened:
                found = self.results(self._eager, [wide_leaf(value) for value in self.own_arguments()])
        except Exception:  # noqa: BLE001 - code for one dtype fails in many ways in another
            return None
        if not found.has_same_results(eager):
            return None
        if widened.uses_formulas:  # eager's gradients may be wrong
            eager = replace(eager, gradients=found.gradients)
        own, best = ([value for _, value in each.with_names(())] for each in (eager, found))
        return found if is_reference(own, best) else None

    def draw(self, kind: Kind, args: Sequence[Any], drawn: dict[Kind, Values]) -> Any:
        values: dict[str, tuple[Any, ...]] = {}
        drawn[kind] = values
        return HookedInterpreter(self.aot.graphs[kind], record_draws(values)).run(*args)

    def run_with_draws(self, level: str, drawn: dict[Kind, Values], kind: Kind, args: Sequence[Any]) -> Any:
        traced = self.trees[level, kind].traced
        given = give_values(place_draws(drawn.get(kind, {}), traced.values))
        with warnings.catch_warnings():  # vmap runs a mask's prims one by one, which is slow and right
            warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")
            return HookedInterpreter(traced.module, given).run(*args)

    def own_arguments(self) -> list[Any]:
        """Copies of the call's arguments; they require grad as in the call if a backward ran."""
        inputs = [node.meta.get("example_value") for node in self._module.graph.nodes if node.op == "placeholder"]
        trains = bool(self._kept.trained)
        return [
            _own(value, trains and bool(getattr(example, "requires_grad", False)))
            for value, example in zip(self._arguments, inputs, strict=True)
        ]

    def results(self, call: Callable[..., Any], arguments: Sequence[Any]) -> Results:
        versions = [version(value) for value in arguments]
        outputs = [leaf for leaf in tree_leaves(call(*arguments)) if isinstance(leaf, Tensor)]
        changed = {place for place, value in enumerate(arguments) if version(value) != versions[place]}
        return Results([output.detach() for output in outputs], self._gradients(outputs, arguments), arguments, changed)

    def _gradients(self, outputs: Sequence[Tensor], arguments: Sequence[Any]) -> dict[int, Tensor | None]:
        roots = [(place, output) for place, output in enumerate(outputs) if output.requires_grad]
        leaves = [(n, value) for n, value in enumerate(arguments) if isinstance(value, Tensor) and value.requires_grad]
        if not roots or not leaves:
            return {}
        tangents = [
            self._kept.gradients.get(place, torch.ones_like(output)).to(output.dtype) for place, output in roots
        ]
        found = torch.autograd.grad([output for _, output in roots], [value for _, value in leaves], tangents,
                                    allow_unused=True)  # fmt: skip
        return {place: value for (place, _), value in zip(leaves, found, strict=True)}


@dataclass(frozen=True, slots=True)
class HalfGraph:
    """The forward, backward or inference graph of a capture at one level, with its inputs."""

    module: GraphModule
    inputs: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Results:
    """Results of a call. `gradients` are by input index; `changed` has the indices of mutated inputs."""

    outputs: list[Tensor]
    gradients: dict[int, Tensor | None]
    inputs: Sequence[Any]
    changed: set[int]

    def with_names(self, changed: Sequence[int]) -> list[tuple[str, Any]]:
        """All results by name, including the inputs at the indices `changed`, with their values after the call."""
        return [
            *((f"output {place}", value) for place, value in enumerate(self.outputs)),
            *((f"gradient of input {place}", value) for place, value in self.gradients.items()),
            *((f"input {place}", self.inputs[place].detach()) for place in changed),
        ]

    def has_same_results(self, other: Results) -> bool:
        return len(self.outputs) == len(other.outputs) and self.gradients.keys() == other.gradients.keys()


def add_levels(builder: Builder, kept: dict[str, KeptFrame]) -> None:
    """Add the graphs of each capture at each level to a record under construction; failures are added as problems."""
    for captured in [item for item in builder.artifacts.values() if item.stage == "captured"]:
        builder.start("decomposed", captured.graph)
        try:
            found = LevelGraphs(captured.graph, kept[captured.graph], captured).artifacts()
        except (LevelError, KeyError) as error:
            builder.problem(Problem("decomposed", str(error), graph=captured.graph))
        else:
            for artifact in found:
                builder.add(artifact)


def _node_notes(tree: LevelTree, node: Node) -> dict[str, Any]:
    """Attributes of a node: the operators it was decomposed from, their decompositions, and the reason why it stays."""
    makers = tree.makers(node)
    why = tree.stay(node)
    attrs: dict[str, Any] = {} if why == A_PRIM else {"stays": why}
    if makers:
        attrs |= {"decomposed_from": " > ".join(str(use.op) for use in makers),
                  "decomposed_by": " > ".join(str(source_of(use.function)) for use in makers)}  # fmt: skip
    return attrs


def _with_verdict(artifact: Artifact, level: str, checks: Sequence[Numbers]) -> Artifact:
    attrs = {"level": level, "numbers_against_eager": [asdict(check) for check in checks]}
    return replace(artifact, title=f"{artifact.title}; against eager: {worst_verdict(checks)}", attrs=attrs)


def _note_draws(checks: tuple[Numbers, ...], drawn: dict[Kind, Values]) -> tuple[Numbers, ...]:
    """Add a note on the random calls whose results were replayed, and so not compared."""
    count = sum(len(values) for values in drawn.values())
    calls = "1 random call" if count == 1 else f"{count} random calls"
    note = f"the results of {calls} are those that ATen drew" if count else ""
    return tuple(replace(check, note=check.note or note) for check in checks)


def _is_freed(value: Any) -> bool:
    """Whether a tensor's memory was freed while others still hold the tensor."""
    plain = isinstance(value, Tensor) and type(value) in (Tensor, torch.nn.Parameter)
    return plain and value.layout == torch.strided and value.numel() > 0 and not value.untyped_storage().nbytes()


def _own(value: Any, wants_gradient: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return copy_tensor(value).requires_grad_(wants_gradient)


def version(value: Any) -> int:
    """The version counter of a tensor, which counts in-place writes; 0 for other values."""
    return value._version if isinstance(value, Tensor) else 0
