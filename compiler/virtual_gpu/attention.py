"""Scaled dot product attention, with the kernel that torch would choose on the target.

torch chooses a fused kernel by device while AOTAutograd traces; for CPU tensors it would choose the CPU kernel. Here
the CUDA rules (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: priority_order, can_use_*_attention) are applied
to a `Target`, and the chosen operator is called as in aten/src/ATen/native/transformers/attention.cpp. Every build of
torch has the meta kernels and derivatives of these operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from compiler.targets import Target
from compiler.torch_api.fx import dtype_name
from compiler.torch_api.python_kernels import DispatchKey, Kernels

Kernel = Literal["cudnn", "flash", "efficient", "math"]
aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_SINCE_2_12 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
_IN_SIXTEENTHS = _SINCE_2_12
"""Whether cuDNN requires dropout in multiples of 1/16 (check_cudnn_dropout)."""

_CUDNNS_NOWHERE = -math.inf if _SINCE_2_12 else -65504.0
"""The additive bias for masked positions in cuDNN (convert_boolean_attn_mask_cudnn)."""


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one attention call, by torch's names; shapes are (batch, heads, length, width)."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return (self.query, self.key, self.value)

    @property
    def needs_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors)


def attention_kernels(target: Target, on_choice: Callable[[str, str, str], None]) -> Kernels:
    """Kernels that trace scaled_dot_product_attention on CPU tensors as the target's operator."""

    def attend(*args: Any, **kwargs: Any) -> Tensor:
        call = Call(*args, **kwargs)
        kernel, why = choose_kernel(target, call)
        on_choice("attention", kernel, why)
        return _RUN[kernel](call)

    return {(aten.scaled_dot_product_attention.default, DispatchKey.CompositeImplicitAutograd): attend}


def choose_kernel(target: Target, call: Call) -> tuple[Kernel, str]:
    """The kernel that torch runs for a call on this GPU, and why it rejects kernels of higher priority."""
    passed: list[str] = []
    prefers_cudnn = target.vendor == "nvidia" and target.capability[0] in (9, 10)
    priority: tuple[Kernel, ...] = ("cudnn", "flash", "efficient") if prefers_cudnn else ("flash", "efficient")
    for kernel in priority:
        enabled, reasons = _RULES[kernel]
        why_not = "turned off" if not enabled() else reasons(target, call)
        if not why_not:
            return kernel, "; ".join(passed) or f"first in the order of {target.title}"
        passed.append(f"not {kernel}: {why_not}")
    return "math", "; ".join(passed)


def _why_not_dense(call: Call) -> str:
    if any(tensor.dim() != 4 for tensor in call.tensors):
        return "it takes tensors of 4 dimensions"
    if any(guard_or_false(tensor.shape[2] == 0) for tensor in call.tensors):
        return "a length is 0"
    if any(not guard_or_false(tensor.stride(-1) == 1) for tensor in call.tensors):
        return "the last dimension is not contiguous"
    if call.attn_mask is not None and not guard_or_false(call.attn_mask.stride(-1) == 1):
        return "the last dimension of the mask is not contiguous"
    heads = {tensor.shape[1] for tensor in call.tensors}
    return "the numbers of heads differ" if len(heads) > 1 and not call.enable_gqa else ""


def _why_not_cudnn(_target: Target, call: Call) -> str:
    widths = (call.query.shape[-1], call.value.shape[-1])
    if call.query.dtype not in _HALF:
        return f"cuDNN takes 16-bit formats, not {dtype_name(call.query.dtype)}"
    if _IN_SIXTEENTHS and call.dropout_p * 16 != math.floor(call.dropout_p * 16):
        return "cuDNN takes dropout in sixteenths"
    if dense := _why_not_dense(call):
        return dense
    if not all(guard_or_false(width <= 128) and guard_or_false(width % 8 == 0) for width in widths):
        return "cuDNN takes widths up to 128, in multiples of 8"
    if guard_or_false(call.key.shape[2] == 1) or (call.dropout_p and guard_or_false(call.query.shape[2] == 1)):
        return "cuDNN takes lengths above 1"
    return "a deterministic algorithm was asked for" if torch.are_deterministic_algorithms_enabled() else ""


def _why_not_flash(target: Target, call: Call) -> str:
    width = call.query.shape[-1]
    if target.vendor == "nvidia" and target.capability < (8, 0):
        return (
            f"flash attention needs compute capability 8.0, {target.title} has {'.'.join(map(str, target.capability))}"
        )
    if call.query.dtype not in _HALF:
        return f"flash attention takes 16-bit formats, not {dtype_name(call.query.dtype)}"
    if call.attn_mask is not None:
        return "flash attention takes no mask"
    if dense := _why_not_dense(call):
        return dense
    same_width = all(guard_or_false(tensor.shape[-1] == width) for tensor in call.tensors)
    if not same_width or not guard_or_false(width <= 256):
        return "flash attention takes one width up to 256"
    if call.is_causal and not guard_or_false(call.query.shape[-2] == call.key.shape[-2]):
        return "flash attention is causal for equal lengths only"
    ada = target.vendor == "nvidia" and target.capability in ((8, 6), (8, 9))
    if ada and call.needs_gradient and not guard_or_false(width <= 192):
        return "flash attention can't train widths above 192 on this architecture"
    return ""


def _why_not_efficient(target: Target, call: Call) -> str:
    if call.query.dtype not in (torch.float32, *_HALF):
        return f"efficient attention doesn't take {dtype_name(call.query.dtype)}"
    if target.vendor == "nvidia" and target.capability < (8, 0) and call.query.dtype == torch.bfloat16:
        return f"efficient attention takes no bfloat16 on {target.title}"
    if dense := _why_not_dense(call):
        return dense
    if call.enable_gqa and len({tensor.shape[1] for tensor in call.tensors}) > 1:
        return "efficient attention takes no groups of heads"
    alignment = _alignment(target, call.query.dtype)
    if not all(guard_or_false(width % alignment == 0) for width in (call.query.shape[-1], call.value.shape[-1])):
        return f"efficient attention takes widths in multiples of {alignment}"
    return ""


def _alignment(target: Target, dtype: torch.dtype) -> int:
    """Number that must divide a width, in elements: 128 bits for dtypes with tensor cores, else 1.

    sdp_utils.cpp, minimum_gemm_alignment.
    """
    half = dtype in _HALF
    if target.vendor == "amd" or target.capability >= (8, 0) or half:
        return 8 if half else 4
    return 1


def _run_cudnn(call: Call) -> Tensor:
    mask = _additive(call, _CUDNNS_NOWHERE)
    return aten._scaled_dot_product_cudnn_attention(
        *call.tensors, mask, call.needs_gradient, call.dropout_p, call.is_causal, False, scale=call.scale
    )[0]


def _run_flash(call: Call) -> Tensor:
    width = call.query.shape[-1]
    scale = call.scale if call.scale is not None else 1 / math.sqrt(width)
    padding = -width % 8
    tensors = [functional.pad(tensor, (0, padding)) if padding else tensor for tensor in call.tensors]
    found = aten._scaled_dot_product_flash_attention(*tensors, call.dropout_p, call.is_causal, False, scale=scale)
    return found[0][..., :width] if padding else found[0]


def _run_efficient(call: Call) -> Tensor:
    mask = _additive(call)
    mask = mask if mask is None else _align_mask(mask, call)
    return aten._scaled_dot_product_efficient_attention(
        *call.tensors, mask, call.needs_gradient, call.dropout_p, call.is_causal, scale=call.scale
    )[0]


def _run_math(call: Call) -> Tensor:
    return aten._scaled_dot_product_attention_math(
        *call.tensors, _additive(call), call.dropout_p, call.is_causal, None, scale=call.scale,
        enable_gqa=call.enable_gqa,
    )[0]  # fmt: skip


def _additive(call: Call, nowhere: float = -math.inf) -> Tensor | None:
    """The attention mask as an additive bias: a boolean mask becomes 0 or `nowhere`. None without a mask."""
    if call.attn_mask is None or call.attn_mask.dtype != torch.bool:
        return call.attn_mask
    least = torch.scalar_tensor(nowhere, dtype=call.query.dtype, device=call.attn_mask.device)
    return torch.where(call.attn_mask, 0.0, least)


def _align_mask(mask: Tensor, call: Call) -> Tensor:
    """Pad or copy the mask, if needed, to align its rows in memory to 16 elements.

    attention.cpp, preprocess_mask.
    """
    mask = mask.expand(*call.query.shape[:3], call.key.shape[2])
    length = mask.shape[-1]
    if not guard_or_false(length % 16 == 0):
        return functional.pad(mask, (0, 16 - length % 16))[..., :length]
    if not all(guard_or_false(stride % 16 == 0) for stride in mask.stride()[:3]):
        return mask.contiguous()
    return mask


_RULES: dict[Kernel, tuple[Callable[[], bool], Callable[[Target, Call], str]]] = {
    "cudnn": (torch.backends.cuda.cudnn_sdp_enabled, _why_not_cudnn),
    "flash": (torch.backends.cuda.flash_sdp_enabled, _why_not_flash),
    "efficient": (torch.backends.cuda.mem_efficient_sdp_enabled, _why_not_efficient),
}
_RUN: dict[Kernel, Callable[[Call], Tensor]] = {
    "cudnn": _run_cudnn,
    "flash": _run_flash,
    "efficient": _run_efficient,
    "math": _run_math,
}
