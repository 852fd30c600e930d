"""Copies of nodes that AOTAutograd has traced before, with new values.

A model's layers are alike, so an operator is traced again and again with tensors of the same sizes. To trace it, torch
runs its decomposition in Python, and each operator in that goes through the proxy mode and the fake-tensor mode. The
result depends on the operator, on everything about its arguments except their elements, and on the dispatcher's state:
where all of that is equal, so are the nodes. Symbolic sizes, constant tensors, operators that are not ATen's, and those
that mutate an argument are traced each time.
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
    """The index of a node in a recording: first the inputs' nodes, then its own."""

    index: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A recorded tensor's metadata. Storages are numbered like nodes: those of inputs first."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Step:
    """A node of a recording: its arguments with places for nodes, and its metadata."""

    target: Any
    args: Any
    kwargs: Any
    name: str
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Recording:
    """The nodes that an operator adds to a graph, and what it returns.

    `storages` are the sizes of new memory in bytes. For each returned tensor, `results` has the index of the input
    that it is, or its node's place and metadata; `returned` is the returned structure with their places.
    """

    storages: tuple[int, ...]
    steps: tuple[_Step, ...]
    results: tuple[int | tuple[int, _Tensor], ...]
    returned: Any


@dataclass(slots=True)
class _Inputs:
    """The tensors among an operator's arguments, with repetitions, and their nodes."""

    tensors: list[FakeTensor]
    nodes: list[Node]


class _UnlikeError(Exception):
    """The nodes that an operator added can't be copied for other inputs."""


@contextmanager
def copy_known_traces() -> Iterator[None]:
    """Let AOTAutograd copy, in the block, the nodes of operators that it has traced in it."""
    with replace_attribute(proxy_tensor, "proxy_call", lambda trace: _Traced(trace).call):
        yield


class _Traced:
    """`proxy_call`, which traces an operator, with a cache."""

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
        """The cache key of a trace; None where the trace can't be cached."""
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
            self._tables.append(table)  # its id is its own as long as it lives
        return (
            id(table),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_autocast_dtype("cpu"),
            torch.get_autocast_dtype("cuda"),
            *dispatch_state(),
        )


def _table(mode: Any) -> Any:
    """The decomposition table in use; torch 2.11 has it in a variable of the module."""
    return mode.decomposition_table if hasattr(mode, "decomposition_table") else _proxies.CURRENT_DECOMPOSITION_TABLE


def _first_occurrences(values: Sequence[int]) -> list[int]:
    """The index of each value's first occurrence."""
    return [values.index(value) for value in values]


def _describe(value: Any, tracer: Any, inputs: _Inputs, key: list[Any]) -> bool:
    """Add an argument to a cache key; false where the key can't tell all about it."""
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
    steps = tuple(_step(tracer, node, places, memory) for node in added)
    if any(set(node.meta) - _OF_ITS_OWN != set(added[0].meta) - _OF_ITS_OWN for node in added):
        raise _UnlikeError
    results: dict[int, tuple[int, int | tuple[int, _Tensor]]] = {}
    known = {id(tensor): index for index, tensor in reversed([*enumerate(inputs.tensors)])}

    def result(value: FakeTensor) -> _Place:
        if id(value) in known:
            results.setdefault(id(value), (len(results), known[id(value)]))
        elif id(value) not in results:
            place = _place(tracer.tensor_tracker.get(value), places)
            results[id(value)] = len(results), (place, memory.described(value))
        return _Place(results[id(value)][0])

    tree = _map_leaves(returned, FakeTensor, result)
    return _Recording(tuple(memory.added), steps, tuple(found for _, found in results.values()), tree)


def _nodes_since(graph: Any, before: Node) -> Iterator[Node]:
    node = before.next
    while node is not graph._root:
        yield node
        node = node.next


def _place(tracked: Any, places: Mapping[Node, _Place]) -> int:
    if tracked is None or tracked.constant is not None or tracked.proxy.node not in places:
        raise _UnlikeError
    return places[tracked.proxy.node].index


def _step(tracer: Any, node: Node, places: Mapping[Node, _Place], memory: _Memory) -> _Step:
    if node.op != "call_function" or not _NOT_COPIED.isdisjoint(node.meta):
        raise _UnlikeError
    if is_operator(node.target):
        name = tracer.graph._target_to_str(node.target.overloadpacket.__name__)
    elif node.target is operator.getitem:
        name = tracer.graph._target_to_str(node.target)
    else:
        raise _UnlikeError

    def place(argument: Node) -> _Place:
        if argument not in places:
            raise _UnlikeError
        return places[argument]

    args, kwargs = _map_leaves(node.args, Node, place), _map_leaves(node.kwargs, Node, place)
    meta = {key: node.meta[key] for key in ("tensor_meta",) if key in node.meta}
    if "val" in node.meta:
        meta = {"val": _map_leaves(node.meta["val"], FakeTensor, memory.described), **meta}
    return _Step(node.target, args, kwargs, name, meta)


def _map_leaves(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to the leaves of a kind. Raises _UnlikeError for leaves that are not plain."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in _PLAIN or type(value) is float:
        return value
    if isinstance(value, list):
        return [_map_leaves(each, kind, change) for each in value]
    if isinstance(value, tuple):
        return tuple([_map_leaves(each, kind, change) for each in value])
    if isinstance(value, dict):
        return {name: _map_leaves(each, kind, change) for name, each in value.items()}
    raise _UnlikeError


class _Memory:
    """Numbers storages: the inputs' first, then the `added` ones, whose sizes in bytes it has."""

    def __init__(self, inputs: Sequence[FakeTensor]) -> None:
        self.added: list[int] = []
        self._inputs = len(inputs)
        self._number: dict[int, int] = {}
        for index, tensor in enumerate(inputs):
            self._number.setdefault(tensor.untyped_storage()._cdata, index)

    def described(self, value: FakeTensor) -> _Tensor:
        is_plain = type(value) is FakeTensor and not value._has_symbolic_sizes_strides
        if not is_plain or value.layout is not torch.strided or value.is_quantized or value.requires_grad:
            raise _UnlikeError
        if value.is_conj() or value.is_neg() or value.constant is not None or value.real_tensor is not None:
            raise _UnlikeError
        storage = value.untyped_storage()
        if storage._cdata not in self._number:
            self._number[storage._cdata] = self._inputs + len(self.added)
            self.added.append(storage.nbytes())
        return _Tensor(
            self._number[storage._cdata], tuple(value.shape), value.stride(), int(value.storage_offset()),
            value.dtype, value.fake_device,
        )  # fmt: skip


def _replay(known: _Recording, tracer: Any, inputs: _Inputs) -> Any:
    """Add recorded nodes to a tracer's graph for new inputs, and return the operator's result."""
    tensors = _Tensors(known, inputs)
    nodes = [*inputs.nodes]
    first: Node | None = None
    for step in known.steps:
        args, kwargs = _fill_places(step.args, nodes), _fill_places(step.kwargs, nodes)
        if first is None:
            node = first = tracer.create_node("call_function", step.target, args, kwargs, step.name)
            common = dict(node.meta)
        else:
            node = tracer.graph.create_node("call_function", step.target, args, kwargs, step.name)
            for name, kept in common.items():
                node.meta[name] = copy.copy(kept)
        for name, value in step.meta.items():
            node.meta[name] = tensors.made(value) if name == "val" else value
        nodes.append(node)
    results: list[Any] = []
    for result in known.results:
        if isinstance(result, int):
            results.append(inputs.tensors[result])
            continue
        place, what = result
        tensor = tensors.made(what)
        proxy = tracer.proxy(nodes[place])
        _proxies.set_proxy_slot(tensor, tracer, _proxies._ProxyTensor(proxy, None))
        results.append(tensor)
    return _fill_places(known.returned, results)


def _fill_places(value: Any, found: Sequence[Any]) -> Any:
    kind = type(value)
    if kind is _Place:
        return found[value.index]
    if kind is tuple:
        return tuple([_fill_places(each, found) for each in value])
    if kind is list:
        return [_fill_places(each, found) for each in value]
    if kind is dict:
        return {name: _fill_places(each, found) for name, each in value.items()}
    return value


class _Tensors:
    """Fake tensors of a recording, made anew in new memory or in that of the inputs."""

    def __init__(self, known: _Recording, inputs: _Inputs) -> None:
        self._mode = inputs.tensors[0].fake_mode
        self._storages = [tensor.untyped_storage() for tensor in inputs.tensors]
        self._storages += [torch.UntypedStorage(size, device="meta") for size in known.storages]
        self._bare: dict[_Tensor, torch.Tensor] = {}

    def made(self, what: Any) -> Any:
        if type(what) is _Tensor:
            return FakeTensor(self._mode, self._tensor(what), what.device)
        if isinstance(what, (list, tuple)):
            return type(what)([self.made(each) for each in what])
        return what

    def _tensor(self, what: _Tensor) -> torch.Tensor:
        if what not in self._bare:
            with no_python_dispatcher(), in_kernel_invocation_manager(self._mode):
                bare = torch.empty((0,), dtype=what.dtype, device="meta")
                self._bare[what] = bare.set_(self._storages[what.storage], what.offset, what.size, what.stride)
        return self._bare[what]
