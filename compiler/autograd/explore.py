"""The eager autograd graph of tensors as a record: sources, the graph, and its saved tensors.

A node that takes a parameter belongs to the parameter's module. Nodes between two such nodes belong to the innermost
module that contains both modules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile
from types import FrameType
from typing import Any

import torch

from compiler.autograd.eager_graph import EagerGraph, GraphNode, eager_graph, without_inner
from compiler.autograd.graph_artifact import Place, Settings, autograd_artifact, recorded_places
from compiler.autograd.health import NodeHealth, measure_health, summary
from compiler.autograd.recording import Recording
from compiler.autograd.saved import saved_tensors
from compiler.capture.sources import SourceBook
from compiler.process.environment import environment
from compiler.record import Record
from compiler.record.options import Options
from compiler.torch_api.fx import tensor_attrs


def autograd_record(
    outputs: Sequence[torch.Tensor],
    *,
    recording: Recording | None = None,
    frame: FrameType | None = None,
    title: str = "",
    health: bool = False,
) -> Record:
    """A record of the autograd graph of these tensors, with names from the variables of `frame`.

    With `health`, runs a backward pass and measures gradients. Raises NoGraphError, and FreedGraphError with `health`.
    """
    names = names_of_tensors(frame, recording)
    outputs = without_inner(outputs)
    graph = eager_graph(outputs, recording=recording, names=names)
    found = measure_health(graph, outputs, recording) if health else ()
    return graph_record(graph, outputs, names, title, found)


def graph_record(
    graph: EagerGraph,
    outputs: Sequence[torch.Tensor],
    names: Mapping[int, str],
    title: str = "",
    health: Sequence[NodeHealth] = (),
) -> Record:
    """A record of an autograd graph. `names` has names of tensors by `id`."""
    subject = title or next((names[id(output)] for output in outputs if id(output) in names), "the result")
    settings = Settings(subject=f"{subject}, {_describe(outputs)}")
    saved = saved_tensors(graph, settings.artifact_id, names)
    book = SourceBook()
    places = defaultdict(Place, recorded_places(graph, book))
    for name, attrs in ({} if graph.recorded else guessed_places(graph)).items():
        places[name].attrs = attrs | places[name].attrs
    told = summary(health, graph, {name: place.attrs for name, place in places.items()}) if health else ()
    for each in health:
        places[each.node].attrs |= each.attrs()
    artifact = autograd_artifact(graph, saved, settings, places)
    artifact = replace(artifact, attrs={"health": list(told)} if told else {})
    return Record(
        title=subject, options=Options(), environment=environment(), artifacts=(*book.artifacts(), artifact),
        autograd_saved=saved,
    )  # fmt: skip


def _describe(outputs: Sequence[torch.Tensor]) -> str:
    wanting = [output for output in outputs if output.requires_grad]
    attrs = tensor_attrs(wanting[0])
    one = f"{attrs['dtype']} {list(attrs['shape'])}"
    return one if len(wanting) == 1 else f"{len(wanting)} tensors, the first {one}"


def guessed_places(graph: EagerGraph) -> dict[str, dict[str, Any]]:
    """Guessed `module` of each node, as attributes; `inherited` is true if the guess comes from neighbouring nodes."""
    leaves = {node.name for node in graph.nodes if node.kind == "accumulate"}
    own = {node.name: _of_parameters(node, leaves) for node in graph.nodes}
    compute = sorted((node for node in graph.nodes if node.number is not None), key=lambda node: node.number or 0)
    paths = [own[node.name] for node in compute]
    before = accumulate(paths, _nearest)
    after = [*accumulate(reversed(paths), _nearest)][::-1]
    places: dict[str, dict[str, Any]] = {}
    for node, first, last in zip(compute, before, after, strict=True):
        path = own[node.name] or _common(first, last)
        if path:
            places[node.name] = {"module": path, "inherited": not own[node.name]}
    return places | {name: {"module": _owner(name)} for name in leaves if _owner(name)}


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _of_parameters(node: GraphNode, leaves: set[str]) -> str:
    """The module whose parameters a node takes, "" if there is none."""
    targets = [target[0] for target in node.gives if target is not None]
    owners = [_owner(name) for name in targets if name in leaves]
    return next((owner for owner in owners if owner), "")


def _nearest(before: str, path: str) -> str:
    return path or before


def _common(first: str, second: str) -> str:
    pairs = zip(first.split("."), second.split("."), strict=False)
    return ".".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


# Names of tensors as the user knows them


def names_of_tensors(frame: FrameType | None, recording: Recording | None) -> dict[int, str]:
    """Names of tensors by `id`: parameter paths of called modules, else variables visible in the frame.

    Names that begin with an underscore belong to the notebook itself, and have the lowest priority.
    """
    found: dict[int, str] = {}
    for name, tensor in recording.parameters() if recording else ():
        found.setdefault(id(tensor), name)
    seen = {**frame.f_globals, **frame.f_locals} if frame is not None else {}
    variables = sorted(seen.items(), key=lambda item: item[0].startswith("_"))
    for name, value in variables:
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), name)
    modules = [(name, value) for name, value in variables if isinstance(value, torch.nn.Module)]
    for name, module in modules:
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            found.setdefault(id(tensor), path if len(modules) == 1 else f"{name}.{path}")
    for name, value in variables:
        for path, tensor in _tensors_inside(value):
            found.setdefault(id(tensor), f"{name}{path}")
    return found


def _tensors_inside(value: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """Tensors in a list, tuple or dict, each with its index as text: `[0]`."""
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, list | tuple):
        pairs = enumerate(value)
    elif isinstance(value, dict):
        pairs = list(value.items())
    return [(f"[{key!r}]", each) for key, each in pairs if isinstance(each, torch.Tensor)]
