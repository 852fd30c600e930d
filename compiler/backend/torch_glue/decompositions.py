"""Decompositions of our backend: most of Inductor's, and some of our own.

Random operators are functions of a seed and a counter. `prims.inductor_seed` draws the seed from PyTorch's generator of
the device; `prims.inductor_random` and `prims.inductor_randint` compute the numbers. Only the seed is drawn, and it is
saved, so that a backward that recomputes under activation checkpointing gets the forward's numbers.

Max pooling saves one byte per window for the backward: the index of the maximum in the window. The operators are
Inductor's. The partitioner knows that recomputing indices in the plane is cheaper than saving 8 bytes per window.
Inductor's own decomposition imports its lowerings, which is slow.

Other decompositions replace torch's, which fail in a supported version. torch 2.11's `index_fill` writes into an empty
tensor if the input is not row-major; AOTAutograd rejects a graph with such a write, also for Inductor. torch's norm
mishandles negative dimensions of size one. Torch's fake kernels of the scatters below report strides of 0 for writes
into an expanded tensor; the real kernels return memory without overlap, so the input is cloned first. Decompositions of
`roll`, `channel_shuffle` and `max_unpool2d` return row-major results in all versions, although the CPU's kernels keep
channels-last memory. Zero tensors without memory, which forward-mode AD starts with, get memory, as kernels read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from compiler.torch_api.decomposition_tables import table
from compiler.torch_api.references import (
    bucketize,
    channel_shuffle,
    inductor_prims,
    max_unpool2d,
    nan_to_num,
    roll,
    suggest_memory_format,
    vector_norm,
)

_aten, _prims = torch.ops.aten, torch.ops.prims
_RANDOM_OPERATORS = (
    "aten.native_dropout", "aten.bernoulli", "aten.rand_like", "aten.randn_like", "aten.randint_like", "aten.uniform",
    "aten.normal", "aten.exponential", "aten.cauchy", "aten.geometric", "aten.log_normal", "aten.rrelu_with_noise",
    "aten.multinomial", "aten.randint", "aten.rand", "aten.randn",
)  # fmt: skip
_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}


def _draw(size: Sequence[Any], device: Any, mode: str) -> torch.Tensor:
    where = torch.empty((), device=device).device
    found: torch.Tensor = inductor_prims.random(list(size), inductor_prims.seed(where), mode)
    return found


def _rand(size: Sequence[Any], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Any:
    """Uniform numbers in [0, 1); NotImplemented for float64, for which 24 random bits are too few.

    In low precision the numbers have as many random bits as in eager mode, since more bits could round to 1.
    """
    dtype = dtype or torch.get_default_dtype()
    if dtype not in _BITS:
        return NotImplemented
    found = _draw(size, device, "rand")
    steps = 2 ** _BITS[dtype]
    return found if dtype == torch.float32 else ((found * steps).floor() / steps).to(dtype)


def _randn(size: Sequence[Any], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    return _draw(size, device, "randn").to(dtype) if dtype in _BITS else NotImplemented


def _randint(
    low: Any, high: Any, size: Sequence[Any], *, dtype: torch.dtype = torch.int64, device: Any = None, **_: Any
) -> Any:
    if not (isinstance(low, int) and isinstance(high, int) and 0 < high - low < 2**31):
        return NotImplemented
    where = torch.empty((), device=device).device
    return inductor_prims.randint(low, high, list(size), inductor_prims.seed(where)).to(dtype)


def _bernoulli(x: torch.Tensor, p: float | None = None, *, generator: Any = None) -> Any:
    if generator is not None or not x.dtype.is_floating_point:
        return NotImplemented
    return (_draw(x.shape, x.device, "rand") < (x if p is None else p)).to(x.dtype)


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    if not train or not 0 < p < 1:
        return NotImplemented
    kept = _draw(x.shape, x.device, "rand") >= p
    return x * kept * (1 / (1 - p)), kept


def _uniform(x: torch.Tensor, start: float = 0.0, end: float = 1.0, generator: Any = None) -> Any:
    is_ours = generator is None and x.dtype in _BITS
    return torch.rand_like(x) * (end - start) + start if is_ours else NotImplemented


def _normal(x: torch.Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    is_ours = generator is None and x.dtype in _BITS
    return torch.randn_like(x) * std + mean if is_ours else NotImplemented


def _normal_of_shape(
    shape: Sequence[Any], *, mean: Any, std: Any, dtype: torch.dtype, device: Any, generator: Any = None, **_: Any
) -> Any:
    if generator is not None or dtype not in _BITS:
        return NotImplemented
    return (_draw(shape, device, "randn") * std + mean).to(dtype)


_RANDOM_NUMBERS: Mapping[Any, Callable[..., Any]] = {
    _aten.rand.default: _rand,
    _aten.randn.default: _randn,
    _aten.randint.low: _randint,
    _aten.randint.default: partial(_randint, 0),
    _aten.bernoulli.default: _bernoulli,
    _aten.bernoulli.p: _bernoulli,
    _aten.native_dropout.default: _dropout,
    _aten.uniform.default: _uniform,
    _aten.normal_functional.default: _normal,
    _prims.normal.default: _normal_of_shape,
}

LARGEST = 25
"""Maximum number of elements in a window; max pooling with larger windows is not decomposed."""


def _max_pool(
    rank: int, x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    """Maxima of windows and their indices in the plane; NotImplemented for large windows or symbolic parameters."""

    def each(value: Any) -> list[int]:
        values = [*value] if isinstance(value, Sequence) else [value]
        return values * rank if len(values) == 1 else values

    kernel, *geometry = each(kernel), each(stride or kernel), each(padding), each(dilation)
    if not all(isinstance(one, int) for values in (kernel, *geometry) for one in values) or math.prod(kernel) > LARGEST:
        return NotImplemented
    values, taps = inductor_prims._low_memory_max_pool_with_offsets(x, kernel, *geometry, ceil)
    return values, inductor_prims._low_memory_max_pool_offsets_to_indices(taps, kernel, x.shape[-rank:], *geometry)


_POOLING: Mapping[Any, Callable[..., Any]] = {
    _aten.max_pool2d_with_indices.default: partial(_max_pool, 2),
    _aten.max_pool3d_with_indices.default: partial(_max_pool, 3),
}


def _index_fill(x: torch.Tensor, dim: int, rows: torch.Tensor, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    wide = x if x.dim() else x.unsqueeze(0)
    index = (None,) * (dim % wide.dim()) + (rows,)
    found: torch.Tensor = _aten.index_put(wide, index, value.to(x.dtype))
    return found if x.dim() else found.squeeze(0)


def _vector_norm(
    x: torch.Tensor, order: float = 2, dim: list[int] | None = None, *rest: Any, **named: Any
) -> torch.Tensor:
    from_the_front = dim and [one % max(x.dim(), 1) for one in dim]
    found: torch.Tensor = vector_norm(x, order, from_the_front, *rest, **named)
    return found


def _in_format(decomposition: Callable[..., torch.Tensor], x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    """Run a decomposition; on a CPU, return the result in the input's memory format."""
    found = decomposition(x, *rest, **named)
    return found.contiguous(memory_format=suggest_memory_format(x)) if x.device.type == "cpu" else found


def _roll(x: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:
    return _in_format(roll, x, shifts, dims) if dims else roll(x, shifts)


def _scatter(scatter: Callable[..., Any], x: torch.Tensor, *rest: Any, **named: Any) -> Any:
    """Scatter into a clone if elements of `x` share memory; otherwise NotImplemented, which keeps the operator."""
    pairs = zip(x.shape, x.stride(), strict=True)
    if all(statically_known_true(size == 1) or not statically_known_true(stride == 0) for size, stride in pairs):
        return NotImplemented
    return scatter(x.clone(memory_format=torch.contiguous_format), *rest, **named)


def _nan_to_num(x: torch.Tensor, *given: Any, **named: Any) -> Any:
    """Decompose `nan_to_num`; NotImplemented if the decomposition would raise an error that eager mode does not.

    The cases: complex numbers, and replacements that x's dtype can't represent, which eager mode rounds to infinity.
    """
    numbers = [one for one in (*given, *named.values()) if one is not None and math.isfinite(one)]
    if x.is_complex() or (x.is_floating_point() and any(abs(one) > torch.finfo(x.dtype).max for one in numbers)):
        return NotImplemented
    return nan_to_num(x, *given, **named)


def _bucketize(x: torch.Tensor, boundaries: torch.Tensor, **named: Any) -> Any:
    """Decompose `bucketize` into a binary search; NotImplemented without boundaries, or if their number is symbolic."""
    count = boundaries.shape[0]
    return bucketize(x, boundaries, **named) if isinstance(count, int) and count else NotImplemented


_SCATTERS = (_aten.select_scatter.default, _aten.slice_scatter.default, _aten.diagonal_scatter.default)
_MENDED: Mapping[Any, Callable[..., Any]] = {
    _aten.index_fill.int_Scalar: _index_fill,
    _aten.index_fill.int_Tensor: _index_fill,
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten.nan_to_num.default: _nan_to_num,
    _aten.bucketize.Tensor: _bucketize,
    _aten._efficientzerotensor.default: torch.zeros,
    _aten.roll.default: _roll,
    _aten.channel_shuffle.default: partial(_in_format, channel_shuffle),
    _aten.max_unpool2d.default: partial(_in_format, max_unpool2d),
    **{scatter: partial(_scatter, scatter) for scatter in _SCATTERS},
}

_KEPT_WHOLE = (
    "aten.addmm", "aten.mm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.addmv", "aten.dot",
    "aten.max_pool2d_with_indices_backward",
    "aten.avg_pool2d_backward", "aten.convolution_backward", "aten.embedding_dense_backward",
    "aten._scaled_dot_product_flash_attention_for_cpu", "aten.native_dropout_backward",
    "aten.binary_cross_entropy_with_logits_backward", "aten.grid_sampler_2d", "aten.logit", "aten.lerp",
    "aten.addcdiv", "aten.cat", "aten.round", "aten.index_add", "aten.index_copy", "aten.index_select",
)  # fmt: skip
"""Operators that are not decomposed, for one of these reasons:

Libraries do matmuls best. ATen has one good kernel in place of many small steps, or of operators that only Inductor
has. Eager mode rounds once, and the decomposition rounds each step. The decomposition returns other strides than eager,
as for `cat` of one tensor. Eager mode raises an error for negative indices, which the decomposition wraps."""


@cache
def decompositions(random: str = "philox", has_scan: bool = False) -> dict[Any, Callable[..., Any]]:
    """The decomposition table for AOTAutograd. With `random` "eager", random operators are not decomposed.

    With `has_scan`, detach is not decomposed either. Otherwise a scan's step that ends in a tanh returns its result
    twice in training, which torch rejects: "scan might be aliasing the input or the output".
    """
    kept, own = (_KEPT_WHOLE + _RANDOM_OPERATORS, {}) if random == "eager" else (_KEPT_WHOLE, _RANDOM_NUMBERS)
    whole = {*kept, "aten.detach"} if has_scan else {*kept}
    found = {op: function for op, function in table("Inductor").items() if str(op.overloadpacket) not in whole}
    # Inductor has lowerings of these.
    extra = {op: table("prims")[op] for op in (_aten.glu.default, _aten.ldexp.Tensor)}
    return {**found, **extra, **own, **_MENDED, **_POOLING}
