"""CUDA's autocast rules, for graphs traced from CPU tensors.

`torch.autocast("cpu")` and `torch.autocast("cuda")` differ: CUDA's runs softmax, layer_norm, sums, powers and losses in
float32, the CPU's leaves most of these in low precision. A graph traced for a GPU follows CUDA's lists
(aten/src/ATen/autocast_mode.h, from AT_FORALL_LOWER_PRECISION_FP on; documented under "CUDA Ops that can autocast to
float32"), also for operators called by derivative formulas. The dispatcher knows which operators have an autocast
kernel in this torch release; this file defines the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from compiler.torch_api.patching import hide_frame
from compiler.torch_api.python_kernels import (
    ENTER_AUTOCAST,
    DispatchKey,
    Kernels,
    OpOverload,
    operator_named,
    operators_with_kernel,
    without_key,
)

WIDE = torch.float32

# fmt: off
IN_FLOAT32 = frozenset({
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "acos", "asin", "binary_cross_entropy_with_logits", "cdist", "cosh",
    "cosine_embedding_loss", "cosine_similarity", "dist", "erfinv", "exp", "expm1", "frobenius_norm", "group_norm",
    "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "layer_norm", "linalg_matrix_sqrth", "log", "log10",
    "log1p", "log2", "logsumexp", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss",
    "native_layer_norm", "nll_loss", "nll_loss2d", "nuclear_norm", "pdist", "poisson_nll_loss", "pow", "reciprocal",
    "renorm", "rms_norm", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss", "softplus", "tan",
    "triplet_margin_loss", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d",
})
# fmt: on
"""Operators that run in float32: floating-point arguments are cast."""

WITH_FLOAT32_RESULT = frozenset(
    {"cumprod", "cumsum", "linalg_matrix_norm", "linalg_vector_norm", "log_softmax", "norm", "prod", "softmax", "sum"}
)
"""Operators that run with `dtype=torch.float32`, unless the call passes a dtype."""

IN_WIDEST_FORMAT = frozenset(
    {
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "scatter_add",
        "tensordot", "vdot",
    }
)  # fmt: skip
"""Operators whose arguments are cast to the widest dtype among them."""

IN_LOW_FORMAT = frozenset(
    {
        "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "addmv", "addr", "chain_matmul", "einsum", "gru_cell",
        "linalg_multi_dot", "lstm_cell", "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell",
    }
)  # fmt: skip
"""Operators that run in low precision with CUDA's autocast only. Matmuls, convolutions and attention do with both."""

_FORMATS = (torch.bfloat16, torch.float16, torch.float32)


def autocast_kernels() -> Kernels:
    """Autocast kernels for CPU tensors, for operators that CUDA's autocast treats differently."""
    return {(operator, DispatchKey.AutocastCPU): kernel for operator, kernel in _kernels()}


@cache
def _kernels() -> tuple[tuple[OpOverload, Callable[..., Any]], ...]:
    cuda, cpu = operators_with_kernel("AutocastCUDA"), operators_with_kernel("AutocastCPU")
    chosen = ((operator_named(name), _treatment(name, name in cuda)) for name in sorted(cuda | cpu))
    return tuple((operator, partial(run, operator)) for operator, run in chosen if operator is not None and run)


def _treatment(name: str, on_cuda: bool) -> Callable[..., Any] | None:
    """The autocast kernel for an operator; None if CUDA's autocast treats it as the CPU's does."""
    if not on_cuda:
        return _decompose
    base = name.removeprefix("aten::").partition(".")[0]
    return next((treatment for names, treatment in _TREATMENTS.items() if base in names), None)


def _decompose(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run a composite operator without a cast; autocast applies to the operators that it calls."""
    found = operator.decompose(*args, **kwargs)
    return _call_without_autocast(operator, *args, **kwargs) if found is NotImplemented else found


def _call_without_autocast(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    with without_key(DispatchKey.AutocastCPU):
        return operator(*args, **kwargs)


def _low_format(*_arguments: Any) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _widest_format(*arguments: Any) -> torch.dtype:
    formats = {_low_format(), *(tensor.dtype for tensor in _tensors(arguments) if _is_castable(tensor))}
    return max(formats, key=_FORMATS.index)


def _with_float32_result(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    if not args or not _is_castable(args[0]):
        return _call_without_autocast(operator, *args, **kwargs)
    if operator.overloadpacket is torch.ops.aten.norm:
        operator = torch.ops.aten.norm.ScalarOpt_dim_dtype  # autocast_mode.h, fp32_append_dtype
        defaults = {"p": 2, "dim": (), "keepdim": False}
        named = dict(zip(("self", *defaults), args, strict=False))
        return _call_without_autocast(operator, **{**defaults, **named, **kwargs, "dtype": WIDE})
    at = [argument.name for argument in operator._schema.arguments].index("dtype")
    if at < len(args):
        return _call_without_autocast(operator, *args[:at], args[at] or WIDE, *args[at + 1 :], **kwargs)
    return _call_without_autocast(operator, *args, **{**kwargs, "dtype": kwargs.get("dtype") or WIDE})


def _run_in(choose: Callable[..., torch.dtype], operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Cast the arguments to the dtype that `choose` returns, and run the operator.

    The last argument is cast first, as in C++, where compilers evaluate arguments from right to left.
    """
    dtype = choose(args, kwargs)
    named = {name: _cast(value, dtype) for name, value in reversed(kwargs.items())}
    placed = [_cast(value, dtype) for value in reversed(args)]
    return _call_without_autocast(operator, *reversed(placed), **named)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value.to(dtype) if _is_castable(value) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _is_castable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


_TREATMENTS: dict[frozenset[str], Callable[..., Any]] = {
    IN_FLOAT32: partial(_run_in, lambda *_: WIDE),
    WITH_FLOAT32_RESULT: _with_float32_result,
    IN_WIDEST_FORMAT: partial(_run_in, _widest_format),
    IN_LOW_FORMAT: partial(_run_in, _low_format),
}


def begin_on_cpu(initialize: Callable[..., None]) -> Callable[..., None]:
    """In place of `torch.autocast.__init__` on a machine without a GPU, where torch turns a "cuda" region off.

    It becomes a "cpu" region; a graph that is traced in it gets CUDA's casts from `autocast_kernels`.
    """

    @hide_frame
    @wraps(initialize)
    def begin(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        initialize(self, *_for_cpu(device_type, dtype), *args, **kwargs)

    return begin


class CudaRegions(TorchFunctionMode):
    """Turns "cuda" autocast regions into "cpu" regions if there is no GPU.

    A "cuda" region has no effect on CPU tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.no_gpu = not torch.cuda.is_available()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.no_gpu and func is ENTER_AUTOCAST:
            args = _for_cpu(*args)
        return func(*args, **(kwargs or {}))


def _for_cpu(device: str, dtype: torch.dtype | None = None, *rest: Any) -> tuple[Any, ...]:
    """Rewrite the arguments of a "cuda" autocast region for CPU tensors; return others unchanged."""
    return ("cpu", dtype or torch.get_autocast_dtype("cuda"), *rest) if device == "cuda" else (device, dtype, *rest)
