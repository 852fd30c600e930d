"""FlexAttention: its block masks; for a GPU that is not here, its Python code treats CPU tensors as a GPU's."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import torch
import torch.nn.attention.flex_attention as flex
from torch.fx import GraphModule, Node

from compiler.torch_api import fx
from compiler.torch_api.patching import call_before, replace_attribute

_OPERATOR = importlib.import_module("torch._higher_order_ops.flex_attention")  # the package has the operator's name

_ASKING = tuple(cast("FunctionType", each) for each in (flex._validate_device, flex._apply_kernel_options))
"""The functions that compare the tensors' device with "cpu", to refuse a backward and auxiliary outputs."""


_OWN_CODE = tuple(function.__code__ for function in _ASKING)


@contextmanager
def attend_as_on(device: str) -> Iterator[None]:
    """Let `flex_attention` take CPU tensors for those of a "cuda" or "cpu" device in the block.

    On a GPU it has a backward and all auxiliary outputs. TorchDynamo traces these functions and guards on them: with
    another constant in their code, they remain torch's own.
    """
    before = [function.__code__ for function in _ASKING]
    for function, code in zip(_ASKING, _OWN_CODE, strict=True):
        constants = (None if constant == "cpu" else constant for constant in code.co_consts)
        function.__code__ = code if device == "cpu" else code.replace(co_consts=tuple(constants))
    try:
        yield
    finally:
        for function, code in zip(_ASKING, before, strict=True):
            function.__code__ = code


def attend_without_compiling() -> AbstractContextManager[None]:
    """Let eager `flex_attention` run its formula in the block: it compiles itself, which fails in a dispatch mode."""
    return replace_attribute(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", lambda _: True)


@dataclass(frozen=True, slots=True)
class MaskTensors:
    """A block mask of one call: for each row of blocks, the numbers and indices of partial and of full blocks."""

    queries: int
    keys: int
    block: tuple[int, int]
    partial: tuple[torch.Tensor, torch.Tensor]
    full: tuple[torch.Tensor, torch.Tensor] | None

    @classmethod
    def of_argument(cls, mask: Sequence[Any]) -> MaskTensors | None:
        """The mask that the operator is given; None if it is no mask, as then one block holds everything."""
        queries, keys, counts, indices, full_counts, full_indices = mask[:6]
        block = (int(mask[-3]), int(mask[-2]))
        if block[0] >= flex._LARGE_SPARSE_BLOCK_SIZE or not all(map(_is_plain, (counts, indices))):
            return None
        full = (full_counts, full_indices) if _is_plain(full_counts) and _is_plain(full_indices) else None
        return cls(int(queries), int(keys), block, (counts, indices), full)


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.device.type != "meta"


def watch_block_masks(noted: list[MaskTensors | None]) -> AbstractContextManager[None]:
    """Note the block mask of each call of the operator that runs uncompiled in the block, in order."""

    def note(*args: Any, **_kwargs: Any) -> None:
        noted.append(MaskTensors.of_argument(args[4]))

    return replace_attribute(_OPERATOR, "math_attention", call_before(note))


def attention_calls(module: GraphModule) -> list[tuple[str, Node]]:
    """The calls of FlexAttention in a graph and in its bodies, with qualified names, in the order of execution."""
    return list(_calls_in(module, ""))


def _calls_in(module: GraphModule, path: str) -> Iterator[tuple[str, Node]]:
    for node in fx.calls(module):
        if node.target is _OPERATOR.flex_attention:
            yield fx.qualified_name(path, node.name), node
            continue
        for holder in node.all_input_nodes:
            if (body := fx.body_at(module, holder)) is not None:
                yield from _calls_in(body, fx.qualified_name(path, holder.name))


def given_mask(node: Node, arguments: Sequence[Any]) -> MaskTensors | None:
    """The block mask of a call whose tensors are all inputs of the graph, from the graph's arguments; else None."""
    inputs = dict(zip(node.graph.find_nodes(op="placeholder"), arguments, strict=False))
    mask: Any = node.args[4]
    values = [inputs.get(value) if isinstance(value, Node) else value for value in mask]
    return MaskTensors.of_argument(values) if all(isinstance(value, int) for value in values[:2]) else None
