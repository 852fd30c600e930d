"""Autocast as it is on a GPU.

`torch.autocast("cpu")` and `torch.autocast("cuda")` differ: CUDA's runs softmax, layer_norm, sums, powers and losses in
float32, the CPU's leaves most of these in the low format. A graph traced from CPU tensors for a GPU is to follow CUDA's
lists (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE; documented under "CUDA Ops that
can autocast to float32"). What is cast to the low format is the same on both, but for `IN_LOW_FORMAT`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

WIDE = torch.float32

# fmt: off
IN_FLOAT32 = frozenset({
    "__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "acos", "asin", "binary_cross_entropy_with_logits",
    "cdist", "cosh", "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "cross_entropy_loss", "dist",
    "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "layer_norm", "log", "log10", "log1p", "log2", "logsumexp", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "native_layer_norm", "nll_loss", "nll_loss2d", "nuclear_norm",
    "pdist", "poisson_nll_loss", "pow", "reciprocal", "renorm", "rsqrt", "sinh", "smooth_l1_loss",
    "soft_margin_loss", "softplus", "tan", "triplet_margin_loss",
})
# fmt: on
"""Run in float32: floating-point arguments are cast. cross_entropy stands for log_softmax and nll_loss inside it."""

WITH_FLOAT32_RESULT = frozenset({"cumprod", "cumsum", "log_softmax", "norm", "prod", "softmax", "softmin", "sum"})
"""Run with `dtype=torch.float32`, unless another is asked for."""

IN_LOW_FORMAT = frozenset({"addmv", "addr", "mv", "prelu", "scaled_dot_product_attention"})
"""Run in the low format by CUDA's autocast; those that the CPU's leaves alone, and attention, chosen by format."""


class TargetAutocast(TorchFunctionMode):
    """While active, autocast on CPU tensors casts as autocast on CUDA tensors does; where there is no GPU, a region of
    "cuda" autocast, which does nothing for CPU tensors, is taken for one of "cpu".
    """

    def __init__(self) -> None:
        super().__init__()
        self.no_gpu = not torch.cuda.is_available()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.no_gpu and func is torch.amp.autocast_mode._enter_autocast:
            return func(*_for_cpu(*args), **kwargs)
        if not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in IN_FLOAT32:
            return _apart(func, tree_map(_wide, args), tree_map(_wide, kwargs))
        if name in IN_LOW_FORMAT:
            return _apart(func, tree_map(_low, args), tree_map(_low, kwargs))
        if name in WITH_FLOAT32_RESULT and _is_castable(args[0] if args else None):
            return _apart(func, args, {**kwargs, "dtype": kwargs.get("dtype") or WIDE})
        return func(*args, **kwargs)


def _for_cpu(device: str, dtype: torch.dtype | None = None, *rest: Any) -> tuple[Any, ...]:
    """The arguments of an autocast region, on the device the tensors are on while the graph is traced."""
    return ("cpu", dtype or torch.get_autocast_dtype("cuda"), *rest) if device == "cuda" else (device, dtype, *rest)


def _apart(func: Any, args: Any, kwargs: Any) -> Any:
    """Call where autocast does no more: an operator is cast once, not again inside."""
    with torch.autocast("cpu", enabled=False):
        return func(*args, **kwargs)


def _is_castable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _wide(value: Any) -> Any:
    return value.to(WIDE) if _is_castable(value) else value


def _low(value: Any) -> Any:
    return value.to(torch.get_autocast_dtype("cpu")) if _is_castable(value) else value
