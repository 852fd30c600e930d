"""Why a higher-order operator stays a call of PyTorch, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from compiler.record.plain_text import size_text
from compiler.torch_api.fx import value_of

_AGAIN = "a loop in Python launches each operation of the body again for every"
_COSTS = {
    "cond": "Python reads the predicate on the host, which waits for a GPU",
    "while_loop": f"{_AGAIN} iteration, and reads the condition on the host, which waits for a GPU",
    "while_loop_stack_output": f"{_AGAIN} iteration, and reads the condition on the host, which waits for a GPU",
    "scan": f"{_AGAIN} step",
    "map_impl": f"{_AGAIN} row",
    "invoke_subgraph": "each operation of the body is a launch",
}


def reason_for_call(node: Node, name: str, bodies: Sequence[str]) -> str:
    """The words of the decision for a higher-order operator that PyTorch runs with these bodies."""
    inside = f"PyTorch runs it, and in it {' and '.join(bodies)}, where nothing is fused"
    cost = _cost_of_scores(node) if name.startswith("flex_attention") else _COSTS.get(name)
    return f"{inside}: {cost}" if cost else inside


def _cost_of_scores(node: Node) -> str:
    """The memory of FlexAttention's dense formula, which has a score for each query and key."""
    query, key = (value_of(argument) for argument in node.args[:2] if isinstance(argument, Node))
    shape = (*query.shape[:3], key.shape[2])
    width = 8 if query.dtype == torch.float64 else 4
    is_known = all(isinstance(size, int) for size in shape)
    size = f" ({size_text(width * torch.Size(shape).numel())})" if is_known else ""
    return f"its dense formula puts all {'×'.join(map(str, shape))} scores in memory{size}, those of empty blocks too"
