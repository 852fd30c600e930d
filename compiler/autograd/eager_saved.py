"""What eager autograd would keep of a captured graph: it runs on tensors without data, and what is saved is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule

from compiler.torch_api import fx


@dataclass(frozen=True, slots=True)
class EagerSaved:
    """What `grad_fn` nodes save, each memory counted once. `activation_bytes` leave out inputs of the graph."""

    tensors: int
    saved_bytes: int
    activation_bytes: int


def saved_by_eager(captured: GraphModule) -> EagerSaved:
    """Count what a forward call of this graph saves. Nothing is computed, and nothing of the user's is changed.

    Hooks: torch.autograd.graph.saved_tensors_hooks. Raises what an operation raises that can't run without data.
    """
    examples = [fx.value_of(node) for node in captured.graph.nodes if node.op == "placeholder"]
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(fx.memory_of(tensor), tensor)
        return tensor

    with fx.fake_mode(examples), torch.enable_grad():
        inputs = [_fresh(value) for value in examples]
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            results = captured(*inputs)
        given = {fx.memory_of(value) for value in inputs if isinstance(value, torch.Tensor)}
    sizes = {memory: _bytes(tensor) for memory, tensor in kept.items()}
    del results
    return EagerSaved(len(sizes), sum(sizes.values()), sum(size for key, size in sizes.items() if key not in given))


def _fresh(value: Any) -> Any:
    """A leaf of its own: what the graph changes in place is this one."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _bytes(tensor: torch.Tensor) -> int:
    size = tensor.untyped_storage().nbytes()
    return size if isinstance(size, int) else 0
