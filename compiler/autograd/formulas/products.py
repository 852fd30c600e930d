"""Rules for matrix and vector products, linear algebra, convolutions, and attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from compiler.autograd.formulas.rule import Local, Rule, Slot, rule, table


def _scaled_slot(name: str, factor: str, formula: str, gradient: Any) -> Slot:
    """A slot whose gradient is multiplied by α or β, a number that the node saved."""
    return Slot(name, f"{factor} · {formula}", lambda s, grad: getattr(s, _NAMES[factor]) * gradient(s, grad))


_NAMES = {"α": "alpha", "β": "beta"}


_MATRICES = (
    *(rule(node, name, "self @ mat2",
           Slot("self", "grad @ mat2ᵀ", lambda s, grad: grad @ s.mat2.mT),
           Slot("mat2", "selfᵀ @ grad", lambda s, grad: s.self.mT @ grad))
      for node, name in (("MmBackward0", "matrix product"), ("BmmBackward0", "matrix product, for each of a batch"))),
    rule("AddmmBackward0", "matrix product and sum", "β · self + α · mat1 @ mat2",
         _scaled_slot("self", "β", "grad", lambda s, grad: grad),
         _scaled_slot("mat1", "α", "grad @ mat2ᵀ", lambda s, grad: grad @ s.mat2.mT),
         _scaled_slot("mat2", "α", "mat1ᵀ @ grad", lambda s, grad: s.mat1.mT @ grad)),
    *(rule(node, name, f"β · self + α · {sign}batch1{i} @ batch2{i}",
           _scaled_slot("self", "β", "grad", lambda s, grad: grad),
           _scaled_slot("batch1", "α", f"grad @ batch2{i}ᵀ", lambda s, grad: grad @ s.batch2.mT),
           _scaled_slot("batch2", "α", f"batch1{i}ᵀ @ grad", lambda s, grad: s.batch1.mT @ grad))
      for node, name, sign, i in (("BaddbmmBackward0", "matrix product and sum, for each of a batch", "", ""),
                                  ("AddbmmBackward0", "matrix products, summed over a batch", "Σᵢ ", "ᵢ"))),
    rule("MvBackward0", "matrix times vector", "self @ vec",
         Slot("self", "grad ⊗ vec", lambda s, grad: torch.outer(grad, s.vec)),
         Slot("vec", "selfᵀ @ grad", lambda s, grad: s.self.t() @ grad)),
    rule("AddmvBackward0", "matrix times vector, and sum", "β · self + α · mat @ vec",
         _scaled_slot("self", "β", "grad", lambda s, grad: grad),
         _scaled_slot("mat", "α", "grad ⊗ vec", lambda s, grad: torch.outer(grad, s.vec)),
         _scaled_slot("vec", "α", "matᵀ @ grad", lambda s, grad: s.mat.t() @ grad)),
    rule("DotBackward0", "product rule, summed", "Σ self · tensor",
         Slot("self", "grad · tensor", lambda s, grad: grad * s.tensor),
         Slot("tensor", "grad · self", lambda s, grad: grad * s.self)),
)  # fmt: skip


def _convolution_input(s: Local, grad: Tensor) -> Tensor:
    """Gradient of a convolution's input: the transposed convolution of `grad` with the same weight."""
    if s.transposed:
        return _convolve(grad, s.weight, s)
    spatial = len(s.stride)
    sizes = s.size(0)[2:]
    extra = [
        sizes[i]
        - ((grad.shape[2 + i] - 1) * s.stride[i] - 2 * s.padding[i] + s.dilation[i] * (s.weight.shape[2 + i] - 1) + 1)
        for i in range(spatial)
    ]
    return torch.convolution(
        grad, s.weight, None, s.stride, s.padding, s.dilation, True, extra, s.groups
    )  # fmt: skip


def _convolve(values: Tensor, weight: Tensor, s: Local) -> Tensor:
    return torch.convolution(
        values, weight, None, s.stride, s.padding, s.dilation, False, [0] * len(s.stride), s.groups
    )


def _convolution_weight(s: Local, grad: Tensor) -> Tensor:
    """Gradient of a convolution's weight: the input convolved with `grad` as weight, with the batch as channels."""
    values, outer = (grad, s.input) if s.transposed else (s.input, grad)
    groups = zip(values.transpose(0, 1).chunk(s.groups), outer.transpose(0, 1).chunk(s.groups), strict=True)
    unused = [0] * len(s.stride)
    found = torch.cat([
        torch.convolution(into, weight, None, s.dilation, s.padding, s.stride, False, unused, 1).transpose(0, 1)
        for into, weight in groups
    ])  # fmt: skip
    for axis, size in enumerate(s.weight.shape[2:]):
        found = found.narrow(2 + axis, 0, size)
    return found


_CONVOLUTION = (
    rule("ConvolutionBackward0", "convolution", "weight ⋆ input + bias",
         Slot("input", "transposed convolution of grad with weight", _convolution_input),
         Slot("weight", "Σ over batch and places of grad · window of the input", _convolution_weight),
         Slot("bias", "Σ over batch and places of grad",
              lambda s, grad: grad.sum([0, *range(2, grad.dim())]))),
)  # fmt: skip


def _solve_gradient(s: Local, grad: Tensor) -> Tensor:
    """Gradient of the right-hand side: the solution of the transposed system for `grad`."""
    if s.left:
        return torch.linalg.solve(s.A.mT, grad)
    return torch.linalg.solve(s.A, grad.mT).mT


def _solved_matrix(s: Local, grad: Tensor) -> Tensor:
    right = _solve_gradient(s, grad)
    if s.result.dim() < s.A.dim():
        return -right[..., :, None] * s.result[..., None, :]
    return -right @ s.result.mT if s.left else -s.result.mT @ right


_LINEAR_ALGEBRA = (
    rule("LinalgInvExBackward0", "derivative of the inverse", "self⁻¹",
         Slot("self", "-outᵀ @ grad @ outᵀ", lambda s, grad: -s.inverse.mT @ grad @ s.inverse.mT)),
    rule("LinalgDetBackward0", "Jacobi's formula", "det(self)",
         Slot("self", "grad · out · (self⁻¹)ᵀ",
              lambda s, grad: (grad * s.result)[..., None, None] * torch.linalg.inv(s.A).mT)),
    rule("LinalgSolveExBackward0", "derivative of the solution of A · out = B", "A⁻¹ @ B",
         Slot("A", "-(d B) @ outᵀ", _solved_matrix),
         Slot("B", "(Aᵀ)⁻¹ @ grad", _solve_gradient)),
)  # fmt: skip


def _attention(s: Local) -> tuple[Tensor, float]:
    """Attention probabilities `[batch, heads, queries, keys]`, and the scale of the scores."""
    scale = s.scale if s.scale is not None else 1 / math.sqrt(s.query.shape[-1])
    scores = scale * s.query @ s.key.mT
    if s.attn_mask is not None:
        scores = scores + s.attn_mask
    if s.is_causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(above, float("-inf"))
    return scores.softmax(-1), scale


def _scores(s: Local, grad: Tensor) -> tuple[Tensor, float]:
    """Gradient of the attention scores (the backward of softmax on `grad @ valueᵀ`), and the scale of the scores."""
    weights, scale = _attention(s)
    into = grad @ s.value.mT
    return weights * (into - (into * weights).sum(-1, keepdim=True)), scale


def _query(s: Local, grad: Tensor) -> Tensor:
    scores, scale = _scores(s, grad)
    return scale * scores @ s.key


def _key(s: Local, grad: Tensor) -> Tensor:
    scores, scale = _scores(s, grad)
    return scale * scores.mT @ s.query


_ATTENTION = (
    rule("ScaledDotProductFlashAttentionForCpuBackward0", "attention: softmax between two matrix products",
         "P @ value, P = softmax(scale · query @ keyᵀ)",
         Slot("query", "scale · D @ key, D = P · (G - Σ G · P), G = grad @ valueᵀ", _query),
         Slot("key", "scale · Dᵀ @ query", _key),
         Slot("value", "Pᵀ @ grad", lambda s, grad: _attention(s)[0].mT @ grad)),
)  # fmt: skip

RULES: dict[str, Rule] = table(*_MATRICES, *_LINEAR_ALGEBRA, *_CONVOLUTION, *_ATTENTION)
