"""Whether 32 bits are enough to count a graph's elements: of symbolic sizes by guards, which torch checks at calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from compiler.torch_api.fx import value_of


def is_below(module: GraphModule, limit: int) -> bool:
    """Whether no tensor of a graph reaches over `limit` elements, in calls that the compiled graph is for.

    Guards are added for that where they have to be, the farthest reach first: it often implies the others. It is False
    where no guard can be had: for sizes that only the data tell, or once the guards are settled.
    """
    reaches = {str(reach): reach for node in module.graph.nodes for reach in _reaches(value_of(node))}
    symbolic = [reach for reach in reaches.values() if isinstance(reach, torch.SymInt)]
    if any(reach > limit for reach in reaches.values() if isinstance(reach, int)):
        return False
    hints = {str(reach): reach.node.hint for reach in symbolic}
    if any(hint is None or hint > limit for hint in hints.values()):
        return False
    if any(reach.node.shape_env.frozen for reach in symbolic):
        return False
    symbolic.sort(key=lambda reach: -hints[str(reach)])
    return all(bool(reach <= limit) for reach in symbolic)


def _reaches(value: Any) -> Iterator[Any]:
    """Of each tensor one more than the offset of its last element, and how many elements it has."""
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            yield tensor.numel()
            if not tensor.is_contiguous():
                yield 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
