"""Change a graph to memory layouts that a GPU's libraries prefer, by propagating strides through fake tensors.

cuDNN's fast convolutions read and write channels-last memory. A convolution's image and weight are copied to that
layout if needed, and later values keep it until the original strides are required. The copy is saved for the
backward. Results of matmuls with padded rows keep their layout too, so that saved values and views of these results
are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from compiler.torch_api import fx
from compiler.torch_api.aot import TracingContext

aten = torch.ops.aten
_CONVOLUTIONS = _FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default
_MATMULS = aten.mm.default, aten.addmm.default
_FREE = frozenset({*_CONVOLUTIONS, *_MATMULS, aten.bmm.default})
_MOST_NODES = 300
_FEW_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class Rules:
    """The compiler's rules for layouts.

    `is_loop` says whether an operator, by name, becomes a loop, which reads arguments with any strides. `pitch` is the
    stride between rows of a matmul's result, in elements; 0 means no padding.
    """

    is_loop: Callable[[str], bool]
    pitch: Callable[[Node], int]


def with_layouts(module: GraphModule, inputs: Sequence[Any], name: str, rules: Rules, device: str = "cuda") -> int:
    """Change layouts in a graph for a GPU, if that makes its convolutions faster or its matmuls are padded.

    `inputs` are its fake inputs; saved tensors have the strides that the forward gave them. Returns the number of
    values whose strides changed.
    """
    layout = _Layout(module.graph, rules)
    with fx.fake_mode(inputs):
        for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
            if isinstance(value, torch.Tensor):
                layout.keep(node, value)
        pictures = any(value.dim() > 3 for value in layout.before.values())
        layout.turns = pictures or _gains([*_calls_of(module.graph, *_CONVOLUTIONS)], len(module.graph.nodes), device)
        if layout.before or layout.turns or any(map(rules.pitch, _calls_of(module.graph, *_MATMULS))):
            for node in list(module.graph.nodes):
                layout.visit(node)
            layout.end(_saved_count(name))
            module.recompile()
    if (layout.before or layout.copies) and name.startswith("forward"):
        _report(module.graph)
    return len(layout.before)


def _calls_of(graph: Graph, *targets: Any) -> Iterator[Node]:
    for target in targets:
        yield from graph.find_nodes(op="call_function", target=target)


def _gains(convolutions: Sequence[Node], nodes: int, device: str) -> bool:
    """Whether channels-last memory makes a graph's convolutions faster.

    The rules are Inductor's (torch/_inductor/graph.py, decide_layout_opt).
    """
    weights = [_value(node, 1 if node.target is _FORWARD else 2) for node in convolutions]
    groups = [_value(node, 8 if node.target is _FORWARD else 9) for node in convolutions]
    if not weights or nodes >= _MOST_NODES * len(weights):
        return False
    if any(weight.dim() != 4 or weight.device.type != device for weight in weights):
        return False
    sizes = [size for weight in weights for size in weight.shape]
    sizes += [size for node in convolutions for size in _value(node, 0).shape]
    if any(isinstance(size, torch.SymInt) for size in sizes):
        return False
    if any(group > 1 and weight.shape[1] > 1 for group, weight in zip(groups, weights, strict=True)):
        return False
    return any(max(weight.shape[:2]) > _FEW_CHANNELS for weight in weights)


def _value(node: Node, place: int) -> Any:
    """The value of a node's argument: a fake tensor, or a number."""
    argument = node.args[place]
    return fx.value_of(argument) if isinstance(argument, Node) else argument


def _saved_count(name: str) -> int | None:
    """Number of outputs that must keep their strides: in a forward, those before the saved values; None for all."""
    context = TracingContext.try_get()
    if not name.startswith("forward") or context is None or context.fw_metadata is None:
        return None
    return int(context.fw_metadata.num_forward)


def _report(graph: Graph) -> None:
    """Report the strides of the forward's results to AOTAutograd, which compiles the backward for them."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides == []:
        results: Any = graph.output_node().args[0]
        values = [fx.value_of(output) if isinstance(output, Node) else None for output in results]
        strides = [tuple(value.stride()) if isinstance(value, torch.Tensor) else None for value in values]
        context.output_strides.extend(strides)


@dataclass(slots=True)
class _Layout:
    """A walk through a graph that changes layouts.

    turns   whether to copy convolutions' images and weights to channels-last memory
    before  old values of the nodes whose strides have changed
    copies  copies of nodes, by node and strides
    read    the copies that convolutions read
    """

    graph: Graph
    rules: Rules
    turns: bool = False
    before: dict[Node, Any] = field(default_factory=dict)
    copies: dict[tuple[Node, str], Node] = field(default_factory=dict)
    read: set[Node] = field(default_factory=set)

    def keep(self, node: Node, value: Any) -> None:
        """Set a node's new value if its strides differ from the old value's."""
        old = node.meta["val"]
        if _strides(old) != _strides(value):
            self.before[node] = old
            node.meta["val"] = value

    def visit(self, node: Node) -> None:
        if node.op != "call_function":
            return
        if node.target in _MATMULS and (pitch := self.rules.pitch(node)):
            value = fx.value_of(node)
            self.keep(node, value.new_empty_strided(value.shape, (pitch, 1)))
            return
        if self.turns and node.target in _CONVOLUTIONS:
            for place in range(2 if node.target is _FORWARD else 3):
                self.channels_last(node, place)
        if not any(source in self.before for source in node.all_input_nodes):
            if self.turns and node.target in _CONVOLUTIONS:
                self.keep(node, self.compute(node))
            return
        name = str(node.target)
        is_free = node.target in _FREE or name.startswith("<built-in function getitem") or self.rules.is_loop(name)
        if not is_free or "as_strided" in name:
            self.restore_format(node)
            return
        try:
            self.keep(node, self.compute(node))
        except (RuntimeError, ValueError):  # a view that is impossible with these strides
            self.restore_format(node)

    def compute(self, node: Node) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), fx.value_of)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def channels_last(self, node: Node, place: int) -> None:
        source = node.args[place]
        assert isinstance(source, Node)
        value = source.meta["val"]
        if not value.is_contiguous(memory_format=torch.channels_last):
            copy = self.copy_to_format(source, value.clone(memory_format=torch.channels_last), node)
            node.update_arg(place, copy)
            self.read.add(copy)

    def copy_to_format(self, source: Node, value: Any, user: Node) -> Node:
        """A copy of a node with the strides of `value`; the first time, insert it before `user`."""
        key = source, str(value.stride())  # symbolic sizes are not hashable
        if (known := self.copies.get(key)) is not None:
            return known
        with self.graph.inserting_before(user):
            copy = self.graph.call_function(aten.clone.default, (source,))
        copy.meta = {**source.meta, "val": value}
        self.copies[key] = copy
        return copy

    def restore_format(self, user: Node) -> None:
        """Make a node read copies with the original strides, in place of inputs whose strides changed."""
        for source in user.all_input_nodes:
            if source in self.before and isinstance(old := self.before[source], torch.Tensor):
                user.replace_input_with(source, self.copy_to_format(source, old, user))

    def end(self, kept: int | None) -> None:
        """Restore the strides of outputs that the caller sees: the first `kept`, or all if None.

        A saved tensor is replaced by the copy that a convolution reads, as the convolution's backward reads the copy
        again. Inputs are saved uncopied, which takes no memory.
        """
        output = self.graph.output_node()
        values = list(output.args[0])  # type: ignore[arg-type]
        copies = ((source, copy) for (source, _), copy in self.copies.items() if copy in self.read)
        last = {source: copy for source, copy in copies if source.op != "placeholder"}
        for place, source in enumerate(values):
            if kept is not None and place >= kept:
                values[place] = last.get(source, source)
            elif source in self.before:
                values[place] = self.copy_to_format(source, self.before[source], output)
        output.args = (tuple(values),)


def _strides(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_strides(item) for item in value]
    return (value.stride(), value.storage_offset()) if isinstance(value, torch.Tensor) else None
