"""Nodes of a graph that call the same operator with the same arguments, made one before the graph is divided.

torch's own pass for that (torch._functorch.compile_utils.fx_graph_cse) imports Inductor's lowerings, to ask which nodes
change memory: most of a second of a first call. What is kept apart here is the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from compiler.torch_api.decomposition_tables import is_mutable, is_operator, is_random
from compiler.torch_api.fx import value_of

_NUMBERS = (operator.add.__module__, math.sqrt.__module__)
"""Modules of functions that compute with symbolic sizes, and take a result out of several."""


def without_repeats(module: GraphModule) -> None:
    """Whoever reads a later one of equal nodes reads the first one, and the later one goes. Not for random numbers, nor
    for memory that is not set; nor across a node that changes memory, or of which that is not known; nor for what the
    graph returns, which are tensors of their own, and whose memory the caller may change.
    """
    outputs = map(value_of, module.graph.output_node().all_input_nodes)
    returned = {storage for value in outputs for storage in _of(value)}
    first: dict[Any, Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if not _is_pure(node.target):
            if not is_operator(node.target) or is_mutable(node.target):
                first.clear()
            continue
        if not returned.isdisjoint(_of(value_of(node))):
            continue
        known = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if known is not node:
            node.replace_all_uses_with(known)
            module.graph.erase_node(node)


def _is_pure(target: Any) -> bool:
    if not is_operator(target):
        return getattr(target, "__module__", "") in _NUMBERS
    return not (is_random(target) or is_mutable(target) or "empty" in str(target))


def _of(value: Any) -> Iterator[int]:
    """The storages of the tensors in a value."""
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor) and torch._C._has_storage(tensor):
            yield tensor.untyped_storage()._cdata
