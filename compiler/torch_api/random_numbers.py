"""Random operators in terms of a seed and a counter: `prims.inductor_seed` draws the seed from PyTorch's generator of
the device, `prims.inductor_random` and `prims.inductor_randint` are functions of it. So what is recomputed in a
backward, under activation checkpointing, is what the forward had, as only the seed is drawn, and is saved.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import inductor_prims
from torch.fx import GraphModule
from torch.utils.checkpoint import CheckpointPolicy

from compiler.torch_api.decomposition_tables import is_random
from compiler.torch_api.minimum_cut import quick_cut
from compiler.torch_api.repeats import without_repeats

_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
_aten, _prims = torch.ops.aten, torch.ops.prims


def _drawn(size: Sequence[Any], device: Any, mode: str) -> torch.Tensor:
    where = torch.empty((), device=device).device
    found: torch.Tensor = inductor_prims.random(list(size), inductor_prims.seed(where), mode)
    return found


def _rand(size: Sequence[Any], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Any:
    """In low precision with as few bits as eager's have: rounded, there would be ones. 24 are too few for float64."""
    dtype = dtype or torch.get_default_dtype()
    if dtype not in _BITS:
        return NotImplemented
    found = _drawn(size, device, "rand")
    steps = 2 ** _BITS[dtype]
    return found if dtype == torch.float32 else ((found * steps).floor() / steps).to(dtype)


def _randn(size: Sequence[Any], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    return _drawn(size, device, "randn").to(dtype) if dtype in _BITS else NotImplemented


def _randint(
    low: Any, high: Any, size: Sequence[Any], *, dtype: torch.dtype = torch.int64, device: Any = None, **_: Any
) -> Any:
    if not (isinstance(low, int) and isinstance(high, int) and 0 < high - low < 2**31):
        return NotImplemented
    where = torch.empty((), device=device).device
    return inductor_prims.randint(low, high, list(size), inductor_prims.seed(where)).to(dtype)


def _randint_below(high: Any, size: Sequence[Any], **options: Any) -> Any:
    return _randint(0, high, size, **options)


def _bernoulli(x: torch.Tensor, p: float | None = None, *, generator: Any = None) -> Any:
    if generator is not None or not x.dtype.is_floating_point:
        return NotImplemented
    return (_drawn(x.shape, x.device, "rand") < (x if p is None else p)).to(x.dtype)


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    if not train or not 0 < p < 1:
        return NotImplemented
    kept = _drawn(x.shape, x.device, "rand") >= p
    return x * kept * (1 / (1 - p)), kept


def _uniform(x: torch.Tensor, start: float = 0.0, end: float = 1.0, generator: Any = None) -> Any:
    if generator is not None or x.dtype not in _BITS:
        return NotImplemented
    return torch.rand_like(x) * (end - start) + start


def _normal(x: torch.Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    if generator is not None or x.dtype not in _BITS:
        return NotImplemented
    return torch.randn_like(x) * std + mean


def _normal_of_shape(
    shape: Sequence[Any],
    *,
    mean: Any,
    std: Any,
    dtype: torch.dtype,
    device: Any,
    generator: Any = None,
    **_: Any,
) -> Any:
    if generator is not None or dtype not in _BITS:
        return NotImplemented
    return (_drawn(shape, device, "randn") * std + mean).to(dtype)


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    _aten.rand.default: _rand,
    _aten.randn.default: _randn,
    _aten.randint.low: _randint,
    _aten.randint.default: _randint_below,
    _aten.bernoulli.default: _bernoulli,
    _aten.bernoulli.p: _bernoulli,
    _aten.native_dropout.default: _dropout,
    _aten.uniform.default: _uniform,
    _aten.normal_functional.default: _normal,
    _prims.normal.default: _normal_of_shape,
}


def partition(joint: GraphModule, inputs: Any, **options: Any) -> Any:
    """The min-cut partitioner, told to save what is drawn even where all is to be recomputed."""
    for node in joint.graph.nodes:
        if is_random(node.target):
            for made in (node, *(user for user in node.users if user.target is operator.getitem)):
                made.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    joint.graph.eliminate_dead_code()
    if functorch_config.cse:
        without_repeats(joint)
    with functorch_config.patch(cse=False), quick_cut():
        return min_cut_rematerialization_partition(joint, inputs, **options)
