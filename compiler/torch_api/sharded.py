"""Tensors that wrap others: DTensor, of which each rank holds a part, and other tensor subclasses."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def inner_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor in which a wrapper keeps its data: of a DTensor, the part of this rank."""
    inner: Any = tensor
    while is_traceable_wrapper_subclass(inner):
        names, _ = inner.__tensor_flatten__()
        inner = getattr(inner, names[0])
    found: torch.Tensor = inner
    return found


def holds_dtensor(values: Iterable[Any]) -> bool:
    """Whether a DTensor is among the values."""
    module = sys.modules.get("torch.distributed.tensor")  # where it is not imported, there is none
    return module is not None and any(isinstance(value, module.DTensor) for value in values)
