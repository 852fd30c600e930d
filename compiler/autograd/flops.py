"""Floating-point operations of a node of an FX graph that is at hand (`compiler.binary.formulas` counts them)."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from compiler.binary import formulas
from compiler.torch_api import fx


def flops_of(node: Node) -> int:
    """Floating-point operations of one call; 0 where a size is symbolic."""
    tensors = {source.name: facts for source in node.all_input_nodes for facts in _tensors(fx.value_of(source))[:1]}
    arguments = [*map(repr, node.args), *(f"{name}={value!r}" for name, value in node.kwargs.items())]
    code = f"{node.name} = call({', '.join(arguments)})"
    outputs = tuple(_tensors(fx.value_of(node)))
    return formulas.flops_of(formulas.Node(node.name, fx.target_name(node), outputs, tensors, code))


def _tensors(value: Any) -> list[formulas.TensorFacts]:
    if isinstance(value, tuple | list):
        return [facts for item in value for facts in _tensors(item)]
    attrs = fx.tensor_attrs(value)
    return [formulas.TensorFacts(attrs["dtype"], tuple(attrs["shape"]))] if attrs else []
