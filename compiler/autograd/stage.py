"""The eager autograd graph as a stage of an exploration, recorded while the captured graph runs.

Without a build, a user's call runs the captured graph itself. Its autograd graph is then eager mode's own, and each
autograd node was made by one node of the captured graph. With a build, the autograd graph is one node, that of the
compiled function, without gradient stops. To find the stops, the captured graph is run again on the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compiler.autograd.eager_graph import EagerGraph, GraphNode, GraphStop, eager_graph
from compiler.autograd.graph_artifact import Place, Settings, autograd_artifact
from compiler.autograd.saved import saved_tensors
from compiler.autograd.stops import Stops
from compiler.calls.graph_runs import HookedInterpreter
from compiler.capture.guard_words import plain
from compiler.record import Artifact, Entity, Problem
from compiler.record.builder import Builder
from compiler.torch_api import autograd_nodes, fx
from compiler.torch_api.pytrees import tree_leaves

PLACE = ("file", "line", "code", "module", "module_type")


@dataclass
class AutogradStage:
    """Watches the calls of one captured graph until one of them builds an autograd graph."""

    builder: Builder
    captured: Artifact
    module: GraphModule
    spans: autograd_nodes.Spans[str] = field(default_factory=autograd_nodes.Spans)
    stops: Stops = field(default_factory=Stops)
    done: bool = False

    def run(self, *args: Any) -> Any:
        """Run the captured graph and record the autograd nodes that each of its nodes makes."""
        if self.done or not torch.is_grad_enabled():
            return self.module.forward(*args)
        self.spans, self.stops = autograd_nodes.Spans(), Stops()
        return self._run_noted(args, self.spans)

    def _run_noted(self, args: Sequence[Any], spans: autograd_nodes.Spans[str]) -> Any:
        """Run the graph; record the sequence numbers of each node's autograd nodes, and the gradient stops."""

        def note(node: Node, run: Callable[[], Any]) -> Any:
            first = autograd_nodes.next_number()
            result = run()
            end = autograd_nodes.next_number()
            spans.add(first, end, node.name)
            if node.op in ("call_function", "call_method"):
                function: Any = (
                    getattr(torch.Tensor, node.target, None) if isinstance(node.target, str) else node.target
                )
                given = interpreter.fetch_args_kwargs_from_env(node)
                self.stops.note_call((first, end), function, given, result, lambda: (str(node.target), (), node.name))
            return result

        interpreter = HookedInterpreter(self.module, note)
        return interpreter.run(*args)

    def record_first_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` so that the first autograd graph that it builds is added to the record."""

        def call_and_look(*args: Any) -> Any:
            results = call(*args)
            if not self.done:
                self._look(args, results)
            return results

        return call_and_look

    def _look(self, args: Sequence[Any], results: Any) -> None:
        outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not outputs:
            return
        self.done = True
        try:
            self._add(args, outputs)
        except Exception as error:  # noqa: BLE001 - the user's call goes on without this stage
            reason = f"the autograd graph could not be read: {type(error).__name__}: {error}"
            self.builder.problem(Problem("autograd", reason, "", self.captured.graph))

    def _add(self, args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> None:
        inputs = [*self._named_inputs(args)]
        names = {id(value): name for name, _, value in inputs}
        boundary = {value.grad_fn: name for name, _, value in inputs if value.grad_fn is not None}
        graph = eager_graph(outputs, names=names, boundary=boundary, stops=self.stops)
        if not self.spans:  # compiled code ran in place of `run`
            graph = replace(graph, stops=tuple(self._stops_inside(args, names, graph)))
        settings = Settings(
            f"autograd[{self.captured.graph}]", "what autograd built as it ran", self.captured.graph, "the outputs"
        )
        saved = saved_tensors(graph, settings.artifact_id, names)
        named = {name: entity for name, entity, _ in inputs}
        makers = self._makers(graph, named) | self._cutters(graph, named)
        places = {
            name: Place({key: each.attrs[key] for key in PLACE if key in each.attrs}, (each.id,))
            for name, each in makers.items()
        }
        self.builder.autograd_saved.extend(saved)
        self.builder.add(autograd_artifact(graph, saved, settings, places))

    def _stops_inside(self, args: Sequence[Any], names: Mapping[int, str], graph: EagerGraph) -> Iterator[GraphStop]:
        """The captured graph's gradient stops, attached to the one node of the compiled function."""
        whole = next(node.name for node in graph.nodes if node.kind not in ("accumulate", "outer"))
        with restore_inputs(args) as given:
            results = self.run_again(*given)
        outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        for stop in eager_graph(outputs, names=names, stops=self.stops).stops if outputs else ():
            yield replace(stop, takers=(whole,), source="")

    def run_again(self, *args: Any) -> Any:
        """Run the captured graph again in eager mode to find stops."""
        self.stops = Stops()
        with torch.random.fork_rng():
            return self._run_noted(args, autograd_nodes.Spans())

    def _named_inputs(self, args: Sequence[Any]) -> Iterator[tuple[str, Entity, torch.Tensor]]:
        """Yield (name in the user's code, entity in the captured graph, tensor) for each input tensor."""
        for node, value in zip(self.module.graph.find_nodes(op="placeholder"), args, strict=True):
            if isinstance(value, torch.Tensor):
                source = fx.input_source(node)
                name = plain(source) if source else node.name
                yield name.removeprefix("self.").removeprefix("global "), self.captured.entity(node.name), value

    def _makers(self, graph: EagerGraph, inputs: dict[str, Entity]) -> dict[str, Entity]:
        """Map each autograd node to the captured graph's node that made it, or a leaf to its input."""
        found = {node.name: self._maker(node, inputs) for node in graph.nodes}
        return {name: entity for name, entity in found.items() if entity is not None}

    def _cutters(self, graph: EagerGraph, inputs: dict[str, Entity]) -> dict[str, Entity]:
        """Map each stop to the frozen input, or to the captured graph's node that detached the tensor."""
        return {
            found.name: inputs[found.name] if found.stop.kind == "frozen" else self.captured.entity(found.stop.module)
            for found in graph.stops
            if found.stop.kind != "frozen" or found.name in inputs
        }

    def _maker(self, node: GraphNode, inputs: dict[str, Entity]) -> Entity | None:
        if node.kind in ("accumulate", "outer"):
            return inputs.get(node.name)
        name = self.spans.find(node.number)
        return self.captured.entity(name) if name is not None else None


@contextmanager
def restore_inputs(args: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield arguments for another run of a graph; undo in-place changes at the end of the block.

    Non-leaf arguments are detached, so that the user's autograd graph does not change.
    """
    saved = [(each, each._version, each.detach().clone()) for each in args if isinstance(each, torch.Tensor)]
    try:
        yield [_cut(each) if isinstance(each, torch.Tensor) and not each.is_leaf else each for each in args]
    finally:
        for each, version, value in saved:
            if each._version != version:
                each.data.copy_(value)


def _cut(value: torch.Tensor) -> torch.Tensor:
    """A detached copy with the same `requires_grad`; it is not a leaf, so it can be changed in place."""
    return value.detach().requires_grad_(value.requires_grad).clone()
