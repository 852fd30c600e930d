"""Compute the GPU's attention operators on the CPU: softmax(q kᵀ · scale + bias) v, in float32.

Results have the layout of the operator's meta function. The random state, which only the backward reads, is 0. The
dropout mask is the same in forward and backward, but differs from the GPU's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor

from compiler.torch_api.pytrees import tree_map

NAMES = frozenset(
    f"aten._scaled_dot_product_{kernel}_attention{suffix}.default"
    for kernel in ("flash", "efficient", "cudnn")
    for suffix in ("", "_backward")
)
_SEED = 20_260_705


def compute(target: Any, args: Sequence[Any], kwargs: dict[str, Any], *_how: Any) -> tuple[Any, ...]:
    """Compute an operator in NAMES on CPU tensors. Results that only a GPU has, such as random state, are 0."""
    schema = target._schema.arguments
    names = [argument.name for argument in schema]
    given = (
        {argument.name: argument.default_value for argument in schema} | dict(zip(names, args, strict=False)) | kwargs
    )
    metas = target(*tree_map(_on_meta, args), **tree_map(_on_meta, kwargs))
    results = _gradients(given) if "backward" in str(target) else _attention_and_logsumexp(given)
    return tuple(map(_in_layout, metas, chain(results, repeat(None))))


def _on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value


def _in_layout(meta: Any, value: Tensor | None) -> Any:
    """A value in the layout of the meta result; zeros if it is None or has another shape."""
    if not isinstance(meta, Tensor):
        return meta
    result = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="cpu").zero_()
    return result.copy_(value) if value is not None and value.shape == result.shape else result


def _attention_and_logsumexp(given: dict[str, Any]) -> list[Tensor]:
    """The output of attention and the logsumexp of its scores."""
    output, scores = _forward(given, *(given[name].float() for name in ("query", "key", "value")))
    return [output, torch.logsumexp(scores, -1)]


def _gradients(given: dict[str, Any]) -> list[Tensor]:
    names = ["query", "key", "value"] + ["attn_bias"] * (given.get("attn_bias") is not None)
    inputs = {name: given[name].detach().float().requires_grad_() for name in names}
    gradient = given["grad_out"] if "grad_out" in given else given["grad_out_"]
    with torch.enable_grad():
        output, _ = _forward({**given, **inputs}, *(inputs[name] for name in names[:3]))
        return list(torch.autograd.grad(output, [*inputs.values()], gradient.float().reshape(output.shape)))


def _forward(given: dict[str, Any], query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scale = given.get("scale")
    scores = query @ key.transpose(-2, -1) * (scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
    if given.get("attn_bias") is not None:
        scores = scores + given["attn_bias"].float()
    if given.get("is_causal"):
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(ahead, -math.inf)
    weights = torch.softmax(scores, -1)
    dropout = given.get("dropout_p") or 0.0
    if dropout:
        kept = torch.rand(weights.shape, generator=torch.Generator().manual_seed(_SEED)) >= dropout
        weights = weights * kept / (1 - dropout)
    return weights @ value, scores
