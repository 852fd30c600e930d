"""The call of a node in a run's graph, with its argument values, for `run.decompose`.

Captured nodes are looked up in the captured graph, nodes of the joint, forward or backward graph in the joint graph,
and post-grad and inference nodes in the graphs kept for running kernels; a decomposed node in its level's graph. Values
are computed from the first call and its gradients. Unknown values are made up, and `note` says so.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from compiler.calls.graph_runs import HookedInterpreter, copy_to_cpu, keep_values
from compiler.calls.kept_graphs import KeptFrame
from compiler.decompose.graphs import HalfGraph, LevelError
from compiler.decompose.random_draws import seed_and_restore
from compiler.record import Artifact, Entity
from compiler.torch_api import fx
from compiler.torch_api.buffers import bare
from compiler.torch_api.pytrees import tree_leaves
from compiler.triton_interpreter.reference import Reference, Unknown

_INPUT = re.compile(r"primals_(?P<from_one>\d+)|arg(?P<from_zero>\d+)_1")


@dataclass(frozen=True, slots=True)
class NodeCall:
    """The callee of a node and its arguments. `note` names the arguments with made-up values, "" if there are none."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    note: str = ""


def node_call(entity: Entity, artifact: Artifact, kept: KeptFrame, level: HalfGraph | None = None) -> NodeCall:
    """The call of an entity of an FX graph. `level` is the graph of a `decomposed` artifact, with its inputs.

    Raises LevelError if the node calls nothing, or if its graph was not kept.
    """
    module = level.module if level else _graph(artifact, kept)
    is_captured = module is kept.captured
    runnable = module if is_captured else bare(module)
    node = next((node for node in runnable.graph.nodes if node.name == entity.label), None)
    if node is None:
        came_from = ", ".join(entity.origins) or "none"
        raise LevelError(f"{entity.id} is not in the graph that was kept, which is of before or after some "
                         f"passes: name the node it came from: {came_from}")  # fmt: skip
    if node.op not in ("call_function", "call_method") or node.target is operator.getitem:
        what = "a result of another call" if node.target is operator.getitem else node.op.replace("_", " ")
        raise LevelError(f"{entity.id} calls no operator: it is {what}")
    placeholders = (node for node in module.graph.nodes if node.op == "placeholder")
    inputs = level.inputs if level else [_input(node, place, kept) for place, node in enumerate(placeholders)]
    wanted = [source.name for source in node.all_input_nodes]
    known: dict[str, Any] = {}
    reference = Reference(runnable, wanted)
    with torch.no_grad(), seed_and_restore():
        (HookedInterpreter(runnable, keep_values(known, wanted)) if is_captured else reference).run(*inputs)
    values = known | reference.values
    made_up = [name for name in wanted if _is_unknown(values.get(name))]
    values |= {node.name: _random_value(node) for node in module.graph.nodes if node.name in made_up}
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source.name])
    note = f"inputs are made up, with the sizes of this run's: {', '.join(made_up)}" if made_up else ""
    return NodeCall(fx.target_name(node), _function(node), tuple(args), dict(kwargs), note)


def _function(node: Node) -> Callable[..., Any]:
    """The callee of a node; for a method, the unbound method of Tensor."""
    if node.op == "call_function":
        assert callable(node.target)
        return node.target
    method: Callable[..., Any] = getattr(Tensor, str(node.target))
    return method


def _graph(artifact: Artifact, kept: KeptFrame) -> GraphModule:
    if artifact.stage in ("captured", "pre_grad") and kept.captured is not None:
        return kept.captured
    half: Any = artifact.half
    if artifact.stage == "post_grad" and half in kept.graphs:
        return kept.graphs[half].module
    if artifact.stage in ("joint", "forward", "backward") and kept.joint is not None:
        return kept.joint.module
    if artifact.stage == "inference" and "inference" in kept.graphs:
        return kept.graphs["inference"].module
    raise LevelError(f"the graph of {artifact.id} was not kept: name a node of captured, pre_grad, joint, forward, "
                     "backward or post_grad")  # fmt: skip


def _input(node: Node, place: int, kept: KeptFrame) -> Any:
    """The value of a graph's input: an argument of the call, or the gradient of an output; Unknown if there is none."""
    name, arguments = str(node.target), kept.arguments
    if name.startswith("tangents_"):
        index = int(name.removeprefix("tangents_")) - 1
        gradient = kept.gradients.get(kept.trained[index]) if index < len(kept.trained) else None
        return gradient if gradient is not None else Unknown("no gradient came back")
    if match := _INPUT.fullmatch(name):
        place = int(match["from_one"]) - 1 if match["from_one"] else int(match["from_zero"])
    if arguments is None or place >= len(arguments):
        return Unknown("the graph was not called")
    if getattr(arguments[place], "is_meta", False):
        raise LevelError(f"{name} is a meta tensor, which has no values: explore a call with tensors in memory")
    return copy_to_cpu(arguments[place])


def _is_unknown(value: Any) -> bool:
    return value is None or any(isinstance(leaf, Unknown) for leaf in tree_leaves(value))


def _random_value(node: Node) -> Any:
    """Made-up values of the node's dtype: normally distributed, or zero if it is not floating-point."""
    value = fx.value_of(node)
    if not isinstance(value, Tensor):
        raise LevelError(f"the value of {node.name}, which it takes, is not known")
    sizes = [int(size) for size in value.shape]
    generator = torch.Generator().manual_seed(0)
    if value.dtype.is_floating_point:
        return torch.randn(sizes, generator=generator).to(value.dtype)
    return torch.zeros(sizes, dtype=value.dtype)


def frame_of(artifact: Artifact, frames: Mapping[str, KeptFrame]) -> KeptFrame:
    """The kept frame of an artifact's capture. Raises LevelError for a saved record, which has none."""
    if artifact.graph not in frames:
        raise LevelError(f"{artifact.id} can't be traced again: a saved record has its text, and no graph or inputs")
    return frames[artifact.graph]
