"""DTensors: their placements on a device mesh, and the redistributions that are traced into a graph."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from compiler.torch_api.patching import Function, call_inside, call_instead, replace_attribute
from compiler.torch_api.shard_shapes import dimension_names

_CLASS = re.compile(r"class (\w+)")
_STYLES = "/torch/distributed/tensor/parallel/style.py"


@dataclass(frozen=True, slots=True)
class Redistribution:
    """A change of a DTensor's placements that was traced into a graph.

    `nodes` are the names of the nodes that make it. `operator` is the ATen operator that needed the other placements
    ("aten.add.Tensor"), with the placements of its DTensor operands before; "" if Python code or autograd asked.
    """

    nodes: tuple[str, ...]
    source: tuple[str, ...]
    target: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]
    operator: str = ""
    operands: tuple[tuple[str, ...], ...] = ()


class Redistributions:
    """The redistributions of each graph that is traced inside `watch()`."""

    def __init__(self) -> None:
        self._found: dict[Graph, list[Redistribution]] = {}
        self._operators: list[tuple[str, tuple[tuple[str, ...], ...]]] = []

    def of_graph(self, graph: Graph) -> Sequence[Redistribution]:
        """The redistributions in a traced graph, in order."""
        return self._found.get(graph, ())

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observe DTensor in the block; do nothing if no DTensor can exist, as its module is not imported."""
        if "torch.distributed.tensor" not in sys.modules:
            yield
            return
        from torch.distributed.tensor import _dispatch

        with ExitStack() as stack:
            for owner in redistribution_callers():
                change = call_instead(self._redistribute)
                stack.enter_context(replace_attribute(owner, "redistribute_local_tensor", change))
            change = call_inside(self._operator)
            stack.enter_context(replace_attribute(_dispatch.OpDispatcher, "redistribute_local_args", change))
            yield

    @contextmanager
    def _operator(self, facts: Any, suggested: Any, *_: Any, **__: Any) -> Iterator[None]:
        """Remember which operator's operands are redistributed in the block."""
        operands = tuple(placement_names(spec) for spec in facts.flat_args_schema if hasattr(spec, "placements"))
        self._operators.append((str(suggested.op), operands))
        try:
            yield
        finally:
            self._operators.pop()

    def _redistribute(self, run: Function, tensor: Any, source: Any, target: Any, **options: Any) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return run(tensor, source, target, **options)
        graph: Any = mode.tracer.graph
        last = next(iter(reversed(graph.nodes)), None)
        result = run(tensor, source, target, **options)
        new: list[Node] = list(takewhile(lambda node: node is not last, reversed(graph.nodes)))
        if new:
            nodes = tuple(node.name for node in reversed(new))
            names = placement_names(source), placement_names(target), mesh_sizes(source.mesh)
            operator = self._operators[-1] if self._operators else ("", ())
            self._found.setdefault(graph, []).append(Redistribution(nodes, *names, *operator))
        return result


def redistribution_callers() -> tuple[Any, ...]:
    """The modules that call `redistribute_local_tensor`, each by a name of its own."""
    from torch.distributed.tensor import _api, _dispatch, _redistribute

    return _api, _dispatch, _redistribute


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor; False while its module is not imported, as no DTensor can exist."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def inner_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor inside a wrapper subclass: for a DTensor, the local shard of this rank."""
    inner: Any = tensor
    while is_traceable_wrapper_subclass(inner):
        names, _ = inner.__tensor_flatten__()
        inner = getattr(inner, names[0])
    return inner


def local_tensor(value: Any) -> Any:
    """The part of a DTensor that this rank holds, also before it has waited for a collective; else the value."""
    is_waiting = type(value).__name__ == "AsyncCollectiveTensor"
    return inner_tensor(value) if is_waiting or is_dtensor(value) else value


def differentiable_part(value: Any) -> Any:
    """The part of a DTensor that this rank holds, connected to it by autograd; else the value."""
    return value.to_local() if is_dtensor(value) else value


def dtensor_attrs(value: Any) -> dict[str, Any]:
    """Placements, mesh and the shape of this rank's part of a DTensor, as JSON values; {} for anything else."""
    if not is_dtensor(value):
        return {}
    return {
        "placements": list(placement_names(value)),
        "mesh": [list(each) for each in mesh_sizes(value.device_mesh)],
        "local_shape": [size if isinstance(size, int) else str(size) for size in value._local_tensor.shape],
    }


def placement_names(value: Any) -> tuple[str, ...]:
    """The placement on each dimension of the mesh, as in Python: `Shard(1)`, `Replicate()`, `Partial(sum)`."""
    return tuple(map(_placement_name, value.placements))


def _placement_name(placement: Any) -> str:
    kind = type(placement).__name__.lstrip("_")
    if placement.is_partial():
        return f"{kind}({placement.reduce_op})"
    if placement.is_replicate():
        return "Replicate()"
    parts = [str(placement.dim)] if hasattr(placement, "dim") else []
    if split := getattr(placement, "split_factor", None):
        parts.append(f"split_factor={split}")
    return f"{kind}({', '.join(parts)})"


def mesh_sizes(mesh: Any) -> tuple[tuple[str, int], ...]:
    """Name and size of each dimension of a DeviceMesh; a dimension without a name is `dim 0`, …"""
    return tuple(zip(dimension_names(mesh), mesh.shape, strict=True))


def parallel_style(places: Sequence[tuple[str, int]]) -> str:
    """The ParallelStyle whose code is at one of these places (file, line): `RowwiseParallel`; "" for none."""
    for file, line in reversed(places):
        if file.replace("\\", "/").endswith(_STYLES):
            above = reversed(linecache.getlines(file)[:line])
            return next((found[1] for text in above if (found := _CLASS.match(text))), "")
    return ""
