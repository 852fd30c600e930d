"""A kernel's computation in float32 from inputs to stores, without eager's rounding.

Eager PyTorch rounds every intermediate of a 16-bit model to 16 bits; a fused kernel rounds once, when it stores. A
comparison (`random > 0.1`) may then fall on the other side, which is no mistake of the kernel's. This is the part of
the FX graph between what a kernel reads and what it stores, in float32. Inductor does round before some conversions to
float32 that the graph asks for, and not before others: both are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

HALF = (torch.bfloat16, torch.float16)


class Unrounded:
    """Computes nodes of a graph from values of others; `compute` runs a node on arguments."""

    def __init__(self, module: GraphModule, compute: Callable[[Node, Any, Any], Any]) -> None:
        self._nodes = {node.name: node for node in module.graph.nodes}
        self._compute = compute

    def values(self, name: str, known: Mapping[str, Any]) -> list[Tensor]:
        """The node's value from `known` ones, in both ways; none where it can't be computed."""
        found = (self._value_from(name, known, rounds) for rounds in (False, True))
        return [value for value in found if value is not None]

    def _value_from(self, name: str, known: Mapping[str, Any], rounds: bool) -> Tensor | None:
        node = self._nodes.get(name)
        if node is None:
            return None
        values = {key: _widen(value) for key, value in known.items() if key != name}
        try:
            computed = self._value(node, values, rounds)
        except (KeyError, RuntimeError, TypeError, NotImplementedError, RecursionError):
            return None
        return computed if isinstance(computed, Tensor) else None

    def _value(self, node: Node, values: dict[str, Any], rounds: bool) -> Any:
        if node.name not in values:
            if node.op == "placeholder":
                raise KeyError(node.name)
            for source in node.all_input_nodes:
                self._value(source, values, rounds)
            before = _round_as_eager if rounds and _widens(node) else _as_it_is

            def given_value(source: Node) -> Any:
                return before(source, values[source.name])

            args, kwargs = map_arg(node.args, given_value), map_arg(node.kwargs, given_value)
            values[node.name] = _widen(self._compute(node, _wide_formats(args), _wide_formats(kwargs)))
        return values[node.name]


def _widens(node: Node) -> bool:
    return node.target is torch.ops.prims.convert_element_type.default and node.args[1] not in HALF


def _round_as_eager(source: Node, value: Any) -> Any:
    dtype = source.meta.get("dtype")
    return value.to(dtype).float() if dtype in HALF and isinstance(value, Tensor) else value


def _as_it_is(_source: Node, value: Any) -> Any:
    return value


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def _wide_formats(arguments: Any) -> Any:
    """Arguments with float32 in place of 16-bit dtypes: nothing is rounded on the way."""
    if isinstance(arguments, tuple | list):
        return type(arguments)(_wide_formats(argument) for argument in arguments)
    if isinstance(arguments, dict):
        return {name: _wide_formats(argument) for name, argument in arguments.items()}
    return torch.float32 if arguments in HALF else arguments
