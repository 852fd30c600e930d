"""Lowering rules of matmuls and convolutions, mostly for GPUs: library calls with padded operands or without bias.

Libraries load 16 bytes at once if all rows are 16-byte aligned. Other matmuls take several times as long, so Inductor
pads them too. Padding an operand is a loop, into which its producer can be inlined. Slicing a padded result is a loop
that is inlined into its readers.

The bias of a convolution is added by a loop that fuses with the readers of the result, in the same dtype and with the
same rounding. The gradient of the bias is a reduction that fuses with the producer of the incoming gradient.
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
"""Reason for an extern call of an operator of PyTorch."""
CUSTOM = "a custom operator's own code"
"""Reason for an extern call of another library's operator, or of the user's."""
WIDTH = 16
"""Bytes of one aligned load."""
RATE, BANDWIDTH = 600e12, 4e12
"""Operations per second of an aligned matmul, and bytes per second of padding, on a large GPU."""
LEAST_SECONDS = 20e-6
_ROUNDED_ALIKE = (torch.float32, torch.float64)
"""Dtypes in which a matmul's result is not rounded when stored, so that the bias can be added afterwards."""


def is_on_gpu(meta: Any) -> bool:
    """Whether a fake tensor is on a GPU."""
    return bool(meta.device.type == "cuda")


def product(low: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """Lowering rule for aten.mm."""
    return _padded_product(low, None, left, right)


def product_and_bias(low: Lowering, bias: Tensor, left: Tensor, right: Tensor, **factors: Any) -> Tensor:
    """Lowering rule for aten.addmm with one bias per column. A loop adds the bias if all readers are pointwise: a
    library call without bias takes the host less time. In low precision the bias stays in the call, as eager mode
    rounds only the sum.
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
    """Whether all readers of a value and its views are pointwise."""
    return all(
        str(user.target) in POINTWISE or (str(user.target) in VIEWS and _is_for_kernels(user)) for user in node.users
    )


def batch(low: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """Lowering rule for aten.bmm on a GPU. A batch that is multiplied by one broadcast matrix becomes one large mm. A
    loop copies operands without a stride of 1 in the last two dimensions, as the library would.
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
    """View a batch as one matrix of this shape, with the strides of its last two dimensions."""
    return Strided(view.buffer, shape, view.strides[1:], view.offset)


def _readable(low: Lowering, x: Tensor, side: str, again: bool = False) -> Tensor:
    """An operand in a layout that libraries read: unchanged, or a contiguous copy. `again` forces a copy."""
    if not again and any(step.constant == 1 for step in x.strided.strides[1:]):
        return x
    low.operator = "copy"
    return low.store(low.temporary(side, x.dtype, x.shape, x), x.load)


def row_pitch(node: Node) -> int:
    """Row stride of the result of an mm or addmm, in elements; 0 if rows are not padded."""
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
    if wide_columns == columns or is_laid_out:  # a view of the first rows and columns
        return replace(whole, shape=(rows, columns), strided=Strided(name, (rows, columns), strides, Index.of(0)))
    low.operator = "copy"
    return low.fill(lambda at: Load(name, at, meta.dtype))


def _unit(meta: Any) -> int:
    """Number of elements in 16 bytes; 1 if padding does not help, as on a CPU, or for float32 without TF32."""
    if not is_on_gpu(meta) or meta.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return 1
    if meta.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32:
        return 1
    return WIDTH // int(meta.dtype.itemsize)


def _round_up(size: Index, unit: int) -> Index:
    known = size.constant
    return size if known is None else Index.of(-(-known // unit) * unit)


def _pays(rows: Index, inner: Index, columns: Index, meta: Any) -> bool:
    """Whether padding pays: the matmul takes longer than copies of both operands, and than LEAST_SECONDS. A symbolic
    size counts as 1024.
    """
    m, k, n = (size.constant if size.constant is not None else 1024 for size in (rows, inner, columns))
    seconds = 2 * m * k * n / RATE
    return seconds > max(LEAST_SECONDS, 2 * (m * k + k * n) * meta.dtype.itemsize / BANDWIDTH)


def _is_transposed(x: Tensor) -> bool:
    """Whether a matrix is column-major."""
    first, last = x.strided.strides
    return first.constant == 1 and last.constant != 1


def _pad_copy(low: Lowering, x: Tensor, shape: Shape, side: str) -> Tensor:
    """Zero-padded copy in the same layout, cached for all matmuls with this operand; `x` itself if it has the shape."""
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
    """Lowering rule for aten.convolution with a bias on a GPU: a library call without bias, and a loop that adds it."""
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
    """Lowering rule for aten.convolution_backward: gradients of image, weight and bias, as `args[-1]` requests."""
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
