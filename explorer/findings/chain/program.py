"""The graph of a call as data for the living canvas: its operations, the values of one run, what to run again with."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import torch

from compiler.autograd.chain import ChainStep
from compiler.autograd.eager_graph import EagerGraph, GraphNode
from compiler.autograd.tape import Evaluation, Ref, Source, Tape, TapeCall, evaluate
from compiler.autograd.values import Value
from explorer.findings.chain.values import value_data

NODES = 600
"""Maximum number of nodes on a canvas."""
ELEMENTS = 400_000
"""Maximum number of elements of all sources that a saved page carries to evaluate the graph itself."""
ROWS, COLUMNS = 16, 24
"""Maximum size of a heat map; each cell has the number of the largest size in its block."""

SMALL, ON_EDGE = 16, 4
"""Maximum number of elements shown as numbers on a node, and on an edge."""
SENT = 4096
"""Maximum number of elements of a tensor that is sent while the reader drags: the canvas measures it itself."""

Data = dict[str, Any]


def packed_tensor(tensor: torch.Tensor) -> Data | bytes:
    """A tensor's numbers in its own order, as float32 or float64; as `tensor_data` if they are many or complex."""
    if tensor.numel() > SENT or tensor.is_complex() or tensor.layout != torch.strided:
        return tensor_data(tensor)
    plain = tensor.detach() if tensor.dtype in (torch.float32, torch.float64) else _widen(tensor.detach())
    return plain.cpu().numpy().tobytes()


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor.double()


def flow_data(tensor: torch.Tensor) -> Data:
    """A gradient on an edge, or a local derivative: its norm, and its numbers if they are few."""
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    numbers = dense.flatten().tolist()[:ON_EDGE] if dense.numel() <= ON_EDGE else None
    is_wide = dense.is_floating_point() or dense.is_complex()
    norm = float(torch.linalg.vector_norm(dense if is_wide else dense.double()))
    return {"norm": _json_number(norm), "numbers": None if numbers is None else [*map(_json_number, numbers)]}


def _json_number(number: Any) -> Any:
    """A number, as a word if JSON has none for it."""
    return number if isinstance(number, int) or (isinstance(number, float) and math.isfinite(number)) else str(number)


def tensor_data(tensor: torch.Tensor) -> Data:
    """A tensor as the canvas shows it: its numbers if it is small, else a heat map; norm, range and counts."""
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    found = value_data(Value.of_tensor(dense, SMALL))
    assert found is not None
    if found["numbers"] is None and not dense.is_complex():
        found["heat"] = _heat(dense)
    if found["zeros"] and dense.dim() > 1:
        found["dead"] = int((dense == 0).flatten(0, -2).all(0).sum())
    return found


def _heat(tensor: torch.Tensor) -> Data:
    """Blocks of a tensor, seen as a matrix, as shares of the largest number: a byte each, -128 for NaN or infinite."""
    matrix = tensor.detach().float().reshape(1, -1, tensor.shape[-1] if tensor.dim() else 1)
    rows, columns = min(matrix.shape[1], ROWS), min(matrix.shape[2], COLUMNS)
    if (rows, columns) != matrix.shape[1:]:
        pool = torch.nn.functional.adaptive_max_pool2d
        high, low = pool(matrix, (rows, columns)), -pool(-matrix, (rows, columns))
        matrix = torch.where(high.abs() >= low.abs(), high, low)
    most = float(matrix.nan_to_num(0, 0, 0).abs().max()) or 1.0
    shares = (matrix * (127 / most)).round()
    marked = torch.where(matrix.isfinite(), shares, -128.0).to(torch.int8)
    return {"rows": rows, "columns": columns, "cells": base64.b64encode(marked.cpu().numpy().tobytes()).decode()}


@dataclass(frozen=True)
class Program:
    """A tape with the names of its nodes: sources first, then calls. `elementwise` are calls with local derivatives.

    `problem` says why it can't be evaluated again; then `data` has what was recorded.
    """

    tape: Tape
    data: Data
    elementwise: frozenset[int] = frozenset()
    seeds: Sequence[torch.Tensor] | None = field(default=None, repr=False)

    def evaluate(self, request: Mapping[str, Any]) -> tuple[Data, bytes]:
        """Evaluate with changed sources and gradients of the outputs; return data, and the numbers that it refers to.

        `request["sources"]` and `request["seeds"]` map an index to `{"scale": factor, "cells": {index: number}}`.
        A tensor in the answer is `[first byte, number of bytes]`, or, where it is large, as `tensor_data` has it.
        """
        sources = {
            int(at): _apply_change(self.tape.sources[int(at)].value, to) for at, to in request["sources"].items()
        }
        seeds = self._seeds(request.get("seeds", {}))
        answer = self.evaluation_data(evaluate(self.tape, packed_tensor, flow_data, sources, seeds, self.elementwise))
        numbers = bytearray()
        for tensors in (answer["values"], answer["gradients"]):
            for key, each in tensors.items():
                if isinstance(each, bytes):
                    tensors[key] = [len(numbers), len(each)]
                    numbers += each
        return answer, bytes(numbers)

    def _seeds(self, changes: Mapping[str, Any]) -> Sequence[torch.Tensor] | None:
        if not changes or self.seeds is None:
            return self.seeds
        return [_apply_change(seed, changes.get(str(at), {})) for at, seed in enumerate(self.seeds)]

    def evaluation_data(self, found: Evaluation[Any]) -> Data:
        """An evaluation as data: tensors by "node output" and "node input"."""
        first = len(self.tape.sources)
        name = lambda ref: f"{ref.output} 0" if ref.call < 0 else f"{first + ref.call} {ref.output}"  # noqa: E731
        return {
            "values": {name(ref): data for ref, data in found.values.items()},
            "gradients": {name(ref): data for ref, data in found.gradients.items()},
            "flows": self._by_node(found.flows),
            "derivatives": self._by_node(found.derivatives),
        }

    def _by_node(self, by_input: Mapping[tuple[int, int], Data]) -> Data:
        first = len(self.tape.sources)
        return {
            f"{first + call} {place}": data
            for (call, given), data in by_input.items()
            for place in self.places[call][given : given + 1]
        }

    @cached_property
    def places(self) -> Sequence[Sequence[int]]:
        """For each call, the indices of the tensors that its node counts: all that it reads but integers."""
        return [
            [place for place, ref in enumerate(call.inputs) if _is_float(self.tape, ref)] for call in self.tape.calls
        ]


def _is_float(tape: Tape, ref: Ref) -> bool:
    if ref.call < 0:
        return tape.sources[ref.output].value.is_floating_point() or tape.sources[ref.output].value.is_complex()
    return tape.calls[ref.call].name.partition(".")[0] not in ("gt", "ge", "lt", "le", "eq", "ne", "isnan", "argmax")


def _apply_change(tensor: torch.Tensor, change: Mapping[str, Any]) -> torch.Tensor:
    changed = tensor.detach().clone() * change.get("scale", 1.0)
    flat = changed.reshape(-1)
    for at, number in change.get("cells", {}).items():
        flat[int(at)] = float(number)
    return flat.reshape(tensor.shape).to(tensor.dtype)


def program_of(
    tape: Tape,
    graph: EagerGraph,
    names: Mapping[int, str],
    steps: Sequence[ChainStep],
    seeds: Sequence[torch.Tensor],
) -> Program | None:
    """The program of a recorded call; None if it has no tape, is too large, or gives other numbers when run again."""
    if tape.problem or len(tape.sources) + len(tape.calls) > NODES:
        return None
    by_number: dict[int | None, GraphNode] = {node.number: node for node in graph.nodes if node.number is not None}
    by_leaf = {id(node.leaf): node for node in graph.nodes if node.leaf is not None}
    labels = _Labels()
    nodes = [_source_node(source, by_leaf.get(source.identity), names, labels) for source in tape.sources]
    first = len(nodes)
    nodes += [_call_node(call, by_number.get(call.number), first, labels) for call in tape.calls]
    outputs = [[ref.output, 0] if ref.call < 0 else [first + ref.call, ref.output] for ref in tape.outputs]
    numbers = {node.name: node.number for node in graph.nodes}
    factors = {numbers.get(step.node) for step in steps for each in step.departures if each.derivative is not None}
    elementwise = frozenset(
        at for at, call in enumerate(tape.calls) if call.number is not None and call.number in factors
    )
    data = {"nodes": nodes, "outputs": outputs, **_sources_data(tape, seeds)}
    program = Program(tape, data, elementwise, seeds)
    try:
        again = evaluate(tape, Value.of_tensor, gradients=seeds)
    except (RuntimeError, ValueError, TypeError):
        return None
    if not _agrees(nodes, again, steps, first):
        return None
    shown = program.evaluation_data(evaluate(tape, tensor_data, flow_data, gradients=seeds, elementwise=elementwise))
    return Program(tape, data | shown, elementwise, seeds)


def _agrees(nodes: Sequence[Data], again: Evaluation[Value], steps: Sequence[ChainStep], first: int) -> bool:
    """Whether the tape, run again, gives the values and gradients of the recorded run, to the last bit."""
    index = {node["node"]: at for at, node in enumerate(nodes) if node["node"]}
    for step in steps:
        if step.node not in index:
            return False
        at = index[step.node]
        ref = Ref(-1, at) if at < first else Ref(at - first, 0)
        pairs = [(again.values, step.value if step.direction == "forward" else None), (again.gradients, step.gradient)]
        # As text, because NaN is not equal to itself.
        if any(value is not None and ref in found and repr(found[ref]) != repr(value) for found, value in pairs):
            return False
    return True


class _Labels:
    """Gives each node a name of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, wanted: str) -> str:
        numbered = (f"{wanted}_{number}" if number else wanted for number in count())
        label = next(each for each in numbered if each not in self._taken)
        self._taken.add(label)
        return label


def _source_node(source: Source, node: GraphNode | None, names: Mapping[int, str], labels: _Labels) -> Data:
    name = node.name if node else names.get(source.identity) or ("constant" if not source.value.dim() else "tensor")
    before = node.leaf.grad if node is not None and node.leaf is not None else None
    return {
        "id": labels(name), "node": node.name if node else "", "title": name, "variable": name,
        "grad": source.requires_grad, "role": "source",
        "before": tensor_data(before) if before is not None else None,
    }  # fmt: skip


def _call_node(call: TapeCall, node: GraphNode | None, first: int, labels: _Labels) -> Data:
    base = call.name.partition(".")[0].strip("_")
    packed = any("checkpoint" in slot.packed for slot in node.saved) if node else False
    return {
        "id": labels(node.name if node else base), "node": node.name if node else "", "variable": call.variable,
        "op": call.name, "args": _plain_value(call.args, first), "kwargs": _plain_value(dict(call.kwargs), first),
        "grad": node is not None, "enabled": call.grad, "inplace": call.inplace, "role": "call",
        "checkpoint": packed, "derivative_of": node.derivative_of if node else "",
        "problem": _problem_of(node) if node else "",
    }  # fmt: skip


def _problem_of(node: GraphNode) -> str:
    """Why backward can't read what a node saved; "" for what a hook packed, as it unpacks that."""
    return next((slot.problem for slot in node.saved if slot.problem and not slot.packed), "")


def _plain_value(value: Any, first: int) -> Any:
    """Arguments as JSON: a tensor is `{"$": [node, output]}`; what is no number is a word."""
    if isinstance(value, Ref):
        return {"$": [value.output, 0] if value.call < 0 else [first + value.call, value.output]}
    if isinstance(value, list | tuple):
        return [_plain_value(each, first) for each in value]
    if isinstance(value, dict):
        return {name: _plain_value(each, first) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _sources_data(tape: Tape, seeds: Sequence[torch.Tensor]) -> Data:
    """The numbers of sources and seeds, for a page that evaluates them itself; {} if they are many."""
    tensors = [*(source.value for source in tape.sources), *seeds]
    if sum(each.numel() for each in tensors) > ELEMENTS or any(each.is_complex() for each in tensors):
        return {}
    return {
        "sources": [_numbers(source.value) for source in tape.sources],
        "seeds": [_numbers(seed) for seed in seeds],
    }


def _numbers(tensor: torch.Tensor) -> Data:
    wide = tensor.detach().cpu()
    kept = wide.to(torch.float32) if wide.dtype in (torch.float32, torch.float16, torch.bfloat16) else wide.double()
    text = base64.b64encode(bytes(kept.contiguous().numpy().reshape(-1).view("uint8"))).decode() if kept.numel() else ""
    kind = {"bool": True} if tensor.dtype == torch.bool else {}
    return {"shape": list(tensor.shape), "wide": kept.dtype == torch.float64, "data": text, **kind}


def variables_of(
    tape: Tape, graph: EagerGraph, names: Mapping[int, str]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The user's names by graph node: of its inputs, by the operator's names for them, and of its result."""
    by_number: dict[int | None, str] = {node.number: node.name for node in graph.nodes if node.number is not None}
    by_leaf = {id(node.leaf): node.name for node in graph.nodes if node.leaf is not None}

    def name_of(ref: Ref) -> str:
        if ref.call < 0:
            identity = tape.sources[ref.output].identity
            return by_leaf.get(identity) or names.get(identity, "")
        call = tape.calls[ref.call]
        return call.variable or by_number.get(call.number, "")

    inputs = {}
    for call in tape.calls:
        if (node := by_number.get(call.number)) is not None:
            inputs[node] = {
                slot: name for slot, ref in call.named_inputs() if (name := name_of(ref)) and not name.startswith("_")
            }
    return inputs, {by_number[call.number]: call.variable for call in tape.calls if call.number in by_number}


def recorded_program(graph: EagerGraph, steps: Sequence[ChainStep], reason: str) -> Data:
    """The graph with what was recorded of it, for a call that can't be evaluated again, as `problem` says."""
    forward = [node for node in reversed(graph.nodes) if node.kind != "outer"][: NODES + 1]
    if len(forward) > NODES:
        return {"nodes": [], "outputs": [], "problem": f"a canvas shows at most {NODES} nodes; this graph has more"}
    forward.sort(key=lambda node: -1 if node.number is None else node.number)
    index = {node.name: at for at, node in enumerate(forward)}
    nodes = [_graph_node(node, index) for node in forward]
    found: Data = {"values": {}, "gradients": {}, "flows": {}, "derivatives": {}}
    for node in forward:
        if node.leaf is not None:
            found["values"][f"{index[node.name]} 0"] = tensor_data(node.leaf)
    for step in steps:
        at = index[step.node]
        if step.value is not None:
            found["values"][f"{at} 0"] = value_data(step.value)
        if step.gradient is not None:
            found["gradients"][f"{at} 0"] = value_data(step.gradient)
        places = [place for place, target in enumerate(graph.node(step.node).gives) if target is not None]
        for place, (_, departure) in enumerate(zip(places, step.departures, strict=False)):
            for name, value in (("flows", departure.value), ("derivatives", departure.derivative)):
                if value is not None:
                    found[name][f"{at} {place}"] = value_data(value)
    outputs = [[index[name], slot] for name, slot in graph.roots if name in index]
    return {"nodes": nodes, "outputs": outputs, "problem": reason, **found}


def _graph_node(node: GraphNode, index: Mapping[str, int]) -> Data:
    inputs = [
        {"$": [index[target[0]], target[1]]} for target in node.gives if target is not None and target[0] in index
    ]
    is_leaf = node.leaf is not None
    return {
        "id": node.name, "node": node.name, "title": node.name, "variable": node.name if is_leaf else "",
        "op": "" if is_leaf else node.name, "args": inputs, "kwargs": {}, "grad": True, "enabled": True, "inplace": "",
        "role": "source" if is_leaf else "call", "derivative_of": node.derivative_of,
        "checkpoint": any("checkpoint" in slot.packed for slot in node.saved), "before": None,
        "problem": _problem_of(node),
    }  # fmt: skip
