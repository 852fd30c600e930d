"""Summary of a tensor for display: norm, range, counts of zeros, NaN and infinities; all numbers if it is small."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from compiler.torch_api.fx import dtype_name

SHOWN = 64
"""Maximum number of elements of a tensor shown as numbers."""


@dataclass(frozen=True, slots=True)
class Value:
    """Summary of a tensor. `numbers` is a number or nested tuples of numbers, None for a large tensor.

    `norm` is the 2-norm. `low` and `high` are the minimum and maximum. `zeros`, `nans` and `infinite` count elements.
    """

    dtype: str
    shape: tuple[int, ...]
    norm: float
    low: float
    high: float
    zeros: int
    nans: int
    infinite: int
    numbers: Any = None

    @classmethod
    def of_tensor(cls, tensor: torch.Tensor, shown: int = SHOWN) -> Value:
        """Summarize a tensor without keeping it."""
        with torch.no_grad():
            return cls._of_dense(tensor.detach(), shown)

    @classmethod
    def _of_dense(cls, tensor: torch.Tensor, shown: int) -> Value:
        dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
        count = dense.numel()
        real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
        real = real.permute(sorted(range(real.dim()), key=lambda dim: -real.stride()[dim]))  # memory order: much faster
        wide = real if real.dtype in (torch.float32, torch.float64) else real.double()
        norm = float(torch.linalg.vector_norm(wide)) if count else 0.0
        low, high = (float(each) for each in wide.aminmax()) if count else (0.0, 0.0)
        # A finite norm implies finite elements; the norm of finite elements may still overflow.
        nans = 0 if math.isfinite(norm) else int(wide.isnan().sum())
        infinite = 0 if math.isfinite(norm) else int(wide.isinf().sum())
        numbers = _tuples(dense.tolist()) if count <= shown else None
        zeros = count - int((dense if dense.is_complex() else real).count_nonzero())
        dtype = dtype_name(dense.dtype)
        return cls(dtype, tuple(dense.shape), norm, low, high, zeros, nans, infinite, numbers)

    def transpose(self) -> Value:
        """The summary of the transposed matrix."""
        rows = self.numbers
        is_matrix = rows is not None and len(self.shape) == 2
        return replace(self, shape=self.shape[::-1], numbers=tuple(zip(*rows, strict=True)) if is_matrix else rows)

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def is_finite(self) -> bool:
        return not self.nans and not self.infinite


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
