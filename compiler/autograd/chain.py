"""The chain rule on a real graph, step by step: the forward with its values, then the backward node by node.

torch's own backward pass computes every gradient, and hooks read it. For comparison each step has our formula for the
node, the formula's error on the same numbers, and the Jacobian, found by applying the node to unit vectors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch

from compiler.autograd.backward_run import BackwardRun, run_backward
from compiler.autograd.eager_graph import EagerGraph, GraphNode, base_name
from compiler.autograd.formulas import Local, Rule, Slot, rule_of
from compiler.autograd.formulas.rule import as_signed_int
from compiler.autograd.recording import Recording
from compiler.autograd.values import SHOWN, Value
from compiler.autograd.words import second_order, stop_words
from compiler.torch_api import autograd_nodes

_INPUT = re.compile(r"(?<![\w.])[A-Za-z_][A-Za-z0-9_]*(?:\[\d+\])?(?![A-Za-z0-9_(])")
"""A name in a formula that is no function."""
JACOBIAN = 64
"""Maximum number of elements of an input and of an output for which a Jacobian is computed."""
WHOLE_GRAPH = 400
"""Maximum number of nodes of a graph for which Jacobians are computed."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a forward operation: its name in the rule, and the node `source` that made it ("" for a constant)."""

    name: str
    source: str
    value: Value | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gradient that arrives at a node: computed by node `source` ("" at the start) for its input `name`."""

    source: str
    name: str
    value: Value | None


@dataclass(frozen=True, slots=True)
class Departure:
    """An outgoing gradient of a node: for input `name` of its forward operation, to the node or leaf `target`.

    `formula` is the rule. `derivative` is the factor of an elementwise operation. `jacobian` has a row for each element
    of the result and a column for each element of the input; None if it is unknown or large. `error` is the largest
    error of our formula on the same numbers, relative to the largest incoming or outgoing gradient; None if unknown.
    """

    name: str
    target: str
    formula: str
    value: Value | None
    derivative: Value | None = None
    jacobian: Value | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class NoGradient:
    """An input without gradient: its name in the graph, its kind ("detached", "no_grad", "frozen"), and the reason."""

    name: str
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One step of the chain rule; steps are numbered from 1.

    Forward: `operands`, `settings` (dim, alpha) and `value`. Backward: `arrivals`, which add up to `gradient`,
    `departures`, and `stops`, the inputs without gradient. Leaf: `arrivals` and `gradient`, which is added to `.grad`.

    `adds_exactly` says whether the arrivals, added in order, equal the gradient bitwise; None if they are too large to
    keep. `rule` is "" if the table has no formula. `variable` is the user's name of the result, "" if it has none.
    """

    index: int
    direction: Literal["forward", "backward", "leaf"]
    node: str
    op: str
    rule: str = ""
    forward: str = ""
    operands: tuple[Operand, ...] = ()
    value: Value | None = None
    arrivals: tuple[Arrival, ...] = ()
    gradient: Value | None = None
    departures: tuple[Departure, ...] = ()
    stops: tuple[NoGradient, ...] = ()
    adds_exactly: bool | None = None
    note: str = ""
    place: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    variable: str = ""


def chain_steps(
    graph: EagerGraph,
    outputs: Sequence[torch.Tensor],
    *,
    recording: Recording | None = None,
    places: Mapping[str, Mapping[str, Any]] | None = None,
    run: BackwardRun | None = None,
    values: Mapping[tuple[str, int], Value] | None = None,
    shown: int = SHOWN,
) -> tuple[ChainStep, ...]:
    """All steps of the chain rule for the graph of these outputs.

    `run` is a backward pass over this graph; by default a new one, which changes no `.grad`. `values` are the known
    results of forward operations, by default from `known_values`.
    Raises FreedGraphError, and any exception of the user's hooks and custom functions.
    """
    run = run or run_backward(graph, outputs, shown=shown)
    values = known_values(graph, outputs, recording, shown) if values is None else values
    maker = _Steps(graph, run, places or {}, values)
    compute = [node for node in graph.nodes if node.kind not in ("accumulate", "outer")]
    forward = sorted(compute, key=lambda node: node.number or 0)
    steps = [maker.forward(index, node) for index, node in enumerate(forward, 1)]
    for node in graph.nodes:
        if node.name in run.incoming:
            steps.append(maker.backward(len(steps) + 1, node))
        elif node.name in run.leaves:
            steps.append(maker.leaf(len(steps) + 1, node))
    return tuple(steps)


def with_variables(
    steps: Sequence[ChainStep], inputs: Mapping[str, Mapping[str, str]], variables: Mapping[str, str]
) -> tuple[ChainStep, ...]:
    """The steps with the user's names for inputs, in place of those of the rule: `x · w` for `self · other`.

    `inputs` has, for each node, the names of its inputs by the rule's names; `variables` the name of its result.
    """
    return tuple(_with_variables(step, inputs, variables.get(step.node, "")) for step in steps)


def _with_variables(step: ChainStep, inputs: Mapping[str, Mapping[str, str]], variable: str) -> ChainStep:
    names = inputs.get(step.node, {})
    mine = lambda text: _INPUT.sub(lambda found: names.get(found[0], found[0]), text)  # noqa: E731
    return replace(
        step,
        variable=variable,
        forward=mine(step.forward),
        operands=tuple(replace(each, name=names.get(each.name, each.name)) for each in step.operands),
        departures=tuple(
            replace(each, name=names.get(each.name, each.name), formula=mine(each.formula)) for each in step.departures
        ),
        arrivals=tuple(
            replace(each, name=inputs.get(each.source, {}).get(each.name, each.name)) for each in step.arrivals
        ),
    )


def known_values(
    graph: EagerGraph, outputs: Sequence[torch.Tensor], recording: Recording | None, shown: int = SHOWN
) -> dict[tuple[str, int], Value]:
    """Known values of leaves and forward operations, by (node, output): recorded results, else saved tensors."""
    found = {(node.name, 0): Value.of_tensor(node.leaf, shown) for node in graph.nodes if node.leaf is not None}
    for node in graph.nodes if recording else ():
        for slot in range(len(node.results)):
            value = recording.value(node.number, slot) if recording else None
            if value is not None:
                found[node.name, slot] = value
    names = {node.function: node.name for node in graph.nodes}
    saved = [slot.tensor for node in graph.nodes for slot in node.saved if slot.tensor is not None and not slot.problem]
    for tensor in [*outputs, *saved]:
        key = (names.get(tensor.grad_fn, ""), tensor.output_nr)
        if key[0] and key not in found:
            found[key] = Value.of_tensor(tensor, shown)
    leaves = {node.name for node in graph.nodes if node.leaf is not None}
    for node in graph.nodes:
        if (
            node.op == "TBackward0" and node.gives[0] and node.gives[0][0] in leaves
        ):  # inside of `linear`: no call is seen
            found.setdefault((node.name, 0), found[node.gives[0][0], 0].transpose())
    return found


def _are_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether all elements are equal, or NaN in both."""
    return first.shape == second.shape and bool(((first == second) | (first.isnan() & second.isnan())).all())


@dataclass(frozen=True)
class _Steps:
    """Builds the steps of one run."""

    graph: EagerGraph
    run: BackwardRun
    places: Mapping[str, Mapping[str, Any]]
    values: Mapping[tuple[str, int], Value]

    @cached_property
    def _rules(self) -> dict[str, Rule | None]:
        return {node.name: rule_of(node.op) for node in self.graph.nodes}

    def forward(self, index: int, node: GraphNode) -> ChainStep:
        slot = next((slot for slot, flows in enumerate(node.takes) if flows), 0)
        value = self.values.get((node.name, slot))
        unknown = "" if value else "the value is inside of a bigger call, or was not saved"
        note = "; ".join(filter(None, [second_order(node), unknown]))
        return ChainStep(
            index, "forward", node.name, node.op, *_rule_words(node), self._operands(node, rule_of(node.op)), value,
            note=note, place=self.places.get(node.name, {}), settings=self._settings(node),
        )  # fmt: skip

    def _operands(self, node: GraphNode, rule: Rule | None) -> tuple[Operand, ...]:
        """The inputs that require grad and the saved inputs, in the rule's order."""
        found = {}
        for position, target in enumerate(node.gives):
            name = input_name(rule, position)
            if target is not None:
                found[name] = Operand(name, target[0], self.values.get(target))
        others = {slot.name: slot.tensor for slot in node.saved if not slot.problem and not slot.name.startswith("res")}
        for name, tensor in others.items():
            if tensor is not None and name not in found and "[" not in name:
                found[name] = Operand(name, "", Value.of_tensor(tensor, self.run.shown))
        order = {slot.name: place for place, slot in enumerate(rule.slots)} if rule else {}
        return tuple(sorted(found.values(), key=lambda operand: order.get(operand.name, len(order))))

    def _settings(self, node: GraphNode) -> dict[str, Any]:
        """Non-tensor arguments that the node saved, such as dim and alpha, but no sizes."""
        if node.kind != "call" or any(slot.problem for slot in node.saved):
            return {}
        kept = autograd_nodes.saved_values(node.function)
        plain = {name: as_signed_int(each) for name, each in kept.items() if "_sym_" not in name}
        return {name: each for name, each in plain.items() if isinstance(each, int | float | str | bool)}

    def _arrivals(self, node: GraphNode) -> tuple[Arrival, ...]:
        return tuple(self._arrival(flow.source, flow.slot) for flows in node.takes for flow in flows)

    def _arrival(self, source: str, slot: int) -> Arrival:
        if not source:
            return Arrival("", "", None)
        outgoing = self.run.outgoing.get(source, ())
        name = input_name(self._rules[source], slot)
        return Arrival(source, name, outgoing[slot] if slot < len(outgoing) else None)

    def backward(self, index: int, node: GraphNode) -> ChainStep:
        rule = rule_of(node.op)
        gradient = next((value for value in self.run.incoming[node.name] if value is not None), None)
        exactly, hooked = self._adds_exactly(node, self.run.tensors_in[node.name])
        note = "; ".join(filter(None, [second_order(node), hooked]))
        stops = (each for each in self.graph.stops if node.name in each.takers)
        return ChainStep(
            index, "backward", node.name, node.op, *_rule_words(node), (), None, self._arrivals(node), gradient,
            self._departures(node, rule),
            tuple(NoGradient(each.name, each.stop.kind, stop_words(each)) for each in stops),
            exactly, note, self.places.get(node.name, {}),
        )  # fmt: skip

    def leaf(self, index: int, node: GraphNode) -> ChainStep:
        gradient = self.run.leaves[node.name]
        exactly, note = self._adds_exactly(node, (self.run.leaf_tensors[node.name],))
        return ChainStep(
            index, "leaf", node.name, node.op, "sum of all paths", "", (), self.values.get((node.name, 0)),
            self._arrivals(node), gradient, (), (), exactly, note, self.places.get(node.name, {}),
        )  # fmt: skip

    def _adds_exactly(self, node: GraphNode, sums: Sequence[torch.Tensor | None]) -> tuple[bool | None, str]:
        """Whether the arrivals, added in order, equal the gradients `sums` (None if unknown), and a note if not."""
        checked = []
        for flows, total in zip(node.takes, sums, strict=False):
            terms = [self._gradient_from(flow.source, flow.slot) for flow in flows if flow.source]
            there = [term for term in terms if term is not None]
            if total is not None and there and len(there) == len(flows):
                checked.append(_are_equal(sum(there[1:], there[0]), total))
        exactly = all(checked) if checked else None
        return exactly, "" if exactly is not False else "a hook of yours changed the gradient before it came here"

    def _gradient_from(self, source: str, slot: int) -> torch.Tensor | None:
        tensors = self.run.tensors_out.get(source, ())
        return tensors[slot] if slot < len(tensors) else None

    def _departures(self, node: GraphNode, rule: Rule | None) -> tuple[Departure, ...]:
        outgoing, local = self.run.outgoing.get(node.name, ()), self._local(node)
        with torch.no_grad():
            ours = rule.vjp(local) if rule and local else [None] * len(node.gives)
        jacobians = self._jacobians(node, rule) if local else {}
        incoming = next((each for each in self.run.tensors_in[node.name] if each is not None), None)
        found = []
        for position, target in enumerate(node.gives):
            if target is None:
                continue
            slot = rule.slot(position) if rule else None
            found.append(Departure(
                input_name(rule, position),
                target[0],
                slot.formula if slot else "",
                outgoing[position] if position < len(outgoing) else None,
                self._derivative(node, slot, local),
                jacobians.get(position),
                _error(ours[position], self._gradient_from(node.name, position), incoming),
            ))  # fmt: skip
        return tuple(found)

    def _derivative(self, node: GraphNode, slot: Slot | None, local: Local | None) -> Value | None:
        """The derivative of an elementwise operation by one input, in the shape of the result; None if unknown."""
        if slot is None or slot.derivative is None or local is None or not node.results:
            return None
        result = node.results[0]
        with torch.no_grad():
            ones = torch.ones(result.shape, dtype=result.dtype, device=result.device)
            return Value.of_tensor(ones * slot.derivative(local), self.run.shown)

    def _local(self, node: GraphNode) -> Local | None:
        """The values for a rule to compute with; None if any is large, missing or complex."""
        grads = self.run.tensors_in[node.name]
        known = [
            value is None or tensor is not None
            for value, tensor in zip(self.run.incoming[node.name], grads, strict=True)
        ]
        if not all(known) or any(slot.problem or slot.packed for slot in node.saved) or node.kind != "call":
            return None
        inputs = autograd_nodes.inputs_of(node.function)
        is_complex = [each.is_complex() for each in grads if each is not None] + [
            each[1].is_complex for each in inputs if each
        ]
        if any(is_complex):  # the rules are for real numbers only
            return None
        return Local(autograd_nodes.saved_values(node.function), grads, inputs)

    def _jacobians(self, node: GraphNode, rule: Rule | None) -> dict[int, Value]:
        """Jacobians by position of the input; each row is the node's result for one unit vector. {} if too large."""
        grads = self.run.tensors_in[node.name]
        there = [slot for slot, grad in enumerate(grads) if grad is not None]
        if len(there) != 1 or len(self.graph.nodes) > WHOLE_GRAPH:
            return {}
        grad = grads[there[0]]
        assert grad is not None
        if not 0 < grad.numel() <= JACOBIAN:
            return {}
        units = torch.eye(grad.numel(), dtype=grad.dtype, device=grad.device).reshape(-1, *grad.shape)
        given = [[unit if slot == there[0] else None for slot in range(len(grads))] for unit in units]
        slots = [rule.slot(position) if rule else None for position in range(len(node.gives))]
        factors = [position for position, slot in enumerate(slots) if slot is not None and slot.derivative is not None]
        with torch.no_grad():
            rows = [autograd_nodes.apply(node.function, each, factors) for each in given]
        return {
            position: value for position in range(len(node.gives)) if (value := _stack_rows(rows, position)) is not None
        }


def _rule_words(node: GraphNode) -> tuple[str, str]:
    """The name of a node's rule ("" for none) and its forward operation."""
    rule = rule_of(node.op)
    return (rule.name, rule.forward) if rule else ("", base_name(node.op))


def input_name(rule: Rule | None, position: int) -> str:
    """The rule's name for an input of the forward operation; `input 0` without a rule."""
    slot = rule.slot(position) if rule else None
    if slot is None:
        return f"input {position}"
    return f"{slot.name}[{position}]" if rule is not None and rule.many else slot.name


def _error(ours: torch.Tensor | None, real: torch.Tensor | None, incoming: torch.Tensor | None) -> float | None:
    """Largest difference of `ours` and `real`, relative to the largest of `real` and `incoming`; None if unknown."""
    if ours is None or real is None or not real.numel():
        return None
    largest = max(float(each.double().abs().max()) for each in (real, incoming) if each is not None and each.numel())
    return float((ours.double() - real.double()).abs().max()) / (largest or 1.0)


def _stack_rows(rows: Sequence[tuple[Any, ...]], position: int) -> Value | None:
    each = [row[position] for row in rows]
    if any(row is None or row.layout != torch.strided or not 0 < row.numel() <= JACOBIAN for row in each):
        return None
    return Value.of_tensor(torch.stack([row.reshape(-1) for row in each]), JACOBIAN * JACOBIAN)
