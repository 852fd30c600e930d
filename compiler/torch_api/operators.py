"""Operators defined with torch.library: declare effects, detect mutation, and remove from the registry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._library.custom_ops import OPDEF_TO_LIB, CustomOpDef

from compiler.torch_api.pytrees import tree_leaves

EFFECT = "torch._library.effects.EffectType.ORDERED"
"""Argument of `register_effect`, as code, for an operator that always runs, and in program order."""


def forbid_mutation(values: Iterable[Any]) -> None:
    """Make custom operators among the values raise RuntimeError if they change an argument."""
    for value in values:
        if isinstance(value, CustomOpDef) and _takes_tensors(value):
            value.register_kernel("cpu")(_without_mutation(value._init_fn))
            value.register_kernel("cuda")(_without_mutation(value._init_fn))


def _takes_tensors(operator: CustomOpDef) -> bool:
    return any("Tensor" in str(argument.type) for argument in operator._opoverload._schema.arguments)


def _without_mutation(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        before = [tensor.clone() for tensor in tensors]
        value = function(*args, **kwargs)
        for old, new in zip(before, tensors, strict=True):
            if old.shape != new.shape or not torch.equal(old.nan_to_num(), new.nan_to_num()):
                raise RuntimeError("the operator changes an argument in place")
        return value

    return run


def forget_operators(values: Iterable[Any]) -> None:
    """Remove custom operators among the values from torch's registry."""
    for value in values:
        if isinstance(value, CustomOpDef):
            library: torch.library.Library | None = OPDEF_TO_LIB.pop(value._qualname, None)
            if library is not None:
                library._destroy()
