"""Replace one-element constants in a captured graph, such as `torch.tensor(2.0, device="cuda")`, by aten.full.

torch traces a constant as a CPU tensor attribute of the graph, a copy (aten.lift_fresh_copy), and a move to its device.
A graph for a GPU would then contain CPU work, which CUDA graphs reject. As the value is known, aten.full can make the
tensor on the device of its users. Inductor does the same (torch._inductor.graph.GraphLowering.get_attr, and
torch._inductor.fx_passes.post_grad.ConstructorMoverPass).
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compiler.torch_api.fake_tensors import FakeTensor, unset_fake_temporarily
from compiler.torch_api.fx import value_of

_aten = torch.ops.aten
_FULL = _aten.full.default
_MOVES = (torch.ops.prims.device_put.default, _aten._to_copy.default)


def with_known_constants(module: GraphModule) -> None:
    """Replace one-element constants by aten.full, in place. Nodes keep their names."""
    changed = [node for node in module.graph.nodes if _becomes_known(module, node)]
    for node in changed:
        for user in list(node.users):
            _replace_move(node, user)
        if not node.users:
            module.graph.erase_node(node)
        elif len(devices := set(_devices_of_users(node))) == 1:
            _set_device(node, devices.pop())
    if changed:
        module.recompile()


def _becomes_known(module: GraphModule, node: Node) -> bool:
    """Turn a copy of a constant into aten.full if it is one real element on the CPU; returns whether it did."""
    if node.target != torch.ops.aten.lift_fresh_copy.default:
        return False
    held, value = node.args[0], value_of(node)
    if not isinstance(held, Node) or held.op != "get_attr" or not isinstance(value, torch.Tensor):
        return False
    constant = attrgetter(str(held.target))(module)
    if isinstance(constant, FakeTensor) or constant.device.type != "cpu":
        return False
    if constant.numel() != 1 or constant.requires_grad or constant.is_complex():
        return False
    with unset_fake_temporarily():
        number = constant.item()
    _make_full(node, (list(value.shape), number), value)
    if not held.users:
        module.graph.erase_node(held)
    return True


def _make_full(node: Node, args: Any, value: torch.Tensor) -> None:
    node.target, node.args, node.kwargs = _FULL, args, {"dtype": value.dtype, "device": value.device}


def _replace_move(node: Node, move: Node) -> None:
    """Turn a node that moves the constant to another device into aten.full on that device."""
    value = value_of(move)
    if move.target in _MOVES and value.dtype == value_of(node).dtype and "memory_format" not in move.kwargs:
        _make_full(move, node.args, value)


def _devices_of_users(node: Node) -> Iterator[torch.device]:
    """The devices that the constant's users compute on.

    The graph's output counts as the constant's own device.
    """
    for user in node.users:
        value = value_of(user)
        yield value.device if isinstance(value, torch.Tensor) else value_of(node).device


def _set_device(node: Node, device: torch.device) -> None:
    value = value_of(node)
    if value.device == device:
        return
    with value.fake_mode:
        node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    node.meta.pop("tensor_meta", None)
    node.kwargs = {**node.kwargs, "device": device}
