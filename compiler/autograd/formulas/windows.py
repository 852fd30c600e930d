"""Rules of operations that read places again and again, or between them: resizing, padding by reflection, windows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import fold

from compiler.autograd.formulas.layers import to_maxima
from compiler.autograd.formulas.rule import Local, Rule, Slot, rule, table


def _read_from(s: Local, axis: int, count: int, scale: float | None) -> Tensor:
    """Source position along an axis of each of `count` results, between the elements."""
    size = s.size()[axis]
    step = 1 / scale if scale else size / count
    return torch.arange(count, dtype=torch.float64) * step


def _nearest(s: Local, axis: int, count: int, scale: float | None) -> Tensor:
    """A row for each result, with 1 at the element that it is a copy of."""
    size = s.size()[axis]
    index = _read_from(s, axis, count, scale).floor().long().clamp(max=size - 1)
    return torch.eye(size, dtype=torch.float64)[index]


def _linear(s: Local, axis: int, count: int, scale: float | None) -> Tensor:
    """A row for each result, with the weights of the two elements that it lies between."""
    size = s.size()[axis]
    if s.align_corners:
        at = torch.arange(count, dtype=torch.float64) * ((size - 1) / (count - 1) if count > 1 else 0)
    else:
        half = 0.5 * (1 / scale if scale else size / count)
        at = (_read_from(s, axis, count, scale) + half - 0.5).clamp(min=0)
    low = at.floor().long().clamp(max=size - 1)
    share = (at - low)[:, None]
    eye = torch.eye(size, dtype=torch.float64)
    return (1 - share) * eye[low] + share * eye[(low + 1).clamp(max=size - 1)]


def _resize_gradient(weights: Callable[[Local, int, int, float | None], Tensor]) -> Callable[[Local, Tensor], Tensor]:
    def gradient(s: Local, grad: Tensor) -> Tensor:
        rows = weights(s, -2, s.output_size[0], s.scales_h).to(grad)
        columns = weights(s, -1, s.output_size[1], s.scales_w).to(grad)
        return torch.einsum("...ab,ah,bw->...hw", grad, rows, columns)

    return gradient


def _reflect(place: Tensor, size: int) -> Tensor:
    place = place.abs()
    return torch.where(place >= size, 2 * (size - 1) - place, place)


def _clamp(place: Tensor, size: int) -> Tensor:
    return place.clamp(0, size - 1)


def _padding_gradient(source: Callable[[Tensor, int], Tensor]) -> Callable[[Local, Tensor], Tensor]:
    """Each place gets the gradients of all its copies in the padding."""

    def gradient(s: Local, grad: Tensor) -> Tensor:
        for axis in range(len(s.padding) // 2):
            dim, size = grad.dim() - 1 - axis, s.self.shape[-1 - axis]
            index = source(torch.arange(grad.shape[dim]) - s.padding[2 * axis], size).to(grad.device)
            shape = (*grad.shape[:dim], size, *grad.shape[dim + 1 :])
            grad = torch.zeros(shape, dtype=grad.dtype, device=grad.device).index_add(dim, index, grad)
        return grad

    return gradient


def _unfold_gradient(s: Local, grad: Tensor) -> Tensor:
    found = torch.zeros(s.size(), dtype=grad.dtype, device=grad.device)
    dim = s.dimension % found.dim()
    for place in range(s.size_of_window):
        index = torch.arange(grad.shape[dim], device=grad.device) * s.step + place
        found = found.index_add(dim, index, grad.select(-1, place))
    return found


def _windows_of(s: Local, grad: Tensor) -> Tensor:
    return _unfold_gradient(Local({**s.saved, "size_of_window": s.saved["size"]}, s.grads, s.inputs), grad)


def _columns(s: Local, grad: Tensor) -> Tensor:
    return fold(grad, s.size()[-2:], s.kernel_size, s.dilation, s.padding, s.stride)


_WEIGHTED = "Σ grad of the results that it counts in, by its weight in each"
_COPIES = "Σ grad over its copies"
_WINDOWS = "Σ grad of the windows that it is in"

RULES: dict[str, Rule] = table(
    rule("UpsampleNearest2DBackward0", "one element used many times: sum", "the nearest element of self",
         Slot("self", _COPIES, _resize_gradient(_nearest))),
    rule("UpsampleBilinear2DBackward0", "weighted means of four neighbours", "means of neighbours in self",
         Slot("self", _WEIGHTED, _resize_gradient(_linear))),
    *(rule(f"ReflectionPad{dims}DBackward0", "one element used many times: sum", "self, mirrored at its edges",
           Slot("self", _COPIES, _padding_gradient(_reflect))) for dims in (1, 2)),
    *(rule(f"ReplicationPad{dims}DBackward0", "one element used many times: sum", "self, its edges repeated",
           Slot("self", _COPIES, _padding_gradient(_clamp))) for dims in (1, 2)),
    rule("UnfoldBackward0", "one element used many times: sum", "windows of self along a dim",
         Slot("self", _WINDOWS, _windows_of)),
    rule("Im2ColBackward0", "one element used many times: sum", "windows of self, as columns",
         Slot("self", _WINDOWS, _columns)),
    rule("AdaptiveMaxPool2DBackward0", "passes to the greatest of each window", "max over windows",
         Slot("self", "Σ grad of the windows that it was the maximum of", to_maxima)),
)  # fmt: skip
