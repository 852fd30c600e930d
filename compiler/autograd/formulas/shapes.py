"""Rules of operations that move elements and compute nothing: views, joins, copies, lookups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pixel_unshuffle

from compiler.autograd.formulas.rule import Gradient, Local, Rule, Slot, rule, table

_IN_PLACE_OF = "grad where it came from, 0 elsewhere"


def _moves(node: str, name: str, forward: str, formula: str, gradient: Gradient) -> Rule:
    return rule(node, name, forward, Slot("self", formula, gradient))


def _write_into_zeros(read: Any) -> Gradient:
    """The gradient written to the place that `read(s, tensor)` reads from, in a tensor of zeros."""

    def gradient(s: Local, grad: Tensor) -> Tensor:
        zeros = torch.zeros(s.size(), dtype=grad.dtype, device=grad.device)
        read(s, zeros).copy_(grad)
        return zeros

    return gradient


def _index_gradient(s: Local, grad: Tensor) -> Tensor:
    zeros = torch.zeros(s.size(), dtype=grad.dtype, device=grad.device)
    positions = torch.arange(zeros.numel(), device=grad.device).reshape(zeros.shape)[_indices(s)]
    return zeros.reshape(-1).index_add(0, positions.reshape(-1), grad.reshape(-1)).reshape(zeros.shape)


def _indices(s: Local) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in s.indices)


def _overwritten(s: Local, grad: Tensor) -> Tensor:
    if s.accumulate:
        return grad
    kept = grad.clone()
    kept[_indices(s)] = 0
    return kept


def _take_gradient(s: Local, grad: Tensor) -> Tensor:
    zeros = torch.zeros(s.size(), dtype=grad.dtype, device=grad.device)
    return zeros.reshape(-1).index_add(0, s.index.reshape(-1), grad.reshape(-1)).reshape(zeros.shape)


def _embedding_gradient(s: Local, grad: Tensor) -> Tensor:
    rows = s.indices.reshape(-1)
    grad = grad.reshape(rows.numel(), -1).masked_fill((rows == s.padding_idx)[:, None], 0)
    return torch.zeros(s.size(), dtype=grad.dtype, device=grad.device).index_add(0, rows, grad)


def _gather_gradient(s: Local, grad: Tensor) -> Tensor:
    return torch.zeros(s.size(), dtype=grad.dtype, device=grad.device).scatter_add(s.dim, s.index, grad)


def _pad_gradient(s: Local, grad: Tensor) -> Tensor:
    for place in range(len(s.pad) // 2):
        dim = grad.dim() - 1 - place
        before = s.pad[2 * place]
        grad = grad.narrow(dim, before, s.size()[dim])
    return grad


def _repeat_gradient(s: Local, grad: Tensor) -> Tensor:
    """A sum over the copies."""
    shape = s.size()
    lead = len(s.repeats) - len(shape)
    sizes = [each for times, size in zip(s.repeats, (*[1] * lead, *shape), strict=True) for each in (times, size)]
    return grad.reshape(sizes).sum(tuple(range(0, len(sizes), 2))).reshape(shape)


def _inverse(dims: tuple[int, ...]) -> list[int]:
    order = [dim % len(dims) for dim in dims]
    return sorted(range(len(order)), key=order.__getitem__)


def _cat_gradient(s: Local, grad: Tensor) -> Tensor:
    """The piece of a concatenation that came from one input."""
    dim = s.dim % grad.dim()
    known = [shape[0][dim] if shape else None for shape in s.inputs]
    start = sum(size for size in known[: s.index] if size is not None)
    if any(size is None for size in known[: s.index]):  # counted from the end, where those before are not known
        start = grad.shape[dim] - sum(size for size in known[s.index :] if size is not None)
    return grad.narrow(dim, start, s.size(s.index)[dim])


def _pieces(s: Local, sizes: Any) -> Tensor:
    """The gradients of all the pieces, joined; zeros for a piece that got none."""
    shape = list(s.size())
    dim = s.dim % len(shape)
    some = next(grad for grad in s.grads if grad is not None)
    pieces = []
    for size, grad in zip(sizes(shape[dim]), s.grads, strict=True):
        piece = [*shape[:dim], size, *shape[dim + 1 :]]
        pieces.append(torch.zeros(piece, dtype=some.dtype, device=some.device) if grad is None else grad.reshape(piece))
    return torch.cat(pieces, dim)


def _split(s: Local, _: Tensor) -> Tensor:
    return _pieces(s, lambda whole: [min(s.split_size, whole - at) for at in range(0, whole, s.split_size)])


def _slice_of(s: Local, zeros: Tensor) -> Tensor:
    keys = [slice(None)] * zeros.dim()
    keys[s.dim] = slice(s.start, s.end, s.step)
    return zeros[tuple(keys)]


_REGROUP = "the same elements in another shape"
_VIEWS = (
    *(_moves(f"{node}Backward0", _REGROUP, "self, regrouped", "grad, regrouped",
             lambda s, grad: grad.reshape(s.size()))
      for node in ("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze")),
    *(_moves(f"SqueezeBackward{number}", _REGROUP, "self without dims of size 1", "grad, with these dims again",
             lambda s, grad: grad.reshape(s.size()))
      for number in (1, 2, 4)),
    _moves("TBackward0", "transpose back", "selfᵀ", "gradᵀ", lambda s, grad: grad.t()),
    *(_moves(f"TransposeBackward{number}", "transpose back", "self, two dims exchanged", "grad, exchanged back",
             lambda s, grad: grad.transpose(s.dim0, s.dim1))
      for number in (0, 1)),
    _moves("PermuteBackward0", "permute back", "self, dims permuted", "grad, permuted back",
           lambda s, grad: grad.permute(_inverse(s.dims))),
    _moves("ExpandBackward0", "one element used many times: sum", "self, repeated without a copy",
           "Σ grad over what was repeated", lambda s, grad: grad),
    _moves("SliceBackward0", "passes to what was read", "self[start:end:step]", _IN_PLACE_OF,
           _write_into_zeros(_slice_of)),
    _moves("SelectBackward0", "passes to what was read", "self[index]", _IN_PLACE_OF,
           _write_into_zeros(lambda s, zeros: zeros.select(s.dim, s.index))),
    _moves("DiagonalBackward0", "passes to what was read", "the diagonal of self", _IN_PLACE_OF,
           _write_into_zeros(lambda s, zeros: zeros.diagonal(s.offset, s.dim1, s.dim2))),
    _moves("AliasBackward0", "the same tensor", "self", "grad", lambda s, grad: grad),
    *(_moves(f"{node}Backward0", "join the pieces", "self, cut into pieces", "the gradients of all pieces, joined",
             _split)
      for node in ("Split", "UnsafeSplit")),
    _moves("SplitWithSizesBackward0", "join the pieces", "self, cut into pieces", "the gradients of all pieces, joined",
           lambda s, _: _pieces(s, lambda _: s.split_sizes)),
    _moves("UnbindBackward0", "join the pieces", "self, cut along dim", "the gradients of all pieces, stacked",
           lambda s, _: _pieces(s, lambda whole: [1] * whole)),
)  # fmt: skip


_COPIES = (
    _moves("CloneBackward0", "a copy", "self", "grad", lambda s, grad: grad),
    _moves("ToCopyBackward0", "a copy in another dtype or on another device", "self, converted", "grad, converted back",
           lambda s, grad: grad),
    _moves("PixelShuffleBackward0", "a permutation", "channels as finer places", "grad, shuffled back",
           lambda s, grad: pixel_unshuffle(grad, s.upscale_factor)),
    _moves("TraceBackward0", "each term of a sum counts once", "Σ of the diagonal", "grad on the diagonal, 0 elsewhere",
           lambda s, grad: grad * torch.eye(*s.size(), dtype=grad.dtype, device=grad.device)),
    _moves("RepeatBackward0", "one element used many times: sum", "self, repeated", "Σ grad over the copies",
           _repeat_gradient),
    _moves("FlipBackward0", "flip back", "self, reversed", "grad, reversed", lambda s, grad: grad.flip(s.dims)),
    _moves("RollBackward0", "roll back", "self, rolled", "grad, rolled back",
           lambda s, grad: grad.roll([-shift for shift in s.shifts], s.dims)),
    _moves("TrilBackward0", "passes where something was kept", "self below the diagonal", "grad below the diagonal",
           lambda s, grad: grad.tril(s.diagonal)),
    _moves("TriuBackward0", "passes where something was kept", "self above the diagonal", "grad above the diagonal",
           lambda s, grad: grad.triu(s.diagonal)),
    _moves("ConstantPadNdBackward0", "the padding is constant", "self, padded", "grad without the padding",
           _pad_gradient),
)  # fmt: skip

_LOOKUPS = (
    _moves("IndexBackward0", "passes to what was read; sums where it was read twice", "self[indices]",
           "Σ grad at each place that was read", _index_gradient),
    rule("EmbeddingBackward0", "passes to the rows that were looked up", "weight[indices]",
         Slot("weight", "Σ grad for each row, by how often it was looked up", _embedding_gradient)),
    _moves("IndexSelectBackward0", "passes to what was read; sums where it was read twice", "self[index]",
           "Σ grad at each place that was read",
           lambda s, grad: torch.zeros(s.size(), dtype=grad.dtype).to(grad.device).index_add(s.dim, s.index, grad)),
    _moves("GatherBackward0", "passes to what was read; sums where it was read twice", "self at index along dim",
           "Σ grad at each place that was read", _gather_gradient),
    _moves("TakeBackward0", "passes to what was read; sums where it was read twice", "self[index], counted flat",
           "Σ grad at each place that was read", _take_gradient),
    _moves("MaskedSelectBackward0", "passes to what was read", "self where mask", _IN_PLACE_OF,
           lambda s, grad: torch.zeros(s.size(), dtype=grad.dtype, device=grad.device).masked_scatter(s.mask, grad)),
    rule("IndexPutBackward0", "passes to whichever was written", "self, with values written at indices",
         Slot("self", "grad, 0 where it was overwritten", _overwritten),
         Slot("values", "grad at indices", lambda s, grad: grad[_indices(s)])),
    rule("ScatterBackward0", "passes to whichever was written", "self, with src written at index",
         Slot("self", "grad, 0 where it was overwritten", lambda s, grad: grad.scatter(s.dim, s.index, 0)),
         Slot("src", "grad at index", lambda s, grad: grad.gather(s.dim, s.index))),
    _moves("ScatterBackward1", "passes where nothing was written", "self, with a number written at index",
           "grad, 0 where it was overwritten", lambda s, grad: grad.scatter(s.dim, s.index, 0)),
    rule("IndexAddBackward0", "sum rule", "self, with α · source added at index",
         Slot("self", "grad", lambda s, grad: grad),
         Slot("source", "α · grad at index", lambda s, grad: s.alpha * grad.index_select(s.dim, s.index))),
    rule("ScatterAddBackward0", "sum rule", "self, with src added at index",
         Slot("self", "grad", lambda s, grad: grad),
         Slot("src", "grad at index", lambda s, grad: grad.gather(s.dim, s.index))),
)  # fmt: skip

_JOINS = (
    Rule("CatBackward0", "cut the gradient into pieces", "all inputs, joined along dim",
         (Slot("tensors", "its piece of grad", _cat_gradient),), many=True),
    Rule("StackBackward0", "cut the gradient into pieces", "all inputs, stacked along dim",
         (Slot("tensors", "its piece of grad", lambda s, grad: grad.select(s.dim, s.index)),), many=True),
)  # fmt: skip

RULES: dict[str, Rule] = table(*_VIEWS, *_COPIES, *_LOOKUPS, *_JOINS)
