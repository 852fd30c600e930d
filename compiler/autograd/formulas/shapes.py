"""Rules for operations that mainly move elements: views, joins, copies, lookups, padding, windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, pixel_shuffle, unfold

from compiler.autograd.formulas.rule import Local, Rule, Slot, moves, rule, table

_BACK = "grad where it came from, 0 elsewhere"
_READ = "Σ grad at each place that was read"
_READ_TWICE = "passes to what was read; sums where it was read twice"
_OVERWRITTEN = "grad, 0 where it was overwritten"
_MANY = "one element used many times: sum"
_COPIES = "Σ grad over its copies"


def _indices(s: Local) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in s.indices)


def _overwritten(s: Local, grad: Tensor) -> Tensor:
    if s.accumulate:
        return grad
    kept = grad.clone()
    kept[_indices(s)] = 0
    return kept


def _cat_gradient(s: Local, grad: Tensor) -> Tensor:
    """The part of a concatenation's gradient that belongs to input `s.index`."""
    dim = s.dim % grad.dim()
    known = [shape[0][dim] if shape else None for shape in s.inputs]
    start = sum(size for size in known[: s.index] if size is not None)
    if any(size is None for size in known[: s.index]):  # counted from the end, where those before are not known
        start = grad.shape[dim] - sum(size for size in known[s.index :] if size is not None)
    return grad.narrow(dim, start, s.size(s.index)[dim])


_VIEWS = (
    *moves("ViewBackward0 UnsafeViewBackward0 ReshapeAliasBackward0 UnsqueezeBackward0 SqueezeBackward0",
           "the same elements in another shape", "self, regrouped", "grad, regrouped", lambda s, x: x),
    *moves("SqueezeBackward1 SqueezeBackward2 SqueezeBackward4", "the same elements in another shape",
           "self without dims of size 1", "grad, with these dims again", lambda s, x: x),
    *moves("TBackward0", "transpose back", "selfᵀ", "gradᵀ", lambda s, x: x.t()),
    *moves("TransposeBackward0 TransposeBackward1", "transpose back", "self, two dims exchanged",
           "grad, exchanged back", lambda s, x: x.transpose(s.dim0, s.dim1)),
    *moves("PermuteBackward0", "permute back", "self, dims permuted", "grad, permuted back",
           lambda s, x: x.permute(s.dims)),
    rule("ExpandBackward0", _MANY, "self, repeated without a copy",
         Slot("self", "Σ grad over what was repeated", lambda s, grad: grad)),
    *moves("SliceBackward0", "passes to what was read", "self[start:end:step]", _BACK,
           lambda s, x: torch.ops.aten.slice(x, s.dim, s.start, s.end, s.step)),
    *moves("SelectBackward0", "passes to what was read", "self[index]", _BACK, lambda s, x: x.select(s.dim, s.index)),
    *moves("DiagonalBackward0", "passes to what was read", "the diagonal of self", _BACK,
           lambda s, x: x.diagonal(s.offset, s.dim1, s.dim2)),
    *moves("AliasBackward0", "the same tensor", "self", "grad", lambda s, x: x),
    *moves("SplitBackward0 UnsafeSplitBackward0", "join the pieces", "self, cut into pieces",
           "the gradients of all pieces, joined", lambda s, x: x.split(s.split_size, s.dim)),
    *moves("SplitWithSizesBackward0", "join the pieces", "self, cut into pieces",
           "the gradients of all pieces, joined", lambda s, x: x.split(s.split_sizes, s.dim)),
    *moves("UnbindBackward0", "join the pieces", "self, cut along dim", "the gradients of all pieces, stacked",
           lambda s, x: x.unbind(s.dim)),
    *moves("UnfoldBackward0", _MANY, "windows of self along a dim", "Σ grad of the windows that it is in",
           lambda s, x: x.unfold(s.dimension, s.saved["size"], s.step)),
)  # fmt: skip


_COPYING = (
    *moves("CloneBackward0", "a copy", "self", "grad", lambda s, x: x),
    *moves("ToCopyBackward0", "a copy in another dtype or on another device", "self, converted",
           "grad, converted back", lambda s, x: x),
    *moves("PixelShuffleBackward0", "a permutation", "channels as finer places", "grad, shuffled back",
           lambda s, x: pixel_shuffle(x, s.upscale_factor)),
    *moves("TraceBackward0", "each term of a sum counts once", "Σ of the diagonal",
           "grad on the diagonal, 0 elsewhere", lambda s, x: x.diagonal()),
    *moves("RepeatBackward0", _MANY, "self, repeated", "Σ grad over the copies", lambda s, x: x.repeat(s.repeats)),
    *moves("FlipBackward0", "flip back", "self, reversed", "grad, reversed", lambda s, x: x.flip(s.dims)),
    *moves("RollBackward0", "roll back", "self, rolled", "grad, rolled back", lambda s, x: x.roll(s.shifts, s.dims)),
    *moves("TrilBackward0", "passes where something was kept", "self below the diagonal", "grad below the diagonal",
           lambda s, x: x.tril(s.diagonal)),
    *moves("TriuBackward0", "passes where something was kept", "self above the diagonal", "grad above the diagonal",
           lambda s, x: x.triu(s.diagonal)),
    *moves("ConstantPadNdBackward0", "the padding is constant", "self, padded", "grad without the padding",
           lambda s, x: pad(x, s.pad)),
    *moves("ReflectionPad1DBackward0 ReflectionPad2DBackward0", _MANY, "self, mirrored at its edges", _COPIES,
           lambda s, x: pad(x, s.padding, "reflect")),
    *moves("ReplicationPad1DBackward0 ReplicationPad2DBackward0", _MANY, "self, its edges repeated", _COPIES,
           lambda s, x: pad(x, s.padding, "replicate")),
    *moves("UpsampleNearest2DBackward0", _MANY, "the nearest element of self", _COPIES,
           lambda s, x: torch.ops.aten.upsample_nearest2d(x, s.output_size, s.scales_h, s.scales_w)),
    *moves("Im2ColBackward0", _MANY, "windows of self, as columns", "Σ grad of the windows that it is in",
           lambda s, x: unfold(x, s.kernel_size, s.dilation, s.padding, s.stride)),
)  # fmt: skip

_LOOKUPS = (
    *moves("IndexBackward0", _READ_TWICE, "self[indices]", _READ, lambda s, x: x[_indices(s)]),
    *moves("EmbeddingBackward0", "passes to the rows that were looked up", "weight[indices]",
           "Σ grad for each row, by how often it was looked up",
           lambda s, x: x[s.indices].masked_fill((s.indices == s.padding_idx)[..., None], 0), "weight"),
    *moves("IndexSelectBackward0", _READ_TWICE, "self[index]", _READ, lambda s, x: x.index_select(s.dim, s.index)),
    *moves("GatherBackward0", _READ_TWICE, "self at index along dim", _READ, lambda s, x: x.gather(s.dim, s.index)),
    *moves("TakeBackward0", _READ_TWICE, "self[index], counted flat", _READ, lambda s, x: x.take(s.index)),
    *moves("MaskedSelectBackward0", "passes to what was read", "self where mask", _BACK,
           lambda s, x: x.masked_select(s.mask)),
    rule("IndexPutBackward0", "passes to whichever was written", "self, with values written at indices",
         Slot("self", _OVERWRITTEN, _overwritten),
         Slot("values", "grad at indices", lambda s, grad: grad[_indices(s)])),
    rule("ScatterBackward0", "passes to whichever was written", "self, with src written at index",
         Slot("self", _OVERWRITTEN, lambda s, grad: grad.scatter(s.dim, s.index, 0)),
         Slot("src", "grad at index", lambda s, grad: grad.gather(s.dim, s.index))),
    rule("ScatterBackward1", "passes where nothing was written", "self, with a number written at index",
         Slot("self", _OVERWRITTEN, lambda s, grad: grad.scatter(s.dim, s.index, 0))),
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

RULES: dict[str, Rule] = table(*_VIEWS, *_COPYING, *_LOOKUPS, *_JOINS)
