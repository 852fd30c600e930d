"""The tensors that autograd saves for the backward pass: their origins, bytes, and shared storages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from compiler.autograd.eager_graph import EagerGraph, GraphNode
from compiler.record import Saved
from compiler.torch_api import autograd_nodes
from compiler.torch_api.dtensor import inner_tensor
from compiler.torch_api.fx import tensor_attrs

MADE_OUTSIDE = "made outside of the graph"


MOST_NAMED = 8
"""Maximum number of names listed as sharing memory; the storage's name identifies all."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A saved tensor, its label, and the key of its storage (None if the tensor is empty or has no storage)."""

    fact: Saved
    label: str
    key: tuple[str, int] | None


def saved_tensors(graph: EagerGraph, artifact_id: str, names: Mapping[int, str]) -> tuple[Saved, ...]:
    """Tensors that the nodes of a graph save, in node order. `names` has names of tensors by `id`."""
    makers = {node.function: node.name for node in graph.nodes}
    leaves = {key: node.name for node in graph.nodes if node.leaf is not None and (key := _memory(node.leaf))}
    kept = [each for node in graph.nodes for each in _kept_tensors(node, artifact_id, makers, names)]
    together: dict[tuple[str, int], list[str]] = {}
    for each in kept:
        if each.key is not None:
            together.setdefault(each.key, []).append(each.label)
    labels = {key: f"s{index}" for index, key in enumerate(together)}
    return tuple(_with_storage(each, labels, together, leaves) for each in kept)


def _kept_tensors(
    node: GraphNode, artifact_id: str, makers: Mapping[Any, str], names: Mapping[int, str]
) -> Iterator[_Kept]:
    own = ((name, tensor, "on the context of a custom function: nothing checks its version")
           for name, tensor in autograd_nodes.context_tensors(node.function).items())  # fmt: skip
    for name, tensor, problem in [*((slot.name, slot.tensor, slot.problem) for slot in node.saved), *own]:
        fact = Saved(f"{artifact_id}.{node.name}", name, problem=problem)
        label = f"{node.name}.{name}"
        if tensor is None:
            yield _Kept(fact, label, None)
        else:
            yield _Kept(_describe(fact, tensor, makers, names), label, _memory(tensor))


def _describe(fact: Saved, tensor: torch.Tensor, makers: Mapping[Any, str], names: Mapping[int, str]) -> Saved:
    attrs = tensor_attrs(tensor)
    return replace(
        fact,
        dtype=attrs["dtype"],
        shape=tuple(attrs["shape"]),
        bytes=attrs.get("bytes", 0),
        of=_origin(tensor, makers, names),
        view=autograd_nodes.base_of(tensor) is not None,
        version=autograd_nodes.version(tensor),
        storage_bytes=inner_tensor(tensor).untyped_storage().nbytes() if tensor.layout == torch.strided else 0,
    )


def _origin(tensor: torch.Tensor, makers: Mapping[Any, str], names: Mapping[int, str]) -> str:
    if tensor.grad_fn is not None:
        maker = makers.get(tensor.grad_fn)
        return f"result of {maker}" if maker else MADE_OUTSIDE
    name = names.get(id(tensor), "")
    if tensor.requires_grad:
        return f"leaf {name}".rstrip()
    return f"{name}, requires_grad=False" if name else "requires_grad=False"


def _memory(tensor: torch.Tensor) -> tuple[str, int] | None:
    """Key of a tensor's storage; None for fake, empty and sparse tensors."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return None
    tensor = inner_tensor(tensor)
    address = tensor.untyped_storage().data_ptr()
    return (str(tensor.device), address) if address else None


def _with_storage(
    each: _Kept,
    labels: Mapping[tuple[str, int], str],
    together: Mapping[tuple[str, int], list[str]],
    leaves: Mapping[tuple[str, int], str],
) -> Saved:
    if each.key is None:
        return each.fact
    leaf = leaves.get(each.key, "")
    others = [label for label in together[each.key][: MOST_NAMED + 1] if label != each.label][:MOST_NAMED]
    more = len(together[each.key]) - 1 - len(others)
    others += [f"{more:,} more"] if more else []
    return replace(
        each.fact,
        storage=labels[each.key],
        shared_with=tuple([leaf, *others] if leaf else others),
        free=bool(leaf),
    )


def memory_kept(saved: Iterable[Saved]) -> int:
    """Bytes that saved tensors keep in memory: each storage once, without storages of leaves."""
    storages = {fact.storage: fact.storage_bytes for fact in saved if fact.storage and not fact.free}
    return sum(storages.values())
