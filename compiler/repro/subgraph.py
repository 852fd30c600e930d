"""Cut a part out of a graph: some of its nodes, with inputs in place of the values of all others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from compiler.calls.graph_runs import HookedInterpreter, copy_tensor
from compiler.decompose.random_draws import seed_and_restore
from compiler.repro.values import facts_of
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import is_random


class CannotCutError(ValueError):
    """Raised if a graph can't be written as a program; the message gives the reason."""


@dataclass(frozen=True)
class Part:
    """A part of a graph as a graph of its own, and the names of the values that are its inputs."""

    module: GraphModule
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class RecordedGraph:
    """A graph with what is known of the values in it. `values` are copies of the tensors, if they are to be kept."""

    module: GraphModule
    facts: Mapping[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_call(cls, module: GraphModule, args: Sequence[Any], *, keep: bool = False) -> RecordedGraph:
        """Run the graph in eager mode on copies of its arguments. Raises what the graph raises."""
        facts: dict[str, Any] = {}
        values: dict[str, Any] = {}

        def note(node: Node, run: Callable[[], Any]) -> Any:
            value = run()
            facts[node.name] = facts_of(value)
            if keep and isinstance(value, Tensor):
                values[node.name] = copy_tensor(value)
            return value

        trains = [_requires_grad(node) for node in module.graph.find_nodes(op="placeholder")]
        given = [_copy_of(arg, grad) for arg, grad in zip(args, trains, strict=True)]
        with seed_and_restore(), torch.enable_grad():
            HookedInterpreter(module, note).run(*given)
        return cls(module, facts, values)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes that compute something, in order."""
        computing = ("call_function", "call_method", "call_module")
        return tuple(node.name for node in self.module.graph.nodes if node.op in computing)

    def size(self, names: Collection[str]) -> int:
        """How many of these nodes compute something; taking one result of several does not count."""
        chosen = set(names)
        return sum(node.name in chosen and node.target is not operator.getitem for node in self.module.graph.nodes)

    @cached_property
    def draws(self) -> bool:
        """Whether the graph draws random numbers."""
        functions = ("dropout", "rand", "bernoulli", "multinomial", "normal")
        nodes = self.module.graph.nodes
        return any(is_random(n.target) or any(word in fx.target_name(n) for word in functions) for n in nodes)

    def cut(self, names: Collection[str]) -> Part:
        """The part with these nodes. Its outputs are all values that are not used within it. Raises CannotCutError."""
        wanted = self._with_sources(set(names))
        if not wanted:
            raise CannotCutError("nothing is left of the graph")
        nodes = [node for node in self.module.graph.nodes if node.name in wanted]
        graph, made = Graph(), dict[Node, Node]()
        inputs = []
        for source in dict.fromkeys(source for node in nodes for source in node.all_input_nodes):
            if source.name not in wanted and not self._is_body(source):
                made[source] = graph.placeholder(source.name)
                inputs.append(source.name)
        for node in nodes:
            made |= {body: graph.node_copy(body) for body in node.all_input_nodes if body not in made}
            made[node] = graph.node_copy(node, made.__getitem__)
        used = {source for node in graph.nodes for source in node.all_input_nodes}
        graph.output(tuple(made[node] for node in nodes if made[node] not in used))
        return Part(GraphModule(self.module, graph), tuple(inputs))

    def _with_sources(self, names: set[str]) -> set[str]:
        """The nodes, without those that take one result of several from a node outside of them."""
        wanted: set[str] = set()
        for node in self.module.graph.nodes:
            if node.name in names and all(self._can_be_input(source, wanted) for source in node.all_input_nodes):
                wanted.add(node.name)
        return wanted

    def _can_be_input(self, source: Node, wanted: Collection[str]) -> bool:
        return source.name in wanted or self._is_body(source) or self.facts.get(source.name) is not None

    def _is_body(self, node: Node) -> bool:
        return node.op == "get_attr" and fx.body_at(self.module, node) is not None


def _requires_grad(node: Node) -> bool:
    value = node.meta.get("example_value", node.meta.get("grapharg"))
    return bool(getattr(value, "requires_grad", False))


def _copy_of(value: Any, trains: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    copied = copy_tensor(value)
    return copied.requires_grad_() if trains and copied.is_floating_point() else copied
