"""Rules of the layers of networks that torch differentiates in one piece: normalisation, losses, pooling, GLU."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from compiler.autograd.formulas.rule import Local, Rule, Slot, rule, table


def _normalization_gradient(normal: Tensor, rstd: Tensor, into: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The gradient of (x - mean) / std: what is left of `into` without its mean and its part along `normal`."""
    along = (into * normal).mean(dims, keepdim=True)
    return rstd * (into - into.mean(dims, keepdim=True) - normal * along)


def _layer(s: Local) -> tuple[Tensor, tuple[int, ...]]:
    """The normalised input of a layer norm, and the dims it was normalised over."""
    dims = tuple(range(-len(s.normalized_shape), 0))
    return (s.input - s.result1) * s.result2, dims


def _layer_input(s: Local, grad: Tensor) -> Tensor:
    normal, dims = _layer(s)
    return _normalization_gradient(normal, s.result2, grad if s.weight is None else grad * s.weight, dims)


def _batch_shape(s: Local, value: Tensor) -> Tensor:
    """A value for each channel, in the shape of the input."""
    return value.reshape(1, -1, *[1] * (s.input.dim() - 2))


def _batch(s: Local) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Normalised input, 1 / std and reduced dims of a batch norm."""
    if s.training:
        mean, rstd = s.result1, s.result2
    else:
        mean, rstd = s.running_mean, (s.running_var + s.eps).rsqrt()
    rstd = _batch_shape(s, rstd)
    return (s.input - _batch_shape(s, mean)) * rstd, rstd, (0, *range(2, s.input.dim()))


def _batch_input(s: Local, grad: Tensor) -> Tensor:
    normal, rstd, dims = _batch(s)
    into = grad if s.weight is None else grad * _batch_shape(s, s.weight)
    return _normalization_gradient(normal, rstd, into, dims) if s.training else into * rstd


def _group(s: Local) -> tuple[Tensor, Tensor]:
    """Normalised input `[n, group, elements]` of a group norm, and 1 / std."""
    rows = s.input.reshape(s.N, s.group, -1)
    return (rows - s.result1[..., None]) * s.result2[..., None], s.result2[..., None]


def _group_input(s: Local, grad: Tensor) -> Tensor:
    normal, rstd = _group(s)
    into = grad if s.weight is None else grad * _batch_shape(s, s.weight)
    return _normalization_gradient(normal, rstd, into.reshape(normal.shape), (-1,)).reshape(s.input.shape)


def _per_channel(grad: Tensor) -> Tensor:
    return grad.sum((0, *range(2, grad.dim())))


_NORMALISED = "rstd · (G - mean G - x̂ · mean(G · x̂)), G = grad · weight"
_NORMS = (
    rule("NativeLayerNormBackward0", "normalise: no gradient along the mean and the length", "x̂ · weight + bias",
         Slot("input", _NORMALISED, _layer_input),
         Slot("weight", "Σ grad · x̂", lambda s, grad: (grad * _layer(s)[0]).sum_to_size(s.size(1))),
         Slot("bias", "Σ grad", lambda s, grad: grad.sum_to_size(s.size(2)))),
    rule("NativeBatchNormBackward0", "normalise: no gradient along the mean and the length", "x̂ · weight + bias",
         Slot("input", f"{_NORMALISED}; in eval mode rstd · G", _batch_input),
         Slot("weight", "Σ grad · x̂", lambda s, grad: _per_channel(grad * _batch(s)[0])),
         Slot("bias", "Σ grad", lambda s, grad: _per_channel(grad))),
    rule("NativeGroupNormBackward0", "normalise: no gradient along the mean and the length", "x̂ · weight + bias",
         Slot("input", _NORMALISED, _group_input),
         Slot("weight", "Σ grad · x̂", lambda s, grad: _per_channel(grad * _group(s)[0].reshape(s.input.shape))),
         Slot("bias", "Σ grad", lambda s, grad: _per_channel(grad))),
)  # fmt: skip

_NONE, _MEAN = 0, 1


def _loss(node: str, name: str, forward: str, formula: str, slope: Callable[[Local], Tensor]) -> Rule:
    """A loss of self and target that is averaged (divided by n) or summed: `slope` is its derivative by self."""

    def gradient(s: Local, grad: Tensor) -> Tensor:
        return grad * slope(s) / (s.self.numel() if s.reduction == _MEAN else 1)

    return rule(node, name, forward, Slot("self", f"grad · {formula} / n", gradient),
                Slot("target", f"-grad · {formula} / n", lambda s, grad: -gradient(s, grad)))  # fmt: skip


def _huber(s: Local) -> Tensor:
    return (s.self - s.target).clamp(-s.delta, s.delta)


def _times_weight(s: Local, slope: Tensor) -> Tensor:
    return slope if s.weight is None else slope * s.weight


def _cross_entropy(s: Local) -> Tensor:
    p = s.self
    return _times_weight(s, (p - s.target) / ((1 - p) * p).clamp(min=1e-12))


def _with_logits(s: Local) -> Tensor:
    x, target = s.self, s.target
    positive = target if s.pos_weight is None else target * s.pos_weight
    return _times_weight(s, (1 - target + positive) * torch.sigmoid(x) - positive)


def _likelihood(s: Local, grad: Tensor) -> Tensor:
    """-weight at the true class of each row; rows whose target is `ignore_index` count for nothing."""
    x, target = s.self, s.target
    rows = x.reshape(-1, x.shape[-1])
    known = target.reshape(-1) != s.ignore_index
    picked = target.reshape(-1).where(known, 0)
    weight = torch.ones_like(rows[0]) if s.weight is None else s.weight
    each = -weight[picked] * known
    each = each * grad.reshape(-1) if s.reduction == _NONE else each * grad
    if s.reduction == _MEAN:
        each = each / s.total_weight
    return torch.zeros_like(rows).scatter(1, picked[:, None], each[:, None]).reshape(x.shape)


_LOSSES = (
    _loss("MseLossBackward0", "derivative of a square", "(self - target)², averaged", "2 · (self - target)",
          lambda s: 2 * (s.self - s.target)),
    _loss("HuberLossBackward0", "a square near 0, straight beyond δ", "huber(self - target), averaged",
          "min(max(self - target, -δ), δ)", _huber),
    _loss("SmoothL1LossBackward0", "a square near 0, straight beyond β", "huber(self - target) / β, averaged",
          "min(max((self - target) / β, -1), 1)", lambda s: ((s.self - s.target) / s.beta).clamp(-1, 1)),
    _loss("BinaryCrossEntropyBackward0", "derivative of -t ln p - (1 - t) ln(1 - p)",
          "-target · ln(self) - (1 - target) · ln(1 - self), averaged", "(self - target) / (self · (1 - self))",
          _cross_entropy),
    _loss("BinaryCrossEntropyWithLogitsBackward0", "sigmoid and cross-entropy together",
          "cross-entropy of σ(self) and target, averaged", "(σ(self) - target)", _with_logits),
    rule("NllLossBackward0", "passes to the true class", "-Σ weight · self[target] / Σ weight",
         Slot("self", "-grad · weight / Σ weight at the target, 0 elsewhere", _likelihood)),
)  # fmt: skip


def to_maxima(s: Local, grad: Tensor) -> Tensor:
    """The gradient at the place that each maximum came from; a place may have been the maximum of several windows."""
    shape = s.self.shape
    places = s.result1.flatten(-2)
    zeros = torch.zeros((*shape[:-2], shape[-2] * shape[-1]), dtype=grad.dtype, device=grad.device)
    return zeros.scatter_add(-1, places, grad.flatten(-2)).reshape(shape)


def _average_pool(s: Local, grad: Tensor) -> Tensor:
    """Each place gets its share of every window it is in."""
    kernel, stride, padding = s.kernel_size, s.stride or s.kernel_size, s.padding
    height, width = s.self.shape[-2] + 2 * padding[0], s.self.shape[-1] + 2 * padding[1]
    rows, columns = grad.shape[-2:]
    # ceil_mode lets windows hang over the end; what they hang over takes no part.
    padded = torch.zeros((*grad.shape[:-2], height + kernel[0] + stride[0], width + kernel[1] + stride[1]),
                         dtype=grad.dtype, device=grad.device)  # fmt: skip
    shares = grad / _window_sizes(s, rows, columns).to(grad)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            padded[..., i : i + rows * stride[0] : stride[0], j : j + columns * stride[1] : stride[1]] += shares
    return padded[..., padding[0] : padding[0] + s.self.shape[-2], padding[1] : padding[1] + s.self.shape[-1]]


def _window_sizes(s: Local, rows: int, columns: int) -> Tensor:
    """By how much each window's sum is divided."""
    if s.divisor_override is not None:
        return torch.tensor(float(s.divisor_override))
    pair = [_window_sizes_along(s, axis, count) for axis, count in enumerate((rows, columns))]
    return pair[0][:, None] * pair[1][None, :]


def _window_sizes_along(s: Local, axis: int, count: int) -> Tensor:
    size, stride = s.self.shape[-2 + axis], (s.stride or s.kernel_size)[axis]
    start = torch.arange(count) * stride - s.padding[axis]
    end = (start + s.kernel_size[axis]).clamp(max=size + s.padding[axis])
    if s.count_include_pad:
        return end - start
    return end.clamp(max=size) - start.clamp(min=0)


def _adaptive_pool(s: Local, grad: Tensor) -> Tensor:
    """Windows that begin at ⌊i · n / m⌋ and end at ⌈(i + 1) · n / m⌉, for m results of n elements."""
    found = torch.zeros_like(s.self)
    height, width = s.self.shape[-2:]
    for i, (top, bottom) in enumerate(_cuts(height, grad.shape[-2])):
        for j, (left, right) in enumerate(_cuts(width, grad.shape[-1])):
            share = grad[..., i, j] / ((bottom - top) * (right - left))
            found[..., top:bottom, left:right] += share[..., None, None]
    return found


def _cuts(size: int, count: int) -> list[tuple[int, int]]:
    return [(i * size // count, math.ceil((i + 1) * size / count)) for i in range(count)]


def _glu_gradient(s: Local, grad: Tensor) -> Tensor:
    half, gate = s.self.chunk(2, s.dim)
    sigmoid = torch.sigmoid(gate)
    return torch.cat([grad * sigmoid, grad * half * sigmoid * (1 - sigmoid)], s.dim)


_POOLS = (
    rule("MaxPool2DWithIndicesBackward0", "passes to the greatest of each window", "max over windows",
         Slot("self", "Σ grad of the windows that it was the maximum of", to_maxima)),
    rule("AvgPool2DBackward0", "a mean over windows", "mean over windows",
         Slot("self", "Σ grad / n of the windows that it is in", _average_pool)),
    rule("AdaptiveAvgPool2DBackward0", "a mean over windows", "mean over windows",
         Slot("self", "Σ grad / n of the windows that it is in", _adaptive_pool)),
    rule("GluBackward0", "product rule on a · σ(b)", "a · σ(b), self = [a, b]",
         Slot("self", "[grad · σ(b), grad · a · σ(b) · (1 - σ(b))]", _glu_gradient)),
)  # fmt: skip

RULES: dict[str, Rule] = table(*_NORMS, *_LOSSES, *_POOLS)
