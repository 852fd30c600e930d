"""Partition a joint graph into forward and backward: save random numbers, merge equal nodes, find the minimum cut.

torch's own pass for equal nodes (torch._functorch.compile_utils.fx_graph_cse) follows the same rules, but imports
Inductor's lowerings to find the nodes that mutate memory, which takes most of a second in a first call.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from compiler.torch_api.aot import merges_equal_nodes, min_cut_partition
from compiler.torch_api.decomposition_tables import is_mutable, is_operator, is_random
from compiler.torch_api.fake_tensors import has_storage
from compiler.torch_api.fx import value_of
from compiler.torch_api.patching import replace_attribute
from compiler.torch_api.pytrees import tree_leaves

_NUMBERS = (operator.add.__module__, math.sqrt.__module__)
"""Modules of Python functions in graphs: arithmetic on symbolic sizes, and getitem."""


def partition(joint: GraphModule, inputs: Any, **options: Any) -> Any:
    """Run torch's min-cut partitioner, and save random numbers even if everything else is recomputed."""
    for node in joint.graph.nodes:
        if is_random(node.target):
            for made in (node, *(user for user in node.users if user.target is operator.getitem)):
                made.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    joint.graph.eliminate_dead_code()
    if merges_equal_nodes():
        merge_equal_nodes(joint)
    with use_quick_cut():
        return min_cut_partition(joint, inputs, **options)


def merge_equal_nodes(module: GraphModule) -> None:
    """Replace later equal nodes by the first one (common subexpression elimination).

    Never merged: random numbers, uninitialised memory, nodes with a possible mutation between them, and values that
    share storage with an output, which the caller may mutate.
    """
    outputs = map(value_of, module.graph.output_node().all_input_nodes)
    returned = {storage for value in outputs for storage in _storages(value)}
    first: dict[Any, Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if not _is_pure(node.target):
            if not is_operator(node.target) or is_mutable(node.target):
                first.clear()
            continue
        if not returned.isdisjoint(_storages(value_of(node))):
            continue
        known = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if known is not node:
            node.replace_all_uses_with(known)
            module.graph.erase_node(node)


def _is_pure(target: Any) -> bool:
    if not is_operator(target):
        return getattr(target, "__module__", "") in _NUMBERS
    return not (is_random(target) or is_mutable(target) or "empty" in str(target))


def _storages(value: Any) -> Iterator[int]:
    """Ids of the storages of the tensors in a value."""
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor) and has_storage(tensor):
            yield tensor.untyped_storage()._cdata


@contextmanager
def use_quick_cut() -> Iterator[None]:
    """Let `networkx.minimum_cut` use a faster algorithm in the block: the same cuts in a third of the time.

    Most edges of the partitioner's graph have infinite capacity. Boykov and Kolmogorov's algorithm, which searches from
    both ends, suits it better than networkx's default. Does nothing if the function was already replaced.
    """
    import networkx  # the import takes most of a tenth of a second, and inference does not need it

    def quick(found: Callable[..., Any]) -> Callable[..., Any]:
        if found is not networkx.algorithms.flow.minimum_cut:
            return found
        return partial(found, flow_func=networkx.algorithms.flow.boykov_kolmogorov)

    with replace_attribute(networkx, "minimum_cut", quick):
        yield
