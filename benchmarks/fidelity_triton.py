"""An operator of the user in Triton, with its derivative, for `fidelity_models`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def square_relu_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803 a constexpr
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.maximum(tl.load(x_ptr + places, mask=places < count, other=0.0), 0.0)
    tl.store(out_ptr + places, x * x, mask=places < count)


@torch.library.triton_op("tcompile_benchmark::square_relu", mutates_args={})
def square_relu(x: Tensor) -> Tensor:
    """The square of the positive numbers, 0 for others."""
    out = torch.empty_like(x)
    torch.library.wrap_triton(square_relu_kernel)[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)
    return out


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001 torch passes it by name
    ctx.save_for_backward(*inputs)


def _derivative(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * 2 * x.clamp_min(0)


square_relu.register_autograd(_derivative, setup_context=_save)
