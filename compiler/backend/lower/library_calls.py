"""Calls of libraries on a GPU: matmuls with operands as libraries read them best, laid out and padded where that pays;
convolutions without their bias, which the library leaves to a kernel of its own.

Libraries load 16 bytes at once where all rows begin at a multiple of these; matmuls of other sizes take several times
as long, for which Inductor pads them too. A padded operand is a loop, which others are inlined into; of a result whose
rows are too long the right part is read by a loop, which is inlined into its readers.

What reads a convolution's result adds the bias, in the same dtype and with the same rounding; the bias' gradient is a
reduction, which is merged with what makes the gradient that it sums up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from compiler.backend.ir import Buffer, Strided
from compiler.backend.ir.expr import Load, Shape, cast, operation
from compiler.backend.ir.index import Index
from compiler.backend.lower.indexing import guard_bounds
from compiler.backend.lower.pointwise import POINTWISE, element
from compiler.backend.lower.reductions import cast_up, finish_reduction, kept_shape, reduce
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, computing_dtype, shape_of, strides_of
from compiler.backend.lower.views import VIEWS
from compiler.torch_api.fx import value_of

LIBRARY = "PyTorch's own kernel"
"""Why there are no loops for a call."""
WIDTH = 16
"""Bytes that are loaded at once."""
RATE, BANDWIDTH = 600e12, 4e12
"""Operations and bytes a second of a large GPU: what a product takes when aligned, and what its padding takes."""
LEAST_SECONDS = 20e-6
_ROUNDED_ALIKE = (torch.float32, torch.float64)
"""Products are computed in these as they are stored, so that a bias can be added afterwards."""


def is_on_gpu(meta: Any) -> bool:
    """Whether a tensor, by its fake one, is a GPU's."""
    return bool(meta.device.type == "cuda")


def product(low: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """aten.mm."""
    return _padded_product(low, None, left, right)


def product_and_bias(low: Lowering, bias: Tensor, left: Tensor, right: Tensor, **factors: Any) -> Tensor:
    """aten.addmm, with a bias for each column. Kernels that read it add the bias: a library takes less time to call
    without one, as it has no kernel to look for. In low precision it stays, as eager mode rounds the sum only.
    """
    if len(bias.shape) != 1 or factors:
        raise NoRuleError(LIBRARY)
    try:
        return _padded_product(low, bias, left, right)
    except NoRuleError:
        if left.dtype not in _ROUNDED_ALIKE or not _is_for_kernels(low.node):
            raise
    bare = low.temporary("product", left.dtype, (left.shape[0], right.shape[1]), left)
    low.call_library((left, right), bare.buffer, torch.ops.aten.mm.default)
    low.operator = "bias"
    return low.fill(lambda at: operation("add", bare.load(at), element(bias, at[1:], left.dtype)))


def _is_for_kernels(node: Node) -> bool:
    """Whether all that reads a value, as it is or as a view, are loops that can add to it."""
    return all(
        str(user.target) in POINTWISE or (str(user.target) in VIEWS and _is_for_kernels(user)) for user in node.users
    )


def batch(low: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """aten.bmm on a GPU. Matrices that are all multiplied by the same one are the rows of one product; an operand that
    a library would copy first, as neither its rows nor its columns lie in memory one by one, is written so at once.
    """
    meta, name = low.meta, low.node.name
    if not is_on_gpu(meta):
        raise NoRuleError(LIBRARY)
    count, rows, _ = left.shape
    steps = left.strided.strides
    if right.strided.strides[0].constant != 0 or count.constant == 1:
        operands = [_readable(low, left, "left"), _readable(low, right, "right")]
        if operands == [left, right]:
            raise NoRuleError(LIBRARY)
        low.call_library(operands, name)
        return low.whole(name, meta)
    left = _readable(low, left, "left", again=steps[0] != rows * steps[1])
    strides = shape_of(meta.stride())
    made = low.add(Buffer(name, meta.dtype, (count * rows, right.shape[2]), strides[1:], str(meta.device)))
    args = (_matrix(left.strided, (count * rows, left.shape[2])), _matrix(right.strided, right.shape[1:]))
    low.call_library(args, name, torch.ops.aten.mm.default)
    view = Strided(name, (count, rows, right.shape[2]), strides, Index.of(0))
    return replace(made, shape=view.shape, at=lambda at: (at[0] * rows + at[1], at[2]), strided=view)


def _matrix(view: Strided, shape: Shape) -> Strided:
    """A batch as one matrix, by the strides of its last dimensions."""
    return Strided(view.buffer, shape, view.strides[1:], view.offset)


def _readable(low: Lowering, x: Tensor, side: str, again: bool = False) -> Tensor:
    """An operand as a library reads it: as it lies, or a copy."""
    if not again and any(step.constant == 1 for step in x.strided.strides[1:]):
        return x
    low.operator = "copy"
    return low.store(low.temporary(side, x.dtype, x.shape, x), x.load)


def row_pitch(node: Node) -> int:
    """How many elements lie between the beginnings of rows of an mm's or addmm's result, 0 for as many as a row has."""
    *added, left, right = map(value_of, node.args)  # type: ignore[arg-type]
    meta = value_of(node)
    if (unit := _unit(meta)) == 1 or node.kwargs or any(bias.dim() != 1 for bias in added):
        return 0
    rows, inner, columns = shape_of((*left.shape, right.shape[1]))
    wide = _round_up(columns, unit)
    return 0 if wide == columns or not _pays(rows, inner, columns, meta) else wide.constant or 0


def _padded_product(low: Lowering, bias: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    meta, name = low.meta, low.node.name
    unit = _unit(meta)
    (rows, inner), columns = left.shape, right.shape[1]
    wide_rows = _round_up(rows, unit) if _is_transposed(left) else rows
    wide_inner, wide_columns = _round_up(inner, unit), _round_up(columns, unit)
    strides = (wide_columns, Index.of(1))
    is_laid_out = strides_of(meta) == strides and wide_columns != columns
    pays = is_laid_out or _pays(rows, inner, columns, meta)
    if (wide_rows, wide_inner, wide_columns) == (rows, inner, columns) or not pays:
        raise NoRuleError(LIBRARY)
    operands = [_pad_copy(low, left, (wide_rows, wide_inner), "left")]
    operands += [_pad_copy(low, right, (wide_inner, wide_columns), "right")]
    if bias is not None:
        operands = [_pad_copy(low, bias, (wide_columns,), "bias"), *operands]
    name += "" if (wide_rows, wide_columns) == (rows, columns) else "_padded"
    whole = low.add(Buffer(name, meta.dtype, (wide_rows, wide_columns), strides, str(meta.device)))
    low.call_library(operands, name)
    if wide_columns == columns or is_laid_out:  # the first rows and columns, as they lie
        return replace(whole, shape=(rows, columns), strided=Strided(name, (rows, columns), strides, Index.of(0)))
    low.operator = "copy"
    return low.fill(lambda at: Load(name, at, meta.dtype))


def _unit(meta: Any) -> int:
    """Elements in 16 bytes, on a GPU; 1 where nothing is to be gained, as with float32 that is no TF32."""
    if not is_on_gpu(meta) or meta.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return 1
    if meta.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32:
        return 1
    return WIDTH // int(meta.dtype.itemsize)


def _round_up(size: Index, unit: int) -> Index:
    known = size.constant
    return size if known is None else Index.of(-(-known // unit) * unit)


def _pays(rows: Index, inner: Index, columns: Index, meta: Any) -> bool:
    """Whether the product takes longer than copies of both operands. A size that is not known counts as 1024."""
    m, k, n = (size.constant if size.constant is not None else 1024 for size in (rows, inner, columns))
    seconds = 2 * m * k * n / RATE
    return seconds > max(LEAST_SECONDS, 2 * (m * k + k * n) * meta.dtype.itemsize / BANDWIDTH)


def _is_transposed(x: Tensor) -> bool:
    """Whether neighbours in memory are of one column."""
    first, last = x.strided.strides
    return first.constant == 1 and last.constant != 1


def _pad_copy(low: Lowering, x: Tensor, shape: Shape, side: str) -> Tensor:
    """A copy with zeros at its ends, laid out as the original; made once for all products that take it."""
    if shape == x.shape:
        return x
    if len(shape) == 2 and _is_transposed(x):
        return _transpose(_pad_copy(low, _transpose(x), shape[::-1], side))
    key = f"{x.strided} of {', '.join(map(str, shape))}"
    if key not in low.padded:
        low.operator = "pad"
        made = low.temporary(side, x.dtype, shape, x)
        low.padded[key] = low.store(made, lambda at: guard_bounds(at, x.shape, element(x, at, x.dtype), 0))
    return low.padded[key]


def _transpose(x: Tensor) -> Tensor:
    view = x.strided
    strided = Strided(view.buffer, view.shape[::-1], view.strides[::-1], view.offset)
    return Tensor(x.buffer, x.dtype, x.shape[::-1], lambda at: x.at(at[::-1]), strided)


def convolution(low: Lowering, image: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """aten.convolution."""
    if bias is None or not is_on_gpu(low.meta):
        raise NoRuleError(LIBRARY)
    dtype, name = computing_dtype(low.dtype), f"{low.node.name}_without_bias"
    bare = low.whole(name, low.meta)
    low.call_library((image, weight, None, *rest), name)
    low.operator = "bias"
    return low.fill(
        lambda at: cast(operation("add", element(bare, at, dtype), element(bias, at[1:2], dtype)), low.dtype)
    )


def convolution_backward(low: Lowering, gradient: Tensor, *args: Any) -> tuple[Tensor | None, ...]:
    """aten.convolution_backward: gradients of the image, the weight and the bias, those that `args[-1]` asks for."""
    metas, (*others, of_bias) = low.meta, args[-1]
    if not of_bias or not isinstance(gradient, Tensor) or not is_on_gpu(metas[2]):
        raise NoRuleError(LIBRARY)
    names = tuple(f"{low.node.name}_{place}" if asked else None for place, asked in enumerate(others))
    made = tuple(low.whole(name, metas[place]) if name else None for place, name in enumerate(names))
    if any(others):
        low.call_library((gradient, *args[:2], None, *args[3:-1], [*others, False]), (*names, None))
    dims = [dim for dim in range(len(gradient.shape)) if dim != 1]
    total = low.temporary("sum", computing_dtype(metas[2].dtype), kept_shape(gradient, dims), gradient)
    reduce(low, gradient, dims, "sum", total, lambda value, _: cast_up(value))
    return *made, finish_reduction(low, gradient, dims, lambda at: cast(total.load(at), metas[2].dtype), "_2", metas[2])


LIBRARY_CALLS: dict[str, Rule] = {
    "aten.mm.default": product,
    "aten.addmm.default": product_and_bias,
    "aten.bmm.default": batch,
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_backward,
}
