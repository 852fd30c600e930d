"""Data to rerun a compiled graph: its post-grad FX graph, and the FX node behind each scheduled buffer.

Read it while Inductor compiles the graph: scheduler nodes do not outlive the compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._inductor.scheduler import BaseSchedulerNode, ExternKernelSchedulerNode, NopKernelSchedulerNode
from torch.fx import Graph, GraphModule, Node

from compiler.torch_api.moving import CPU, device_swap, swap_devices

Kind = Literal["forward", "backward", "inference"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer that a scheduler node writes.

    `value` names the post-grad FX node that the buffer holds the value of; "" for part of a value or an intermediate.
    `mutates` names the buffers or inputs that the buffer aliases and overwrites.
    `is_joined` marks a buffer that no kernel writes as a whole: kernels write views of it (a concatenation).
    `size` and `stride` are None if they are symbolic.
    """

    name: str
    nodes: tuple[str, ...]
    is_extern: bool
    is_joined: bool
    value: str
    mutates: tuple[str, ...]
    size: tuple[int, ...] | None
    stride: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Dtype, shape and stride of one input, as the graph was compiled for.

    `shape` and `stride` are None if they are symbolic. All fields but `name` are None if the input is not a tensor.
    """

    name: str
    dtype: torch.dtype | None
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None

    def fits(self, value: Any) -> bool:
        """Whether a value has this input's dtype and shape; strides are ignored."""
        if self.dtype is None:
            return not isinstance(value, torch.Tensor)
        same_format = isinstance(value, torch.Tensor) and value.dtype == self.dtype
        return same_format and (self.shape is None or tuple(value.shape) == self.shape)

    def restride(self, value: Any) -> torch.Tensor:
        """Copy a tensor to the CPU, with the strides that the graph was compiled for, if known."""
        value = value.cpu()
        if self.shape is None or self.stride is None or value.stride() == self.stride:
            return value
        return torch.empty_strided(self.shape, self.stride, dtype=value.dtype).copy_(value)


def input_layouts(module: GraphModule) -> tuple[InputLayout, ...]:
    """The layouts of a graph's inputs, in order."""
    return tuple(_input(node) for node in module.graph.nodes if node.op == "placeholder")


def _input(node: Node) -> InputLayout:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return InputLayout(node.name, None, None, None)
    shape = _numbers(value.shape)
    return InputLayout(node.name, value.dtype, shape, None if shape is None else _numbers(value.stride()))


def buffers(nodes: Sequence[BaseSchedulerNode]) -> tuple[Buffer, ...]:
    """The buffers of fused scheduler nodes, in the order of their writes."""
    every = [(node, part) for node in nodes for part in node.get_nodes()]
    externs = {_own_name(output.node) for _, part in every if _is_extern(part) for output in part.get_outputs()}
    return tuple(_buffer(node, part, output, externs) for node, part in every for output in part.get_outputs())


def _buffer(node: BaseSchedulerNode, part: BaseSchedulerNode, output: Any, externs: set[str]) -> Buffer:
    value = _own_name(output.node) or ("" if _is_extern(part) else _last_computed(output.node, externs))
    size, stride = _layout(output.node)
    return Buffer(
        name=output.get_name(),
        nodes=(node.get_name(), part.get_name()),
        is_extern=_is_extern(part),
        is_joined=isinstance(part, NopKernelSchedulerNode),
        value=value,
        mutates=tuple(output.get_mutations()),
        size=size,
        stride=stride,
    )


def _is_extern(node: BaseSchedulerNode) -> bool:
    return isinstance(node, ExternKernelSchedulerNode)


def _own_name(ir: Any) -> str:
    origin = ir.get_origin_node() if hasattr(ir, "get_origin_node") else None
    return origin.name if origin is not None else ""


def _last_computed(ir: Any, externs: set[str]) -> str:
    """Name of a buffer's last FX origin with the same dtype and shape, extern calls excluded; "" if there is none."""
    origins = ir.get_origins() if hasattr(ir, "get_origins") else ()
    size, _ = _layout(ir)
    computed = [node for node in origins if node.name not in externs]
    if size is None or not computed:
        return ""
    wanted = (ir.get_dtype(), size)
    alike = [node for node in computed if _format(node.meta.get("val")) == wanted]
    if not alike or any(node.graph is not alike[0].graph for node in alike):
        return ""
    order = {node.name: index for index, node in enumerate(alike[0].graph.nodes)}
    return max(alike, key=lambda node: order.get(node.name, -1)).name


def _format(value: Any) -> tuple[torch.dtype, tuple[int, ...] | None] | None:
    return (value.dtype, _numbers(value.shape)) if isinstance(value, torch.Tensor) else None


def _layout(ir: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    layout = getattr(ir, "layout", None)
    if layout is None or not hasattr(layout, "stride"):
        return None, None
    return _numbers(layout.size), _numbers(layout.stride)


def _numbers(sizes: Sequence[Any]) -> tuple[int, ...] | None:
    """The sizes, or None if one is symbolic: reading a symbol's value would add a guard."""
    if any(not isinstance(size, int) and not getattr(size, "is_Integer", False) for size in sizes):
        return None
    return tuple(int(size) for size in sizes)


def bare(module: GraphModule) -> GraphModule:
    """Copy a graph so that it runs on the CPU: swap devices, drop fake tensors.

    The dtype of each fake tensor is kept as `meta["dtype"]`.
    """
    to_cpu = device_swap(torch.device("cuda"), CPU)
    children = {name: bare(child) for name, child in module.named_children() if isinstance(child, GraphModule)}
    graph = Graph()
    outputs = graph.graph_copy(module.graph, {})
    graph.output(outputs)
    for node in graph.nodes:
        value = node.meta.get("val")
        node.meta = {"dtype": value.dtype} if isinstance(value, torch.Tensor) else {}
        swap_devices(node, to_cpu)
    copied = GraphModule(module, graph)
    for name, child in children.items():
        setattr(copied, name, child)
    return copied


def mutated_inputs(module: GraphModule) -> dict[str, str]:
    """The inputs that a graph writes with a final `copy_`: input name -> name of the node copied to it."""
    copies = module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return {node.args[0].name: node.args[1].name for node in copies if node.args[0].op == "placeholder"}
