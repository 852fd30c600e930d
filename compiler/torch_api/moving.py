"""Move an FX graph traced on CPU tensors to another device: device arguments, `meta["val"]`, example inputs.

Constant tensors of the graph stay on the CPU and are copied to the device before use. A graph traced on the device
does the same (`torch.tensor(2.0, device="cuda")` is created on the CPU and moved).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_map

from compiler.torch_api.fx import attribute_at, is_on_meta

CPU = torch.device("cpu")
"""The device of captured graphs before they are moved."""
META = torch.device("meta")
"""The device of tensors without memory."""

_VALUES = ("val", "example_value", "eager_input_vals")
"""Keys of fake tensors in a node's `meta`. Inductor lowers nested regions with "eager_input_vals"."""

_LIFTS = (torch.ops.aten.lift_fresh_copy.default,)


def moved_from_meta(module: GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
    """Move a captured graph of meta tensors to the CPU, in place, and return example inputs on the CPU.

    If the inputs have memory, the graph and the inputs are unchanged.
    """
    graph = getattr(module, "gm", module)  # flatten_graph_inputs returns a module around the graph
    values = [node.meta.get("example_value") for node in graph.graph.find_nodes(op="placeholder")]
    if len(values) != len(inputs) or not is_on_meta(graph):
        return inputs
    mode = detect_fake_mode([node.meta.get("example_value") for node in graph.graph.nodes])
    if mode is None:
        return inputs
    mover = Mover(mode, META, CPU)
    moved = mover.values(values)
    mover.graph(graph)
    for before, after in zip(values, moved, strict=True):
        if after is not before:
            after.requires_grad_(before.requires_grad)
    return [after if after is not before else given for before, after, given in zip(values, moved, inputs, strict=True)]


class Mover:
    """Moves fake tensors and graphs of one fake mode to another device; a shared tensor is moved once."""

    def __init__(self, mode: FakeTensorMode, source: torch.device, device: torch.device) -> None:
        self.mode = mode
        self.source = source
        self.device = device
        self._swap = device_swap(source, device)
        self._moved: dict[int, tuple[FakeTensor, FakeTensor]] = {}

    def values(self, values: Sequence[Any]) -> list[Any]:
        """Move the source device's fake tensors in example inputs, or in any nested values."""
        with self.mode:
            return [tree_map(self._tensor, value) for value in values]

    def graph(self, module: GraphModule) -> None:
        """Move a graph and its subgraphs in place."""
        with self.mode:
            for inner in [each for each in module.modules() if isinstance(each, GraphModule)]:
                self._graph(inner)

    def _graph(self, module: GraphModule) -> None:
        constants = [node for node in module.graph.nodes if _is_constant(module, node)]
        for node in module.graph.nodes:
            if node not in constants:
                swap_devices(node, self._swap)
                for name in _VALUES:
                    if name in node.meta:
                        node.meta[name] = tree_map(self._tensor, node.meta[name])
                node.meta.pop("tensor_meta", None)
        for node in constants:
            self._copy_to_users(module, node)
        module.recompile()

    def _tensor(self, value: Any) -> Any:
        if not isinstance(value, FakeTensor) or value.device.type != self.source.type:
            return value
        known = self._moved.get(id(value))
        if known is None:
            known = self._moved[id(value)] = (
                value,
                self._copy(value),
            )  # keeps the tensor alive: its id stays valid
        return known[1]

    def _copy(self, value: FakeTensor) -> FakeTensor:
        made: Any = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=self.device)
        offset = value.storage_offset()
        is_start = isinstance(offset, int) and offset == 0
        return made if is_start else made.as_strided(value.shape, value.stride(), offset)

    def _copy_to_users(self, module: GraphModule, node: Node) -> None:
        users = [user for user in node.users if not _is_constant(module, user)]
        if not users or not isinstance(node.meta.get("val"), torch.Tensor):
            return
        with module.graph.inserting_after(node):
            copied = module.graph.call_function(torch.ops.prims.device_put.default, (node, self.device))
        copied.meta = {**node.meta, "val": self._tensor(node.meta["val"])}
        copied.meta.pop("tensor_meta", None)
        for user in users:
            user.replace_input_with(node, copied)


def _is_constant(module: GraphModule, node: Node) -> bool:
    """Whether a node is a constant tensor of the graph, or a fresh copy of one."""
    if node.op == "get_attr":
        return isinstance(attribute_at(module, str(node.target)), torch.Tensor)
    return node.target in _LIFTS and all(_is_constant(module, source) for source in node.all_input_nodes)


def device_swap(source: torch.device, device: torch.device) -> Callable[[Any], Any]:
    """A function that replaces devices of `source`'s type, or their names, by `device`."""
    name = re.compile(rf"{source.type}(:\d+)?")

    def swap(value: Any) -> Any:
        is_source = isinstance(value, torch.device) and value.type == source.type
        return device if is_source or (isinstance(value, str) and name.fullmatch(value)) else value

    return swap


def swap_devices(node: Node, swap: Callable[[Any], Any]) -> bool:
    """Apply `swap` to every value in a node's arguments, and return whether any changed."""
    before = (node.args, node.kwargs)
    after = (map_aggregate(node.args, swap), map_aggregate(node.kwargs, swap))
    if after == before:
        return False
    node.args, node.kwargs = after
    return True
