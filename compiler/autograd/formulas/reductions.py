"""Rules for reductions, scans and other operations along dims: sums, means, extremes, softmax, variance, norms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from compiler.autograd.formulas.rule import Local, Rule, Slot, moves, rule, table


def _dims(s: Local) -> tuple[int, ...]:
    dim = s.saved.get("dim")
    dims = () if dim is None else s.dim
    return dims if isinstance(dims, tuple) else (dims,)


def _expand_back(s: Local, value: Tensor) -> Tensor:
    """Expand a reduced value to the shape before the reduction."""
    shape, dims = s.size(), _dims(s)
    for dim in () if s.saved.get("keepdim", False) else sorted(dim % len(shape) for dim in dims):
        value = value.unsqueeze(dim)
    return value.expand(shape)


def _count(s: Local) -> int:
    """Number of elements that are reduced to one result."""
    shape = s.size()
    return math.prod(shape[dim] for dim in _dims(s) or range(len(shape)))


def _extreme(s: Local, grad: Tensor) -> Tensor:
    """Gradient of a maximum or minimum, shared equally by all elements that are equal to the result."""
    chosen = (s.self == _expand_back(s, s.result)).to(grad.dtype)
    dims = _dims(s) or tuple(range(s.self.dim()))
    return _expand_back(s, grad) * chosen / (chosen.sum(dims, keepdim=True) if dims else chosen)


def _read_at_indices(s: Local, x: Tensor) -> Tensor:
    """The elements of `x` at the indices that the operation returned."""
    return x.gather(s.dim, s.indices if s.saved.get("keepdim", True) else s.indices.unsqueeze(s.dim))


def _softmax(s: Local, grad: Tensor) -> Tensor:
    return s.result * (grad - (grad * s.result).sum(s.dim, keepdim=True))


def _log_softmax(s: Local, grad: Tensor) -> Tensor:
    return grad - s.result.exp() * grad.sum(s.dim, keepdim=True)


def _variance(s: Local, grad: Tensor) -> Tensor:
    dims = _dims(s) or tuple(range(s.self.dim()))
    count = _count(s)
    correction = 1 if s.correction is None else s.correction
    return _expand_back(s, grad) * 2 * (s.self - s.self.mean(dims, keepdim=True)) / (count - correction)


def _deviation(s: Local, grad: Tensor) -> Tensor:
    return _variance(s, grad / (2 * s.result))


def _norm(s: Local, grad: Tensor) -> Tensor:
    """Gradient of the p-norm: grad · x · |x|^(p-2) / ‖x‖^(p-1) for finite p; 0 where the norm is 0."""
    p, x = float(s.ord), s.self
    result, grad = _expand_back(s, s.result), _expand_back(s, grad)
    if p == math.inf:
        chosen = (x.abs() == result).to(grad.dtype)
        return grad * x.sign() * chosen / chosen.sum(_dims(s) or tuple(range(x.dim())), keepdim=True)
    found = grad * x * x.abs() ** (p - 2) / result ** (p - 1) if p != 1 else grad * x.sign()
    return torch.where(result == 0, 0.0, found)


def _product(s: Local, grad: Tensor) -> Tensor:
    """Gradient of prod: grad times the product of all other elements, without division, as an element may be 0."""
    flat = s.self.reshape(-1)
    one = torch.ones_like(flat[:1])
    before = torch.cat([one, flat[:-1]]).cumprod(0)
    behind = torch.cat([flat[1:], one]).flip(0).cumprod(0).flip(0)
    return (grad * before * behind).reshape(s.self.shape)


def _running_product(s: Local, grad: Tensor) -> Tensor:
    """Gradient of cumprod, from products that leave out one factor, as an element may be 0."""
    found = []
    for place in range(s.self.shape[s.dim]):
        index = torch.tensor([place], device=grad.device)
        others = s.self.index_fill(s.dim, index, 1).cumprod(s.dim)
        found.append((grad * others).narrow(s.dim, place, s.self.shape[s.dim] - place).sum(s.dim))
    return torch.stack(found, s.dim)


def _running_softmax(s: Local, grad: Tensor) -> Tensor:
    return s.self.exp() * (grad * (-s.result).exp()).flip(s.dim).cumsum(s.dim).flip(s.dim)


_SUMS = (
    rule("SumBackward0", "each term of a sum counts once", "Σ self",
         Slot("self", "grad, copied to every term", _expand_back)),
    rule("SumBackward1", "each term of a sum counts once", "Σ_dim self",
         Slot("self", "grad, copied along dim", _expand_back)),
    rule("MeanBackward0", "a sum divided by n", "Σ self / n",
         Slot("self", "grad / n, copied to every term", lambda s, grad: _expand_back(s, grad) / _count(s))),
    rule("MeanBackward1", "a sum divided by n", "Σ_dim self / n",
         Slot("self", "grad / n, copied along dim", lambda s, grad: _expand_back(s, grad) / _count(s))),
    rule("CumsumBackward0", "an element counts in all sums from it on", "outᵢ = Σ_{j ≤ i} selfⱼ",
         Slot("self", "Σ_{j ≥ i} gradⱼ", lambda s, grad: grad.flip(s.dim).cumsum(s.dim).flip(s.dim))),
    rule("CumprodBackward0", "product rule, in all products that it is in", "outᵢ = Π_{j ≤ i} selfⱼ",
         Slot("self", "Σ_{i ≥ j} gradᵢ · product of all the others up to i", _running_product)),
    rule("LogcumsumexpBackward0", "softmax of all sums that it is in", "outᵢ = ln Σ_{j ≤ i} exp(selfⱼ)",
         Slot("self", "Σ_{i ≥ j} gradᵢ · exp(selfⱼ - outᵢ)", _running_softmax)),
    rule("ProdBackward0", "product rule", "Π self", Slot("self", "grad · product of all the others", _product)),
)  # fmt: skip

_CHOSEN = (
    ("MaxBackward0", "passes to the greatest element", "max_dim self", "grad where the maximum was, else 0"),
    ("MinBackward0", "passes to the smallest element", "min_dim self", "grad where the minimum was, else 0"),
    ("TopkBackward0", "passes to the chosen elements", "the k greatest of self", "grad where each was, else 0"),
    ("SortBackward0", "a permutation", "self, sorted", "grad, put back in place"),
)
_EQUAL = (
    ("MaxBackward1", "passes to the greatest elements", "max self"),
    ("MinBackward1", "passes to the smallest elements", "min self"),
    ("AmaxBackward0", "passes to the greatest elements", "max_dim self"),
    ("AminBackward0", "passes to the smallest elements", "min_dim self"),
)
_EXTREMES = (
    *(found for words in _CHOSEN for found in moves(*words, _read_at_indices)),
    *(rule(*words, Slot("self", "grad · [self = out] / how many are equal", _extreme)) for words in _EQUAL),
)

_STATISTICS = (
    rule("SoftmaxBackward0", "softmax: diag(p) - p pᵀ", "exp(self) / Σ exp(self)",
         Slot("self", "out · (grad - Σ grad · out)", _softmax)),
    rule("SafeSoftmaxBackward0", "softmax: diag(p) - p pᵀ", "exp(self) / Σ exp(self), 0 where all is masked",
         Slot("self", "out · (grad - Σ grad · out)", _softmax)),
    rule("LogSoftmaxBackward0", "softmax, in logarithms", "self - ln Σ exp(self)",
         Slot("self", "grad - exp(out) · Σ grad", _log_softmax)),
    rule("LogsumexpBackward0", "the gradient of logsumexp is softmax", "ln Σ exp(self)",
         Slot("self", "grad · exp(self - out)",
              lambda s, grad: _expand_back(s, grad) * (s.self - _expand_back(s, s.result)).exp())),
    rule("VarBackward0", "sum of squares around the mean", "Σ (self - mean)² / (n - correction)",
         Slot("self", "grad · 2 · (self - mean) / (n - correction)", _variance)),
    rule("StdBackward0", "root of the variance", "√var(self)",
         Slot("self", "grad · (self - mean) / ((n - correction) · out)", _deviation)),
    rule("LinalgVectorNormBackward0", "the gradient of a length is a direction", "(Σ |self|^p)^(1/p)",
         Slot("self", "grad · self · |self|^(p-2) / out^(p-1)", _norm)),
)  # fmt: skip

RULES: dict[str, Rule] = table(*_SUMS, *_EXTREMES, *_STATISTICS)
