"""The eager autograd graph as an artifact: the backward as a program, with one line and one entity for each node.

    mul = MulBackward0(sum[0], other=f32[3], self=f32[3])    # -> f32[3], f32[3]
    x.grad += mul[0]

The `inputs` of an entity are the nodes that its gradients come from: data flows as in the backward pass.
"""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

import torch

from compiler.autograd.eager_graph import EagerGraph, Flow, GraphNode, GraphStop, base_name
from compiler.autograd.formulas import rule_of
from compiler.autograd.recording import Call
from compiler.autograd.saved import memory_kept
from compiler.autograd.words import notes, stop_words
from compiler.capture.sources import SourceBook
from compiler.record import Artifact, Entity, Saved
from compiler.torch_api import autograd_nodes
from compiler.torch_api.autograd_nodes import TensorFacts
from compiler.torch_api.fx import dtype_name

PLACE = ("file", "line", "code")
WIDTH = 116
MOST_TERMS = 12
_SHORT = {"float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Id, title and graph of the artifact, and the subject named in its text."""

    artifact_id: str = "autograd"
    title: str = "the graph that autograd built"
    graph: str = ""
    subject: str = "the result"


@dataclass(slots=True)
class Place:
    """The origin of a node: attributes for its entity (file, line, code, module …), and ids of source lines."""

    attrs: dict[str, Any] = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    @classmethod
    def of_call(cls, call: Call, book: SourceBook) -> Place:
        """The place of a call; adds its source lines to the book."""
        attrs: dict[str, Any] = {"call": call.op} if call.op else {}
        if call.stack:
            frame = call.stack[-1]
            code = linecache.getline(frame.file, frame.line).strip()
            attrs |= {"file": book.name(frame.file), "line": frame.line, "code": code}
        if call.module:
            attrs |= {"module": call.module, "module_type": call.module_type}
        return cls(attrs, tuple(dict.fromkeys(book.line(frame.file, frame.line) for frame in call.stack)))

    def of_parameter(self, name: str) -> Place:
        """The place of a leaf or frozen parameter that is used at this place, with the parameter's own module."""
        owner = {"module": name.rpartition(".")[0]} if "." in name else {}
        return Place({key: value for key, value in self.attrs.items() if key in PLACE} | owner, self.origins)


def autograd_artifact(
    graph: EagerGraph, saved: Sequence[Saved], settings: Settings, places: Mapping[str, Place]
) -> Artifact:
    """The artifact of a graph. `places` maps names of nodes and stops to their places."""
    places = defaultdict(Place, places)
    of_node: dict[str, list[Saved]] = {}
    for fact in saved:
        of_node.setdefault(fact.node, []).append(fact)
    kept = {node.name: tuple(of_node.get(f"{settings.artifact_id}.{node.name}", ())) for node in graph.nodes}
    entities = [_gradient(graph, settings.artifact_id)]
    entities += [_entity(node, settings.artifact_id, kept[node.name], places[node.name]) for node in graph.nodes]
    entities += [_stop(found, settings.artifact_id, places[found.name]) for found in graph.stops]
    text, lines = _text(graph, kept, settings, places)
    return Artifact(
        settings.artifact_id, "autograd", settings.title, "python", text, settings.graph,
        {number: (f"{settings.artifact_id}.{name}",) for number, name in lines.items()}, tuple(entities),
    )  # fmt: skip


def recorded_places(graph: EagerGraph, book: SourceBook) -> dict[str, Place]:
    """Places of stops and of nodes whose calls were recorded. A leaf has the place of its first user."""
    places: dict[str, Place] = {}
    for node in graph.nodes:
        if node.call is not None:
            places[node.name] = Place.of_call(node.call, book)
        elif (user := _user(node)) in places:
            places[node.name] = places[user].of_parameter(node.name)
    for node in graph.nodes:
        if node.derivative_of in places and node.name in places:
            own, of = places[node.name], places[node.derivative_of]
            own.attrs |= {key: of.attrs[key] for key in ("module", "module_type") if key in of.attrs}
            own.origins = tuple(dict.fromkeys([*own.origins, *of.origins]))
    for found in graph.stops:
        stop = found.stop
        if stop.kind == "frozen":
            places[found.name] = places.get(found.takers[0], Place()).of_parameter(found.name)
        else:
            places[found.name] = Place.of_call(Call(stop.op, stop.stack, stop.module), book)
    return places


def _user(node: GraphNode) -> str:
    """The source node of a leaf's first gradient, "" for other nodes."""
    return next((flow.source for flows in node.takes for flow in flows), "") if node.kind == "accumulate" else ""


def _gradient(graph: EagerGraph, artifact_id: str) -> Entity:
    """The entity of the gradient that the backward pass starts from."""
    node, slot = graph.node(graph.roots[0][0]), graph.roots[0][1]
    attrs = _tensor(node.results[slot]) if slot < len(node.results) else {}
    attrs["description"] = "the gradient that backward begins with: 1 for a loss"
    return Entity(f"{artifact_id}.grad", "placeholder", "grad", attrs)


def _entity(node: GraphNode, artifact_id: str, saved: tuple[Saved, ...], place: Place) -> Entity:
    sources = (f"{artifact_id}.{flow.source or 'grad'}" for flows in node.takes for flow in flows)
    attrs: dict[str, Any] = {"op": node.kind, "target": target_name(node)}
    attrs |= _tensor(node.results[0]) if node.results else {}
    rule = rule_of(node.op)
    if rule is not None:
        attrs |= {"rule": rule.name, "formula": rule.formula}
    attrs |= place.attrs
    if (terms := max((len(flows) for flows in node.takes), default=0)) > 1:
        attrs["gradients_added"] = terms
    if saved:
        attrs["saves"] = "; ".join(saved_text(fact) for fact in saved)
        attrs["saved_bytes"] = memory_kept(saved)
    if (leaf := node.leaf) is not None:
        is_parameter = isinstance(leaf, torch.nn.Parameter)
        attrs |= {"parameter": is_parameter, "version": autograd_nodes.version(leaf), "has_grad": leaf.grad is not None}
    if node.hooks:
        attrs["hooks"] = list(node.hooks)
    if node.derivative_of:
        attrs["derivative_of"] = node.derivative_of
    told = notes(node, saved)
    if told:
        attrs["notes"] = ". ".join(told)
    return Entity(
        f"{artifact_id}.{node.name}", node.kind, node.name, attrs, tuple(dict.fromkeys(sources)), place.origins
    )


def _stop(found: GraphStop, artifact_id: str, place: Place) -> Entity:
    """The entity of a gradient stop; its inputs are the nodes that take the constant."""
    stop = found.stop
    attrs: dict[str, Any] = {"op": "stop", "target": f"autograd.{stop.kind}.stop", "dtype": stop.dtype}
    attrs |= {"shape": list(stop.shape), "stops": stop.kind}
    attrs |= place.attrs
    attrs |= {"cut_off_from": found.source} if found.source else {}
    attrs["notes"] = f"no gradient goes here: {stop_words(found)}"
    inputs = tuple(f"{artifact_id}.{name}" for name in found.takers)
    return Entity(f"{artifact_id}.{found.name}", "stop", found.name, attrs, inputs, place.origins)


def target_name(node: GraphNode) -> str:
    """A node's target, `autograd.addmm.AddmmBackward0`, in the form of ATen's `aten.addmm.default`."""
    return f"autograd.{'accumulate' if node.kind == 'accumulate' else base_name(node.op)}.{node.op}"


def _tensor(facts: TensorFacts) -> dict[str, Any]:
    size = facts.dtype.itemsize
    shape = [each if isinstance(each, int) else str(each) for each in facts.shape]
    for each in shape:
        size = size * each if isinstance(each, int) else 0
    dtype = dtype_name(facts.dtype)
    return {"dtype": dtype, "shape": shape, "device": str(facts.device), "bytes": size}


def saved_text(fact: Saved) -> str:
    """A saved tensor as text: `self: f32[3], 12 B, leaf w, shares memory with exp.result`."""
    if not fact.dtype:
        return f"{fact.name}: {fact.problem}"
    shares = f"shares memory with {', '.join(fact.shared_with)}" if fact.shared_with else ""
    parts = [f"{short_type(fact.dtype, fact.shape)}", f"{fact.bytes:,} B", fact.of, shares]
    return f"{fact.name}: {', '.join(part for part in parts if part)}"


def short_type(dtype: str, shape: Sequence[Any]) -> str:
    """A tensor type as text: `f32[8, 64]`."""
    name = dtype.rstrip("0123456789")
    return f"{_SHORT.get(name, name)}{dtype[len(name) :]}[{', '.join(map(str, shape))}]"


def _text(
    graph: EagerGraph, kept: Mapping[str, tuple[Saved, ...]], settings: Settings, places: Mapping[str, Place]
) -> tuple[str, dict[int, str]]:
    """The text of the program, and the name of the node or stop in each line, by line number."""
    out = _head(graph, [fact for facts in kept.values() for fact in facts], settings)
    lines: dict[int, str] = {}
    before = ""
    alone = {""} if len(graph.roots) == 1 else set()
    alone |= {node.name for node in graph.nodes if sum(target is not None for target in node.gives) == 1}
    for node in graph.nodes:
        heading = "" if node.kind == "accumulate" else _heading(places[node.name].attrs)
        if heading and heading != before:
            out += ["", f"# {heading}"]
            before = heading
        told = (note for note in notes(node, kept[node.name]) if _is_told(node, note))
        out += [line for note in told for line in wrap(note, WIDTH, initial_indent="# ", subsequent_indent="#   ")]
        out.append(_line(node, alone, kept[node.name]))
        lines[len(out)] = node.name
        for found in graph.stops:
            if found.takers[0] == node.name:
                out.append(f"#   no gradient to {found.name}: {_stop_line(found, places[found.name].attrs)}")
                lines[len(out)] = found.name
    return "\n".join(out) + "\n", lines


def _stop_line(found: GraphStop, place: Mapping[str, Any]) -> str:
    where = f" at {place['file']}:{place['line']}" if "line" in place else ""
    if found.stop.kind == "frozen":
        return "a frozen parameter"
    origin = f" from {found.source}" if found.source else ""
    return f"detached{origin}{where}" if found.stop.kind == "detached" else f"computed under torch.no_grad(){where}"


def _head(graph: EagerGraph, saved: Sequence[Saved], settings: Settings) -> list[str]:
    leaves = sum(node.kind == "accumulate" for node in graph.nodes)
    tensors = len({fact.storage for fact in saved if fact.storage and not fact.free})
    head = [
        f"# Backward of {settings.subject}: {_many(len(graph.nodes), 'node')}, from top to bottom as autograd runs "
        f"them, to {_many(leaves, 'leaf', 'leaves')}.",
        f"# Until then it keeps {_many(tensors, 'piece')} of memory, {memory_kept(saved):,} bytes, besides the leaves.",
    ]
    if again := sum(bool(node.derivative_of) for node in graph.nodes):
        head.append(
            f"# Of these {again:,} {'was' if again == 1 else 'were'} made by a backward pass with create_graph=True: "
            "here a derivative is differentiated again (double backward)."
        )
    if not graph.recorded and not settings.graph and all(node.call is None for node in graph.nodes):
        head.append(
            "# It was built before it could be recorded, so lines and modules are not known: for those, "
            "tcompile.autograd(lambda: ...)."
        )
    return head


def _many(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _is_told(node: GraphNode, note: str) -> bool:
    """Whether a note says more than the node's line shows."""
    is_usual = node.leaf is not None and isinstance(node.leaf, torch.nn.Parameter) and "version" in note
    return not is_usual and not note.startswith(("a view: ", "a leaf: ", "made by a backward pass"))


def _heading(place: Mapping[str, Any]) -> str:
    line = f"{place['file']}:{place['line']}  {place['code']}" if "line" in place else ""
    module = f"{place['module']} ({place['module_type']})" if place.get("module_type") else place.get("module", "")
    return "  ".join(part for part in (module, line) if part)


def _line(node: GraphNode, alone: Collection[str], saved: tuple[Saved, ...]) -> str:
    """One node as a line of the program. A node in `alone` has a single gradient, written without an index."""
    taken = ", ".join(_sum(flows, alone) for flows in node.takes)
    if node.kind == "accumulate":
        results = ", ".join(short_type(dtype_name(each.dtype), each.shape) for each in node.results)
        return f"{node.name}.grad += {taken}  # {results}"
    if node.kind == "outer":
        return f"{node.name} <- {taken}"
    keeps = [f"{fact.name}={short_type(fact.dtype, fact.shape) if fact.dtype else '?'}" for fact in saved]
    gives = ["None" if target is None else target[0] for target in node.gives]
    part = f"; part of the derivative of {node.derivative_of}" if node.derivative_of else ""
    return f"{node.name} = {node.op}({', '.join([taken, *keeps])})  # -> {', '.join(gives)}{part}"


def _sum(flows: Sequence[Flow], alone: Collection[str]) -> str:
    terms = [_flow(flow, alone) for flow in flows[:MOST_TERMS]]
    terms += [f"{len(flows) - MOST_TERMS:,} more"] if len(flows) > MOST_TERMS else []
    return " + ".join(terms) or "None"


def _flow(flow: Flow, alone: Collection[str]) -> str:
    return (flow.source or "grad") if flow.source in alone else str(flow)
