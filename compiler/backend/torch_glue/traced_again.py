"""Cache AOTAutograd's traces of operators: copy the nodes of an earlier trace with new fake tensors.

A model's layers are alike, so operators are traced again and again with tensors of the same metadata. To trace an
operator, torch runs its decomposition in Python, with the proxy mode and the fake-tensor mode for each operator in it.
The nodes depend only on the operator, the metadata of its arguments, and the dispatcher's state, which make up the
cache key. Symbolic sizes, constant tensors, operators outside ATen and prims, and operators that mutate an argument are
never cached.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.experimental.proxy_tensor as proxy_tensor
from torch.fx import Node
from torch.fx.node import map_aggregate

from compiler.torch_api.decomposition_tables import is_mutable, is_operator
from compiler.torch_api.fake_tensors import FakeTensor, in_kernel_invocation_manager, no_python_dispatcher
from compiler.torch_api.patching import replace_attribute
from compiler.torch_api.python_kernels import dispatch_keys, dispatch_state

_proxies: Any = proxy_tensor
_PLAIN = frozenset({bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_NAMESPACES = ("aten", "prims")
_OF_ITS_OWN = frozenset({"val", "tensor_meta"})
_NOT_COPIED = frozenset({"eager_input_vals", "unbacked_bindings", "low_precision_pointwise_barrier"})


@dataclass(frozen=True, slots=True)
class _Place:
    """Index of a node in a recording. The inputs' nodes come first, then the recorded nodes."""

    index: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Metadata of a recorded tensor. `storage` is an index; the inputs' storages come first."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Result:
    """A new tensor that an operator returns: the index of its node (`place`), and its metadata."""

    place: int
    tensor: _Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """A recorded node. In its arguments, a `_Place` stands for each node."""

    target: Any
    args: Any
    kwargs: Any
    name: str
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Recording:
    """A recorded trace of an operator. `storages` has the sizes of new storages, in bytes.

    In `returned`, the operator's result, each new tensor is a `_Result`, and each input is a `_Place`.
    """

    storages: Sequence[int]
    steps: Sequence[_Step]
    returned: Any


@dataclass(slots=True)
class _Inputs:
    """The tensors among an operator's arguments, in order and with duplicates, and their nodes."""

    tensors: list[FakeTensor]
    nodes: list[Node]


class _UnlikeError(Exception):
    """The nodes that an operator added can't be copied for other inputs."""


@contextmanager
def copy_known_traces() -> Iterator[None]:
    """Cache traces of operators in the block."""
    with replace_attribute(proxy_tensor, "proxy_call", lambda trace: _Traced(trace).call):
        yield


class _Traced:
    """Replacement for torch's `proxy_call`, which traces an operator: it caches the traces."""

    def __init__(self, trace: Callable[..., Any]) -> None:
        self._trace = trace
        self._known: dict[Any, _Recording | None] = {}
        self._tables: list[Any] = []

    def call(self, mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
        inputs = _Inputs([], [])
        key = None if pre_dispatch else self._key(mode, func, args, kwargs, inputs)
        if key is None:
            return self._trace(mode, func, pre_dispatch, args, kwargs)
        known = self._known.get(key)
        if known is not None:
            return _replay(known, mode.tracer, inputs)
        before = mode.tracer.graph._root.prev
        returned = self._trace(mode, func, pre_dispatch, args, kwargs)
        if key not in self._known:
            try:
                self._known[key] = _record(mode.tracer, inputs, before, returned)
            except _UnlikeError:
                self._known[key] = None
        return returned

    def _key(self, mode: Any, func: Any, args: Any, kwargs: Any, inputs: _Inputs) -> Any:
        """Cache key of a trace; None if it can't be cached. Adds the tensors among the arguments to `inputs`."""
        if not is_operator(func) or func.namespace not in _NAMESPACES or is_mutable(func):
            return None
        if mode.emulate_precision_casts:
            return None
        key: list[Any] = [func, *self._state(mode)]
        if not (_describe(args, mode.tracer, inputs, key) and _describe(kwargs, mode.tracer, inputs, key)):
            return None
        if not inputs.tensors:
            return None
        if len(inputs.tensors) > 1:
            fake = inputs.tensors[0].fake_mode
            if any(tensor.fake_mode is not fake for tensor in inputs.tensors):
                return None
            key.extend(_first_occurrences([id(tensor) for tensor in inputs.tensors]))
            key.extend(_first_occurrences([id(node) for node in inputs.nodes]))
            key.extend(_first_occurrences([tensor.untyped_storage()._cdata for tensor in inputs.tensors]))
        return tuple(key)

    def _state(self, mode: Any) -> tuple[Any, ...]:
        table = _table(mode)
        if all(table is not known for known in self._tables):
            self._tables.append(table)  # a reference keeps its id from being reused
        return (
            id(table),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_autocast_dtype("cpu"),
            torch.get_autocast_dtype("cuda"),
            *dispatch_state(),
        )


def _table(mode: Any) -> Any:
    """The current decomposition table; in torch 2.11 it is a global of the module."""
    return mode.decomposition_table if hasattr(mode, "decomposition_table") else _proxies.CURRENT_DECOMPOSITION_TABLE


def _first_occurrences(values: Sequence[int]) -> list[int]:
    """The index of each value's first occurrence."""
    return [values.index(value) for value in values]


def _describe(value: Any, tracer: Any, inputs: _Inputs, key: list[Any]) -> bool:
    """Add an argument to a cache key; returns False if it can't be cached."""
    kind = type(value)
    if kind is FakeTensor:
        return _describe_tensor(value, tracer, inputs, key)
    if kind in _PLAIN:
        key += kind, value
        return True
    if kind is float:
        key += kind, repr(value)  # -0.0 equals 0.0
        return True
    if isinstance(value, (list, tuple)):
        key += len(value), isinstance(value, list)
        return all(_describe(each, tracer, inputs, key) for each in value)
    if kind is dict:
        key += len(value), *value
        return all(_describe(each, tracer, inputs, key) for each in value.values())
    return False


def _describe_tensor(value: FakeTensor, tracer: Any, inputs: _Inputs, key: list[Any]) -> bool:
    if value._has_symbolic_sizes_strides or value.layout is not torch.strided:
        return False
    if value.constant is not None or value.real_tensor is not None:
        return False
    tracked = tracer.tensor_tracker.get(value)
    if tracked is None or tracked.constant is not None:
        return False
    inputs.tensors.append(value)
    inputs.nodes.append(tracked.proxy.node)
    key += (
        FakeTensor, value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device,
        value.requires_grad, dispatch_keys(value),
    )  # fmt: skip
    return True


def _record(tracer: Any, inputs: _Inputs, before: Node, returned: Any) -> _Recording:
    """Record the nodes added to the graph after the node `before`. Raises _UnlikeError."""
    added = list(_nodes_since(tracer.graph, before))
    places = {node: _Place(index) for index, node in reversed([*enumerate([*inputs.nodes, *added])])}
    memory = _Memory(inputs.tensors)
    steps = [_step(tracer, node, places, memory) for node in added]
    if any(set(node.meta) - _OF_ITS_OWN != set(added[0].meta) - _OF_ITS_OWN for node in added):
        raise _UnlikeError
    known = {id(tensor): _Place(index) for index, tensor in reversed([*enumerate(inputs.tensors)])}

    def result(value: Any) -> Any:
        if not isinstance(value, FakeTensor) or id(value) in known:
            return known.get(id(value)) or _check_plain(value)
        tracked = tracer.tensor_tracker.get(value)
        if tracked is None or tracked.constant is not None or tracked.proxy.node not in places:
            raise _UnlikeError
        return _Result(places[tracked.proxy.node].index, memory.describe(value))

    return _Recording(memory.added, steps, map_aggregate(returned, result))


def _nodes_since(graph: Any, before: Node) -> Iterator[Node]:
    node = before.next
    while node is not graph._root:
        yield node
        node = node.next


def _step(tracer: Any, node: Node, places: Mapping[Node, _Place], memory: _Memory) -> _Step:
    is_taken = is_operator(node.target) or node.target is operator.getitem
    if node.op != "call_function" or not is_taken or not _NOT_COPIED.isdisjoint(node.meta):
        raise _UnlikeError
    target: Any = node.target
    name = tracer.graph._target_to_str(target.overloadpacket.__name__ if is_operator(target) else target)

    def place(argument: Any) -> Any:
        if not isinstance(argument, Node):
            return _check_plain(argument)
        if argument not in places:
            raise _UnlikeError
        return places[argument]

    args, kwargs = map_aggregate((node.args, node.kwargs), place)
    return _Step(target, args, kwargs, name, {
        key: map_aggregate(node.meta[key], memory.describe) if key == "val" else node.meta[key]
        for key in ("val", "tensor_meta") if key in node.meta
    })  # fmt: skip


def _check_plain(value: Any) -> Any:
    """Return a leaf that does not depend on the inputs. Raises _UnlikeError for other leaves."""
    if type(value) in _PLAIN or type(value) is float:
        return value
    raise _UnlikeError


class _Memory:
    """Assigns an index to each storage, first to the inputs'. `added` has the sizes of new storages, in bytes."""

    def __init__(self, inputs: Sequence[FakeTensor]) -> None:
        self.added: list[int] = []
        self._inputs = len(inputs)
        self._number: dict[int, int] = {}
        for index, tensor in enumerate(inputs):
            self._number.setdefault(tensor.untyped_storage()._cdata, index)

    def describe(self, value: Any) -> Any:
        """The metadata of a fake tensor; any other leaf unchanged. Raises _UnlikeError."""
        if not isinstance(value, FakeTensor):
            return _check_plain(value)
        is_plain = type(value) is FakeTensor and not value._has_symbolic_sizes_strides
        if not is_plain or value.layout is not torch.strided or value.is_quantized or value.requires_grad:
            raise _UnlikeError
        if value.is_conj() or value.is_neg() or value.constant is not None or value.real_tensor is not None:
            raise _UnlikeError
        storage = value.untyped_storage()
        if storage._cdata not in self._number:
            self._number[storage._cdata] = self._inputs + len(self.added)
            self.added.append(storage.nbytes())
        layout = tuple(value.shape), value.stride(), int(value.storage_offset())
        return _Tensor(self._number[storage._cdata], *layout, value.dtype, value.fake_device)


def _replay(known: _Recording, tracer: Any, inputs: _Inputs) -> Any:
    """Add recorded nodes to a tracer's graph for new inputs, and return the operator's result."""
    mode, nodes = inputs.tensors[0].fake_mode, [*inputs.nodes]
    storages = [tensor.untyped_storage() for tensor in inputs.tensors]
    storages += [torch.UntypedStorage(size, device="meta") for size in known.storages]
    bare: dict[_Tensor, torch.Tensor] = {}
    made: dict[_Result, FakeTensor] = {}

    def node_at(leaf: Any) -> Any:
        return nodes[leaf.index] if type(leaf) is _Place else leaf

    def make(leaf: Any) -> Any:
        if type(leaf) is not _Tensor:
            return leaf
        if leaf not in bare:
            with no_python_dispatcher(), in_kernel_invocation_manager(mode):
                empty = torch.empty((0,), dtype=leaf.dtype, device="meta")
                bare[leaf] = empty.set_(storages[leaf.storage], leaf.offset, leaf.size, leaf.stride)
        return FakeTensor(mode, bare[leaf], leaf.device)

    def result(leaf: Any) -> Any:
        if type(leaf) is not _Result:
            return inputs.tensors[leaf.index] if type(leaf) is _Place else leaf
        if leaf not in made:
            made[leaf] = make(leaf.tensor)
            proxy = tracer.proxy(nodes[leaf.place])
            _proxies.set_proxy_slot(made[leaf], tracer, _proxies._ProxyTensor(proxy, None))
        return made[leaf]

    common: dict[str, Any] = {}
    for number, step in enumerate(known.steps):
        create = tracer.graph.create_node if number else tracer.create_node
        node = create("call_function", step.target, *map_aggregate((step.args, step.kwargs), node_at), step.name)
        common = common or dict(node.meta)
        node.meta |= {name: copy.copy(kept) for name, kept in common.items()} if number else {}
        node.meta |= {name: map_aggregate(value, make) if name == "val" else value for name, value in step.meta.items()}
        nodes.append(node)
    return map_aggregate(known.returned, result)
