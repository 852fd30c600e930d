"""Run an FX graph node by node, with hooks around each node."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from compiler.torch_api.pytrees import tree_map

Hook = Callable[[Node, Callable[[], Any]], Any]
"""Given a node and what computes its value; returns the value to go on with."""


class HookedInterpreter(Interpreter):
    """Runs a graph as eager would; the first hook is the outermost around each node."""

    def __init__(self, module: GraphModule, *hooks: Hook) -> None:
        super().__init__(module)
        self.extra_traceback = False  # it would be put into the message of the user's error
        self._hooks = hooks

    def run_node(self, n: Node) -> Any:
        return self.run_hooked(n, partial(super().run_node, n))

    def run_hooked(self, node: Node, run: Callable[[], Any]) -> Any:
        """The value that `run` computes for a node, with the hooks around it."""
        for hook in reversed(self._hooks):
            run = partial(hook, node, run)
        return run()


def keep_values(into: dict[str, Any], wanted: Collection[str] | None = None) -> Hook:
    """Keep copies of the values of nodes in `into`, by name: those that are `wanted`, or all."""

    def keep(node: Node, run: Callable[[], Any]) -> Any:
        value = run()
        if wanted is None or node.name in wanted:
            into[node.name] = tree_map(copy_to_cpu, value)
        return value

    return keep


def copy_to_cpu(value: Any) -> Any:
    """A copy of a tensor with its layout, on the CPU; other values as they are."""
    return copy_tensor(value.detach().cpu()) if isinstance(value, Tensor) else value


def copy_tensor(tensor: Tensor) -> Tensor:
    """A detached copy of a tensor, with the same strides where each element has its own place in memory."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_conj() or 0 in tensor.stride():
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
