"""Properties of operators by their schemas, and faster ways to call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.torch_api.bindings import direct_functions
from compiler.torch_api.decomposition_tables import is_operator, is_random


def written_arguments(op: Any) -> tuple[int | str, ...]:
    """Positions of the arguments that an operator mutates, or names if they are keyword-only."""
    if not is_operator(op):
        return ()
    return tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


_BOUND = (
    "mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
"""Operators whose Python binding takes exactly the operator's arguments; calling the binding is faster."""


def quick(op: Any) -> Callable[..., Any]:
    """The fastest callable for an operator: torch.mm for aten.mm.default, or else OpOverload's inner `_op`."""
    if not is_operator(op):
        return op
    name = op._schema.name.removeprefix("aten::")
    if name in _BOUND and not op._schema.overload_name:
        return getattr(direct_functions, name, op._op)
    return op._op


def returns_alias(op: Any) -> bool:
    """Whether an operator's results may share memory with an argument; true if it has no schema."""
    return not is_operator(op) or any(result.alias_info is not None for result in op._schema.returns)


def has_effect(op: Any) -> bool:
    """Whether calls of an operator must keep their order: it is random, mutates, returns nothing or has no schema."""
    return not is_operator(op) or is_random(op) or bool(op._schema.is_mutable) or not op._schema.returns
