"""Read collectives from FX graphs, and process groups from torch.distributed.

The operators are those of torch's functional collectives (`_c10d_functional`), DTensor's own, and the fused ones of
async tensor parallelism (`symm_mem`). A wait is a node of its own (`wait_tensor`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.record import Collective, CollectiveKind, Group
from compiler.record.distributed_facts import GPUS_A_NODE, collective_kind, is_wait
from compiler.torch_api import fx

_INPUTS = ("input", "inputs", "tensor", "tensors", "self", "A_shard", "A", "symm_buffer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a call of a collective sends, and to whom. Bytes are as in `record.Collective`."""

    kind: CollectiveKind
    operator: str
    group: Group
    reduction: str
    dtype: str
    tensors: int
    input_bytes: int
    output_bytes: int
    peer: int = -1
    root: int = -1

    def collective(self, **own: Any) -> Collective:
        """The collective as a fact of a record; `own` are the fields that are not about the message."""
        shared = {each.name: getattr(self, each.name) for each in fields(Message) if each.name != "group"}
        return Collective(**shared, group=self.group.name, group_size=len(self.group.ranks), **own)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall(Message):
    """A node that calls a collective. `wait` is the qualified name of the first node that waits for it; "" if none."""

    name: str
    wait: str


def collective_calls(module: GraphModule) -> Iterator[CollectiveCall]:
    """The collectives that a graph and its bodies call, in order. Groups are resolved, so they must still exist."""
    names = fx.qualified_names(module)
    for node, name in names.items():
        kind = collective_kind(fx.target_name(node)) if node.op == "call_function" else None
        if kind is not None:
            yield _call_of(node, name, kind, names)


def _call_of(node: Node, name: str, kind: CollectiveKind, names: dict[Node, str]) -> CollectiveCall:
    given = {key: _values(value) for key, value in _arguments(node.target, node.args, node.kwargs).items()}
    message = _message(fx.target_name(node), kind, given, fx.value_of(node))
    shared = {each.name: getattr(message, each.name) for each in fields(Message)}
    return CollectiveCall(**shared, name=name, wait=next((names[user] for user in _waits(node)), ""))


def message_of_call(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Message | None:
    """What an operator that was called with tensors sends; None if it is no collective."""
    kind = collective_kind(str(operator))
    return _message(str(operator), kind, _arguments(operator, args, kwargs), result) if kind is not None else None


def _message(operator: str, kind: CollectiveKind, arguments: Mapping[str, Any], result: Any) -> Message:
    group = group_facts(arguments.get("group_name"))
    given = next((arguments[key] for key in _INPUTS if key in arguments), ())
    inputs, outputs = ([each for each in _flat(value) if isinstance(each, torch.Tensor)] for value in (given, result))
    input_bytes, output_bytes = (sum(map(fx.tensor_bytes, tensors)) for tensors in (inputs, outputs))
    if kind == "send":
        output_bytes = 0
    elif kind == "recv":
        input_bytes = 0
    elif "fused_all_gather" in operator:
        output_bytes = input_bytes * len(group.ranks)
    elif "reduce_scatter" in operator and "fused" in operator:
        input_bytes = output_bytes * len(group.ranks)
    return Message(
        kind=kind,
        operator=operator,
        group=group,
        reduction=str(arguments.get("reduce_op", "")),
        dtype=", ".join(dict.fromkeys(fx.dtype_name(tensor.dtype) for tensor in inputs)),
        tensors=len(inputs),
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        root=rank_numbered(arguments.get("src"), group),
    )


class OperatorCalls(TorchDispatchMode):
    """Reports each operator that is called in the block: `report(operator, args, kwargs, result)`."""

    def __init__(self, report: Callable[[Any, Any, Any, Any], None]) -> None:
        super().__init__()
        self._report = report

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self._report(function, args, kwargs or {}, result)
        return result


def _arguments(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operator's call by name."""
    schema = getattr(getattr(operator, "default", operator), "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _values(value: Any) -> Any:
    """An argument with the traced values of nodes in their place, but for a node of a process group."""
    if isinstance(value, list | tuple):
        return [_values(each) for each in value]
    traced = fx.value_of(value) if isinstance(value, Node) else value
    return traced if isinstance(traced, torch.Tensor) or not isinstance(value, Node) else value


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _waits(node: Node) -> Iterator[Node]:
    """The nodes that wait for a collective's results, in the order of the graph."""
    for user in node.users:
        if user.op == "call_function" and is_wait(fx.target_name(user)):
            yield user
        elif fx.target_name(user) == "operator.getitem":
            yield from _waits(user)


def group_facts(group: Any) -> Group:
    """A process group: by name, as an object, or as the node of a graph that makes it."""
    found = group.meta.get("val") if isinstance(group, Node) else group
    if isinstance(found, str):
        name = found
        try:
            found = dist.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type, attr-defined]
        except (LookupError, RuntimeError, ValueError):
            return Group(name, ())  # it was destroyed, or the graph comes from another process
    if not isinstance(found, dist.ProcessGroup):
        return Group("", ())
    return Group(str(found.group_name), tuple(dist.get_process_group_ranks(found)), str(found.group_desc or ""))


def rank_numbered(number: Any, group: Group) -> int:
    """The rank with this number in a group; -1 for any, or none."""
    return group.ranks[number] if isinstance(number, int) and 0 <= number < len(group.ranks) else -1


def is_initialized() -> bool:
    """Whether this process has a default process group."""
    return dist.is_available() and dist.is_initialized()


def count_ranks() -> int:
    """Number of processes in the default process group; 1 without a group."""
    return dist.get_world_size() if is_initialized() else 1


def gpus_of_node() -> int:
    """GPUs of a node, for a process of a job: as torchrun or the simulation says, or 8; 1 without a process group."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", GPUS_A_NODE)) if is_initialized() else 1


def is_simulated() -> bool:
    """Whether the default process group is torch's fake one, whose collectives move nothing."""
    return is_initialized() and dist.get_backend() == "fake"
