"""Products of matrices on a GPU, with operands as libraries read them best: laid out, and padded where that pays.

Libraries load 16 bytes at once where all rows begin at a multiple of these; products with other sizes take several
times as long, for which Inductor pads them too. A padded operand is a loop, which others are inlined into; of a result
whose rows are too long the right part is read by a loop, which is inlined into its readers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from compiler.backend.ir import Buffer, Loop, Strided
from compiler.backend.ir.expr import Expr, Load, Shape, operation
from compiler.backend.ir.index import Index
from compiler.backend.lower.indexing import guard_bounds
from compiler.backend.lower.pointwise import POINTWISE, element
from compiler.backend.lower.sizes import shape_of, strides_of
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, checked_dtype, is_on_gpu, walk
from compiler.backend.lower.views import VIEWS
from compiler.torch_api.fx import value_of

WIDTH = 16
"""Bytes that are loaded at once."""
RATE, BANDWIDTH = 600e12, 4e12
"""Operations and bytes a second of a large GPU: what a product takes when aligned, and what its padding takes."""
LEAST_SECONDS = 20e-6
_ROUNDED_ALIKE = (torch.float32, torch.float64)
"""Products are computed in these as they are stored, so that a bias can be added afterwards."""


def product(low: Lowering, node: Node, left: Tensor, right: Tensor) -> Tensor:
    """aten.mm."""
    return _padded_product(low, node, None, left, right)


def product_and_bias(low: Lowering, node: Node, bias: Tensor, left: Tensor, right: Tensor, **factors: Any) -> Tensor:
    """aten.addmm, with a bias for each column. Kernels that read it add the bias: a library takes less time to call
    without one, as it has no kernel to look for. In low precision it stays, as eager mode rounds the sum only.
    """
    if len(bias.shape) != 1 or factors:
        raise NoRuleError("PyTorch's own kernel")
    try:
        return _padded_product(low, node, bias, left, right)
    except NoRuleError:
        if left.dtype not in _ROUNDED_ALIKE or not _is_for_kernels(node):
            raise
    bare = low.temporary("product", left.dtype, (left.shape[0], right.shape[1]), left)
    low.call(torch.ops.aten.mm.default, (left, right), bare.buffer)
    low.operator = "bias"

    def add_bias(at: Shape) -> Expr:
        return operation("add", bare.load(at), element(bias, at[1:], left.dtype))

    return low.fill(node.name, value_of(node), add_bias)


def _is_for_kernels(node: Node) -> bool:
    """Whether all that reads a value, as it is or as a view, are loops that can add to it."""
    return all(
        str(user.target) in POINTWISE or (str(user.target) in VIEWS and _is_for_kernels(user)) for user in node.users
    )


def batch(low: Lowering, node: Node, left: Tensor, right: Tensor) -> Tensor:
    """aten.bmm on a GPU. Matrices that are all multiplied by the same one are the rows of one product; an operand that
    a library would copy first, as neither its rows nor its columns lie in memory one by one, is written so at once.
    """
    meta = value_of(node)
    if not is_on_gpu(meta):
        raise NoRuleError("PyTorch's own kernel")
    count, rows, _ = left.shape
    steps = left.strided.strides
    if right.strided.strides[0].constant != 0 or count.constant == 1:
        operands = [_readable(low, left, "left"), _readable(low, right, "right")]
        if operands == [left, right]:
            raise NoRuleError("PyTorch's own kernel")
        low.call(node.target, operands, node.name)
        return low.whole(node.name, meta)
    left = _readable(low, left, "left", again=steps[0] != rows * steps[1])
    shape, strides = (count * rows, right.shape[2]), shape_of(meta.stride())
    made = low.add(Buffer(node.name, meta.dtype, shape, strides[1:], str(meta.device)))
    args = (_matrix(left.strided, (count * rows, left.shape[2])), _matrix(right.strided, right.shape[1:]))
    low.call(torch.ops.aten.mm.default, args, made.buffer)
    view = Strided(node.name, (count, rows, right.shape[2]), strides, Index.of(0))
    return replace(made, shape=view.shape, at=lambda at: (at[0] * rows + at[1], at[2]), strided=view)


def _matrix(view: Strided, shape: Shape) -> Strided:
    """A batch as one matrix, by the strides of its last dimensions."""
    return Strided(view.buffer, shape, view.strides[1:], view.offset)


def _readable(low: Lowering, x: Tensor, side: str, again: bool = False) -> Tensor:
    """An operand as a library reads it: as it lies, or a copy."""
    if not again and any(step.constant == 1 for step in x.strided.strides[1:]):
        return x
    low.operator = "copy"
    made = low.temporary(side, checked_dtype(x.dtype), x.shape, x)
    ranges, at = walk(x.shape, "i")
    low.append(Loop(made.buffer, ranges, at, x.load(at)))
    return made


def row_pitch(node: Node) -> int:
    """How many elements lie between the beginnings of rows of an mm's or addmm's result, 0 for as many as a row has."""
    *added, left, right = map(value_of, node.args)  # type: ignore[arg-type]
    meta = value_of(node)
    if (unit := _unit(meta)) == 1 or node.kwargs or any(bias.dim() != 1 for bias in added):
        return 0
    rows, inner, columns = shape_of((*left.shape, right.shape[1]))
    wide = _round_up(columns, unit)
    return 0 if wide == columns or not _pays(rows, inner, columns, meta) else wide.constant or 0


def _padded_product(low: Lowering, node: Node, bias: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    meta = value_of(node)
    unit = _unit(meta)
    (rows, inner), columns = left.shape, right.shape[1]
    wide_rows = _round_up(rows, unit) if _is_transposed(left) else rows
    wide_inner, wide_columns = _round_up(inner, unit), _round_up(columns, unit)
    strides = (wide_columns, Index.of(1))
    is_laid_out = strides_of(meta) == strides and wide_columns != columns
    pays = is_laid_out or _pays(rows, inner, columns, meta)
    if (wide_rows, wide_inner, wide_columns) == (rows, inner, columns) or not pays:
        raise NoRuleError("PyTorch's own kernel")
    operands = [_pad_copy(low, left, (wide_rows, wide_inner), "left")]
    operands += [_pad_copy(low, right, (wide_inner, wide_columns), "right")]
    if bias is not None:
        operands = [_pad_copy(low, bias, (wide_columns,), "bias"), *operands]
    name = node.name if (wide_rows, wide_columns) == (rows, columns) else f"{node.name}_padded"
    whole = low.add(Buffer(name, meta.dtype, (wide_rows, wide_columns), strides, str(meta.device)))
    low.call(node.target, operands, name)
    if wide_columns == columns or is_laid_out:  # the first rows and columns, as they lie
        return replace(whole, shape=(rows, columns), strided=Strided(name, (rows, columns), strides, Index.of(0)))
    low.operator = "copy"
    return low.fill(node.name, meta, lambda at: Load(name, at, meta.dtype))


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
    ranges, at = walk(shape, "i")
    inside = element(x, at, x.dtype)
    key = f"{inside.key} of {', '.join(map(str, shape))}"
    if key not in low.padded:
        low.operator = "pad"
        low.padded[key] = low.temporary(side, x.dtype, shape, x)
        low.append(Loop(low.padded[key].buffer, ranges, at, guard_bounds(at, x.shape, inside, 0)))
    return low.padded[key]


def _transpose(x: Tensor) -> Tensor:
    view = x.strided
    strided = Strided(view.buffer, view.shape[::-1], view.strides[::-1], view.offset)
    return Tensor(x.buffer, x.dtype, x.shape[::-1], lambda at: x.at(at[::-1]), strided)


PRODUCTS: dict[str, Rule] = {
    "aten.mm.default": product,
    "aten.addmm.default": product_and_bias,
    "aten.bmm.default": batch,
}
