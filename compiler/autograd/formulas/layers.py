"""Rules for layers that torch differentiates as one node: norms, losses, pooling, upsampling, GLU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from compiler.autograd.formulas.rule import Local, Rule, Slot, moves, rule, table


def _normalization_gradient(normal: Tensor, rstd: Tensor, into: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Gradient of (x - mean) / std: `into` minus its mean and its projection on `normal`, times 1 / std."""
    along = (into * normal).mean(dims, keepdim=True)
    return rstd * (into - into.mean(dims, keepdim=True) - normal * along)


def _layer(s: Local) -> tuple[Tensor, tuple[int, ...]]:
    """Normalized input of a layer norm, and the dims over which it was normalized."""
    dims = tuple(range(-len(s.normalized_shape), 0))
    return (s.input - s.result1) * s.result2, dims


def _layer_input(s: Local, grad: Tensor) -> Tensor:
    normal, dims = _layer(s)
    return _normalization_gradient(normal, s.result2, grad if s.weight is None else grad * s.weight, dims)


def _batch_shape(s: Local, value: Tensor) -> Tensor:
    """Reshape a value for each channel so that it broadcasts with the input."""
    return value.reshape(1, -1, *[1] * (s.input.dim() - 2))


def _batch(s: Local) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Normalized input, 1 / std, and reduced dims of a batch norm."""
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
    """Normalized input `[n, group, elements]` of a group norm, and 1 / std."""
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
    """Rule for a loss of self and target, divided by n if it is averaged; `slope` is the derivative by self."""

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
    """Gradient of `nll_loss`: -grad · weight at each row's target, else 0; 0 for targets equal to `ignore_index`."""
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


def _mean_gradient(weights: Callable[[Local, int, int], Tensor]) -> Callable[[Local, Tensor], Tensor]:
    """A function that computes the gradient of weighted means over rows and columns.

    `weights(s, axis, count)` returns a matrix: the weight of each element (column) in each of the results (row).
    """

    def gradient(s: Local, grad: Tensor) -> Tensor:
        rows, columns = (weights(s, axis, grad.shape[axis]).to(grad) for axis in (-2, -1))
        return torch.einsum("...ab,ah,bw->...hw", grad, rows, columns)

    return gradient


def _windows(size: int, start: Tensor, end: Tensor) -> Tensor:
    """Matrix with one row for each window: 1 for elements inside the window, else 0."""
    place = torch.arange(size)
    return ((place >= start[:, None]) & (place < end[:, None])).double()


def _average_weights(s: Local, axis: int, count: int) -> Tensor:
    size, padding = s.self.shape[axis], s.padding[axis]
    start = torch.arange(count) * (s.stride or s.kernel_size)[axis] - padding
    end = (start + s.kernel_size[axis]).clamp(max=size + padding)  # ceil_mode lets windows hang over the end
    inside = _windows(size, start, end)
    if s.divisor_override is not None:
        return inside / (s.divisor_override if axis == -1 else 1)
    counted = end - start if s.count_include_pad else end.clamp(max=size) - start.clamp(min=0)
    return inside / counted[:, None]


def _adaptive_weights(s: Local, axis: int, count: int) -> Tensor:
    """Averaging weights: result i of m averages elements ⌊i · n / m⌋ up to, not including, ⌈(i + 1) · n / m⌉ of n."""
    size, index = s.self.shape[axis], torch.arange(count)
    inside = _windows(size, index * size // count, -(-(index + 1) * size // count))
    return inside / inside.sum(1, keepdim=True)


def _linear_weights(s: Local, axis: int, count: int) -> Tensor:
    """Interpolation weights: each result is a weighted mean of the two nearest elements."""
    size, scale = s.size()[axis], s.scales_h if axis == -2 else s.scales_w
    at = torch.arange(count, dtype=torch.float64)
    if s.align_corners:
        at = at * ((size - 1) / (count - 1) if count > 1 else 0)
    else:
        at = ((at + 0.5) * (1 / scale if scale else size / count) - 0.5).clamp(min=0)
    low = at.floor().long().clamp(max=size - 1)
    share = (at - low)[:, None]
    eye = torch.eye(size, dtype=torch.float64)
    return (1 - share) * eye[low] + share * eye[(low + 1).clamp(max=size - 1)]


def _glu_gradient(s: Local, grad: Tensor) -> Tensor:
    half, gate = s.self.chunk(2, s.dim)
    sigmoid = torch.sigmoid(gate)
    return torch.cat([grad * sigmoid, grad * half * sigmoid * (1 - sigmoid)], s.dim)


_POOLS = (
    *moves("MaxPool2DWithIndicesBackward0 AdaptiveMaxPool2DBackward0", "passes to the greatest of each window",
           "max over windows", "Σ grad of the windows that it was the maximum of",
           lambda s, x: x.flatten(-2).gather(-1, s.result1.flatten(-2))),
    rule("UpsampleBilinear2DBackward0", "weighted means of four neighbours", "means of neighbours in self",
         Slot("self", "Σ grad of the results that it counts in, by its weight in each",
              _mean_gradient(_linear_weights))),
    rule("AvgPool2DBackward0", "a mean over windows", "mean over windows",
         Slot("self", "Σ grad / n of the windows that it is in", _mean_gradient(_average_weights))),
    rule("AdaptiveAvgPool2DBackward0", "a mean over windows", "mean over windows",
         Slot("self", "Σ grad / n of the windows that it is in", _mean_gradient(_adaptive_weights))),
    rule("GluBackward0", "product rule on a · σ(b)", "a · σ(b), self = [a, b]",
         Slot("self", "[grad · σ(b), grad · a · σ(b) · (1 - σ(b))]", _glu_gradient)),
)  # fmt: skip

RULES: dict[str, Rule] = table(*_NORMS, *_LOSSES, *_POOLS)
