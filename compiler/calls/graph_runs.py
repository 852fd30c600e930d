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
"""Called with a node and a function that computes its value; returns the value to use."""


class HookedInterpreter(Interpreter):
    """Runs a graph in eager mode, with hooks around each node; the first hook is the outermost."""

    def __init__(self, module: GraphModule, *hooks: Hook) -> None:
        super().__init__(module)
        self.extra_traceback = False  # it would be added to the message of the user's error
        self._hooks = hooks

    def run_node(self, n: Node) -> Any:
        return self.run_hooked(n, partial(super().run_node, n))

    def run_hooked(self, node: Node, run: Callable[[], Any]) -> Any:
        """Compute a node's value by `run`, inside the hooks."""
        for hook in reversed(self._hooks):
            run = partial(hook, node, run)
        return run()


def keep_values(into: dict[str, Any], wanted: Collection[str] | None = None) -> Hook:
    """A hook that stores copies of node values in `into`, by name: of all nodes, or of those in `wanted`."""

    def keep(node: Node, run: Callable[[], Any]) -> Any:
        value = run()
        if wanted is None or node.name in wanted:
            into[node.name] = tree_map(copy_to_cpu, value)
        return value

    return keep


def copy_to_cpu(value: Any) -> Any:
    """Copy a tensor to the CPU, with its layout; return other values unchanged."""
    return copy_tensor(value.detach().cpu()) if isinstance(value, Tensor) else value


def copy_tensor(tensor: Tensor) -> Tensor:
    """A detached copy of a tensor, with the same strides unless elements overlap in memory."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_conj() or 0 in tensor.stride():
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
