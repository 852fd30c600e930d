"""Run the captured graphs of a call, and keep the values of every operation: eager's, or those of compiled code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from compiler.calls.call import autocast
from compiler.calls.explored import Explored
from compiler.calls.graph_runs import HookedInterpreter, copy_tensor
from compiler.calls.kept_graphs import KeptFrame
from compiler.capture.guard_words import input_name
from compiler.decompose.random_draws import seed_and_restore
from compiler.numerics.across.comparison import Comparison, compare
from compiler.numerics.across.snapshot import (
    MOST_NUMBERS,
    MOST_OPERATIONS,
    WHOLE,
    Header,
    Operation,
    Snapshot,
    SnapshotError,
    facts_of_tensor,
    kept_values,
)
from compiler.record import Artifact, Entity
from compiler.torch_api import fx
from compiler.torch_api.level_traces import first_line
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.settings import modes
from compiler.torch_api.widened import Recording, Widened, random_state, wide_leaf

Compile = Callable[[GraphModule], Callable[..., Any]]


def values_of_call(
    found: Explored, settings: Mapping[str, str], compile_graph: Compile | None = None, *, results: bool = True
) -> Snapshot:
    """The values of all operations of an explored call, with `compile_graph` those of the code that it returns.

    With `results`, also what each graph returns and its gradients, for which it is compiled once more. The graphs are
    run again on copies of their inputs. Raises SnapshotError if no graph can be run.
    """
    captured = [each for each in found.record.artifacts if each.stage == "captured"]
    count = sum(len(each.entities) for each in captured)
    if count > MOST_OPERATIONS:
        raise SnapshotError(f"the call has {count:,} operations; values of at most {MOST_OPERATIONS:,} are kept")
    collected = _Collected(max(64, min(WHOLE, MOST_NUMBERS // max(count, 1))))
    for artifact in captured:
        kept = found.kept.get(artifact.graph)
        if kept is None or kept.eager is None or kept.arguments is None:
            collected.notes.append(f"graph {artifact.graph} was not called, so it has no values")
            continue
        values = _GraphValues(artifact, kept, kept.eager, compile_graph, collected)
        values.add_operations()
        if results:
            values.add_results()
    if not collected.operations:
        raise SnapshotError(
            "; ".join(collected.notes) or "nothing was captured, so there are no operations to keep the values of"
        )
    header = Header(found.record.title, dict(settings), tuple(collected.operations), tuple(collected.notes))
    return Snapshot(header, collected.values, collected.exact)


def compile_with(arguments: Mapping[str, Any]) -> Compile:
    """A function that compiles a graph with these arguments of torch.compile; Inductor draws eager's random numbers."""
    given = dict(arguments)
    if given.get("backend", "inductor") == "inductor":
        mode = given.pop("mode", None)
        settings = modes().get(mode, {}) if mode else {}
        given["options"] = {**settings, "fallback_random": True, **given.get("options", {})}
    return lambda graph: torch.compile(graph, **given)


def compare_with_eager(found: Explored) -> Comparison:
    """Compare each operation of an explored call, compiled with the call's options, with eager mode.

    Raises SnapshotError, and what torch.compile raises.
    """
    asked = {**found.record.options.compile_arguments(), "dynamic": found.record.options.dynamic}
    compiled = compile_with({name: value for name, value in asked.items() if value})
    for results in (False, True):
        compared = compare(*(values_of_call(found, {}, how, results=results) for how in (None, compiled)))
        if compared.first is not None:
            break
    return compared


@dataclass
class _Collected:
    whole: int
    operations: list[Operation] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    exact: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, operation: Operation, value: Tensor) -> None:
        self.operations.append(operation)
        self.values[operation.id] = kept_values(value, self.whole)

    def add_exact(self, name: str, value: Any) -> None:
        """Keep a value in float64 beside the one of the same id, if it has the same form."""
        if isinstance(value, Tensor) and name in self.values and value.is_floating_point():
            kept = kept_values(value, self.whole)
            if kept.shape == self.values[name].shape:
                self.exact[name] = kept


@dataclass
class _GraphValues:
    artifact: Artifact
    kept: KeptFrame
    module: GraphModule
    compile_graph: Compile | None
    collected: _Collected

    def add_operations(self) -> None:
        """Run the graph, and add its operations in order."""
        graph = self.artifact.graph
        entities = {each.label: each for each in self.artifact.entities}
        values, drew = self._eager_values()
        if self.compile_graph is not None:
            values = self._compiled_values(self.compile_graph, values)
        for name, value in values.items():
            for place, leaf in enumerate(_tensors(value)):
                entity = entities.get(name)
                own = f"{graph}.{name}" + (f".{place}" if place else "")
                operation = _operation(own, name, entity, graph, name in drew, leaf, self.collected.whole)
                self.collected.add(operation, leaf)
        self._add_exact()

    def _arguments(self, convert: Callable[[Any], Any] = lambda value: value) -> list[Any]:
        inputs = [node.meta.get("example_value") for node in self.module.graph.nodes if node.op == "placeholder"]
        assert self.kept.arguments is not None
        trains = bool(self.kept.trained)
        return [
            convert(copy_tensor(value).requires_grad_(trains and bool(getattr(example, "requires_grad", False))))
            if isinstance(value, Tensor) else value
            for value, example in zip(self.kept.arguments, inputs, strict=True)
        ]  # fmt: skip

    def _eager_values(self) -> tuple[dict[str, Any], set[str]]:
        """Values by node name, and the names of the nodes that drew random numbers."""
        values: dict[str, Any] = {}
        drew: set[str] = set()

        def keep(node: Node, run: Callable[[], Any]) -> Any:
            before = random_state()
            value = run()
            if random_state() != before:
                drew.add(node.name)
            if node.op != "output":
                values[node.name] = _copies(value)
            return value

        with seed_and_restore(), autocast(self.kept.autocast), torch.no_grad():
            HookedInterpreter(self.module, keep).run(*self._arguments())
        return values, drew

    def _add_exact(self) -> None:
        """Add the values in float64, with the random numbers that eager draws; none if that is not possible."""
        exact: dict[str, Any] = {}

        def keep(node: Node, run: Callable[[], Any]) -> Any:
            value = run()
            exact[node.name] = _copies(value)
            return value

        try:
            with seed_and_restore(), autocast(self.kept.autocast), torch.no_grad():
                with Recording() as recording:
                    self.module(*self._arguments())
                with Widened(recording.drawn):
                    HookedInterpreter(self.module, keep).run(*self._arguments(wide_leaf))
        except Exception as error:  # noqa: BLE001 - code for one dtype fails in many ways in another
            self.collected.notes.append(f"graph {self.artifact.graph} can't be run in float64: {first_line(error)}")
            return
        for name, value in exact.items():
            for place, leaf in enumerate(_tensors(value)):
                self.collected.add_exact(f"{self.artifact.graph}.{name}" + (f".{place}" if place else ""), leaf)

    def _compiled_values(self, compile_graph: Compile, eager: Mapping[str, Any]) -> dict[str, Any]:
        """Values of a graph that returns all of its operations, compiled; inputs are as they are given."""
        names = [
            node.name for node in self.module.graph.nodes
            if node.op not in ("placeholder", "output", "get_attr") and list(_tensors(eager.get(node.name)))
        ]  # fmt: skip
        with seed_and_restore(), autocast(self.kept.autocast), torch.no_grad():
            found = compile_graph(_graph_that_returns(self.module, names))(*self._arguments())
        compiled = dict(zip(names, found, strict=True))
        return {name: compiled.get(name, value) for name, value in eager.items()}

    def add_results(self) -> None:
        """Add what the graph itself returns, without other outputs, and the gradients of its inputs."""
        run = self.module if self.compile_graph is None else self.compile_graph(self.module)
        graph = self.artifact.graph
        outputs, gradients = self._results(run, self._arguments())
        for number, value in enumerate(outputs):
            self._add_result(f"{graph} result {number}", "result", f"result {number}", value)
        sources = [each for each in self.artifact.entities if each.kind == "placeholder"]
        for place, value in gradients.items():
            name = input_name(str(sources[place].attrs.get("source") or "")) or sources[place].label
            self._add_result(f"{graph} gradient of {name}", "gradient", f"gradient of {name}", value)
        with suppress(Exception), seed_and_restore():  # without a float64 run there is only no reference
            exact, wide = self._results(self.module, self._arguments(wide_leaf))
            for number, value in enumerate(exact):
                self.collected.add_exact(f"{graph} result {number}", value)
            for place, value in wide.items():
                name = input_name(str(sources[place].attrs.get("source") or "")) or sources[place].label
                self.collected.add_exact(f"{graph} gradient of {name}", value)

    def _add_result(self, name: str, kind: str, words: str, value: Tensor) -> None:
        whole = value.numel() <= self.collected.whole
        operation = Operation(name, kind, words, inputs=(), is_whole=whole, **facts_of_tensor(value))
        self.collected.add(operation, value)

    def _results(self, run: Callable[..., Any], arguments: Sequence[Any]) -> tuple[list[Tensor], dict[int, Tensor]]:
        with seed_and_restore(), autocast(self.kept.autocast), torch.set_grad_enabled(bool(self.kept.trained)):
            outputs = [each for each in tree_leaves(run(*arguments)) if isinstance(each, Tensor)]
            roots = [(place, each) for place, each in enumerate(outputs) if each.requires_grad]
            wanted = [(n, each) for n, each in enumerate(arguments) if isinstance(each, Tensor) and each.requires_grad]
            if not roots or not wanted:
                return [each.detach() for each in outputs], {}
            tangents = [self.kept.gradients.get(n, torch.ones_like(each)).to(each.dtype) for n, each in roots]
            found = torch.autograd.grad([each for _, each in roots], [each for _, each in wanted], tangents,
                                        allow_unused=True)  # fmt: skip
        gradients = {place: each for (place, _), each in zip(wanted, found, strict=True) if each is not None}
        return [each.detach() for each in outputs], gradients


def _operation(
    own: str, name: str, entity: Entity | None, graph: str, draws: bool, value: Tensor, whole: int
) -> Operation:
    attrs: Mapping[str, Any] = entity.attrs if entity is not None else {}
    is_input = entity is not None and entity.kind == "placeholder"
    op = input_name(str(attrs.get("source") or "")) or name if is_input else str(attrs.get("target") or name)
    inputs = tuple(f"{graph}.{each.rpartition('.')[2]}" for each in (entity.inputs if entity is not None else ()))
    place = {} if is_input else {"file": str(attrs.get("file", "")), "line": int(attrs.get("line") or 0)}
    return Operation(
        own, "input" if is_input else "operation", op, str(attrs.get("module") or ""), **place,  # type: ignore[arg-type]
        code="" if is_input else str(attrs.get("code", "")), inputs=inputs, draws=draws,
        is_whole=value.numel() <= whole, graph=graph, node=name, **facts_of_tensor(value),
    )  # fmt: skip


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _copies(value: Any) -> Any:
    leaves = [copy_tensor(leaf) for leaf in _tensors(value)]
    return leaves[0] if isinstance(value, Tensor) else tuple(leaves)


def _graph_that_returns(module: GraphModule, names: Sequence[str]) -> GraphModule:
    """A copy of the graph that returns copies of the values of these nodes, as they are where they are computed."""
    graph, made, copies = Graph(), dict[Node, Node](), dict[str, Any]()
    wanted = set(names)
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        made[node] = graph.node_copy(node, made.__getitem__)
        if node.name in wanted:
            example = fx.value_of(node)
            copies[node.name] = _copy_of(graph, made[node], example)
    graph.output(tuple(copies[name] for name in names))
    return GraphModule(module, graph)


def _copy_of(graph: Graph, node: Node, example: Any) -> Any:
    if isinstance(example, tuple | list):
        parts = [graph.call_function(operator.getitem, (node, place)) for place in range(len(example))]
        return tuple(
            graph.call_function(torch.clone, (part,)) if isinstance(each, Tensor) else part
            for part, each in zip(parts, example, strict=True)
        )
    return graph.call_function(torch.clone, (node,))
