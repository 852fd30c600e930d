"""Decompositions that take the place of torch's where those fail in a version that we support.

torch 2.11's of `index_fill` writes into an empty tensor where the input does not lie in row-major order. AOTAutograd
refuses a graph with such a write, Inductor's too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_aten = torch.ops.aten


def _filled(x: torch.Tensor, dim: int, rows: torch.Tensor, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    wide = x if x.dim() else x.unsqueeze(0)
    index = (None,) * (dim % wide.dim()) + (rows,)
    found: torch.Tensor = _aten.index_put(wide, index, value.to(x.dtype))
    return found if x.dim() else found.squeeze(0)


MENDED: Mapping[Any, Callable[..., Any]] = {
    _aten.index_fill.int_Scalar: _filled,
    _aten.index_fill.int_Tensor: _filled,
}
