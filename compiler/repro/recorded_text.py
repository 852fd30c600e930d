"""The captured graphs of a saved record: traced again from their text, with random inputs of the recorded layout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Tracer

from compiler.calls.kept_graphs import KeptFrame
from compiler.record import Artifact, Entity, Record
from compiler.repro.subgraph import CannotCutError

_NAMES = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan, "math": math}
"""Names that the text of a captured graph uses."""


def graphs_of_record(record: Record) -> dict[str, KeptFrame]:
    """The captured graphs of a record by frame. Their text is executed. Raises CannotCutError if there is none."""
    found: dict[str, KeptFrame] = {}
    reasons = []
    trained = {each.graph for each in record.of_stage("backward")}
    for artifact in record.of_stage("captured"):
        try:
            found[artifact.graph] = _frame_of(artifact, trains=artifact.graph in trained)
        except CannotCutError as error:
            reasons.append(f"graph {artifact.graph}: {error}")
    if not found:
        raise CannotCutError("; ".join(reasons) or "the record has no captured graph")
    return found


def _frame_of(artifact: Artifact, *, trains: bool) -> KeptFrame:
    module = _module_of(artifact)
    recorded = [entity for entity in artifact.entities if entity.attrs.get("op") == "placeholder"]
    args = tuple(_input_like(entity, trains=trains) for entity in recorded)
    for node, value in zip(module.graph.find_nodes(op="placeholder"), args, strict=True):
        node.meta["example_value"] = value
    return KeptFrame(captured=module, arguments=args, trained=[0] if trains else [])


def _module_of(artifact: Artifact) -> GraphModule:
    """The graph, whose text is traced; its nodes have the recorded names. Raises CannotCutError."""
    names = dict(_NAMES)
    calls = [entity for entity in artifact.entities if str(entity.attrs.get("op", "")).startswith("call_")]
    try:
        with torch.enable_grad():
            exec(compile(artifact.text, artifact.id, "exec"), names)  # the caller has been told to trust it
            holder = type("Graph", (torch.nn.Module,), {"forward": names["forward"]})()
            graph = Tracer().trace(holder)
    except Exception as error:
        raise CannotCutError(f"its text can't be run without the program: {type(error).__name__}: {error}") from error
    traced = [node for node in graph.nodes if node.op.startswith("call_")]
    if len(traced) != len(calls):
        raise CannotCutError(f"its text has {len(traced)} operations, and {len(calls)} are recorded: some set a state")
    for node, entity in zip(traced, calls, strict=True):
        node.name = entity.label
    return GraphModule(holder, graph)


def _input_like(entity: Entity, *, trains: bool) -> Any:
    """A random tensor of the recorded layout, from -1 to 1; whole numbers are 0 or 1."""
    shape, stride = entity.attrs.get("shape"), entity.attrs.get("stride")
    if not isinstance(shape, list | tuple) or not all(isinstance(size, int) for size in (*shape, *(stride or ()))):
        raise CannotCutError(f"its input {entity.label} has no fixed shape in the record")
    dtype = getattr(torch, str(entity.attrs["dtype"]))
    layout = {"dtype": dtype, "device": str(entity.attrs.get("device", "cpu"))}
    try:
        tensor = torch.empty_strided(tuple(shape), tuple(stride or ()), **layout)
    except (RuntimeError, AssertionError) as error:
        raise CannotCutError(f"its input {entity.label} is on {layout['device']}: {error}") from None
    if not dtype.is_floating_point and not dtype.is_complex:
        return tensor.random_(0, 2)
    is_parameter = "._parameters[" in str(entity.attrs.get("source", ""))
    return tensor.uniform_(-1, 1).requires_grad_(trains and is_parameter)
