"""Decompositions that take the place of torch's where those fail in a version that we support.

torch 2.11's of `index_fill` writes into an empty tensor where the input does not lie in row-major order. AOTAutograd
refuses a graph with such a write, Inductor's too. Its norm along dimensions of one element leaves out none that is
counted from the end. Its fake kernels of the scatters below say strides of 0 for what they write into an expanded
tensor: the real ones give memory in which each element has a place of its own, and so do we, before they are called.

Zeros without memory, with which forward derivatives begin, are zeros in memory in all versions: kernels read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch._refs import linalg
from torch.fx.experimental.symbolic_shapes import statically_known_true

_aten = torch.ops.aten


def _filled(x: torch.Tensor, dim: int, rows: torch.Tensor, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    wide = x if x.dim() else x.unsqueeze(0)
    index = (None,) * (dim % wide.dim()) + (rows,)
    found: torch.Tensor = _aten.index_put(wide, index, value.to(x.dtype))
    return found if x.dim() else found.squeeze(0)


def _norm(x: torch.Tensor, order: float = 2, dim: list[int] | None = None, *rest: Any, **named: Any) -> torch.Tensor:
    from_the_front = dim and [one % max(x.dim(), 1) for one in dim]
    found: torch.Tensor = linalg.vector_norm(x, order, from_the_front, *rest, **named)
    return found


def _scattered(scatter: Callable[..., Any], x: torch.Tensor, *rest: Any, **named: Any) -> Any:
    """NotImplemented, for the operator itself, but where elements share memory along a dimension."""
    pairs = zip(x.shape, x.stride(), strict=True)
    if all(statically_known_true(size == 1) or not statically_known_true(stride == 0) for size, stride in pairs):
        return NotImplemented
    return scatter(x.clone(memory_format=torch.contiguous_format), *rest, **named)


def _numbers(x: torch.Tensor, *given: Any, **named: Any) -> Any:
    """`nan_to_num`. NotImplemented, for the operator itself, of complex numbers, and where x's dtype does not hold what
    takes their place: torch's steps have an error then, eager mode has infinity.
    """
    numbers = [one for one in (*given, *named.values()) if one is not None and math.isfinite(one)]
    if x.is_complex() or (x.is_floating_point() and any(abs(one) > torch.finfo(x.dtype).max for one in numbers)):
        return NotImplemented
    return torch._refs.nan_to_num(x, *given, **named)


_SCATTERS = (_aten.select_scatter.default, _aten.slice_scatter.default, _aten.diagonal_scatter.default)
MENDED: Mapping[Any, Callable[..., Any]] = {
    _aten.index_fill.int_Scalar: _filled,
    _aten.index_fill.int_Tensor: _filled,
    _aten.linalg_vector_norm.default: _norm,
    _aten.nan_to_num.default: _numbers,
    _aten._efficientzerotensor.default: torch.zeros,
    **{scatter: partial(_scattered, scatter) for scatter in _SCATTERS},
}
