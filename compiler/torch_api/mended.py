"""Decompositions that take the place of torch's where those fail in a version that we support.

torch 2.11's of `index_fill` writes into an empty tensor where the input does not lie in row-major order. AOTAutograd
refuses a graph with such a write, Inductor's too. Its norm along dimensions of one element leaves out none that is
counted from the end. Its fake kernels of the scatters below say strides of 0 for what they write into an expanded
tensor: the real ones give memory in which each element has a place of its own, and so do we, before they are called.

Decompositions of `roll`, `channel_shuffle` and `max_unpool2d` give what lies in row-major order, in all versions, where
the CPU's kernels keep channels last. Zeros without memory, with which forward derivatives begin, are zeros in memory:
kernels read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch._refs as refs
from torch._decomp.decompositions import max_unpool2d
from torch._prims_common import suggest_memory_format
from torch._refs import linalg
from torch._refs.nn import functional
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


def _in_format(decomposition: Callable[..., torch.Tensor], x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    """Channels last on a CPU where the input is."""
    found = decomposition(x, *rest, **named)
    return found.contiguous(memory_format=suggest_memory_format(x)) if x.device.type == "cpu" else found


def _rolled(x: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:
    return _in_format(refs.roll, x, shifts, dims) if dims else refs.roll(x, shifts)


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
    return refs.nan_to_num(x, *given, **named)


_SCATTERS = (_aten.select_scatter.default, _aten.slice_scatter.default, _aten.diagonal_scatter.default)
MENDED: Mapping[Any, Callable[..., Any]] = {
    _aten.index_fill.int_Scalar: _filled,
    _aten.index_fill.int_Tensor: _filled,
    _aten.linalg_vector_norm.default: _norm,
    _aten.nan_to_num.default: _numbers,
    _aten._efficientzerotensor.default: torch.zeros,
    _aten.roll.default: _rolled,
    _aten.channel_shuffle.default: partial(_in_format, functional.channel_shuffle),
    _aten.max_unpool2d.default: partial(_in_format, max_unpool2d),
    **{scatter: partial(_scattered, scatter) for scatter in _SCATTERS},
}
