"""Convolutions with a bias, on a GPU: PyTorch's call without it, as the library leaves the bias to a kernel of its own.

What reads the result adds the bias, in the same dtype and with the same rounding; the bias' gradient is a reduction,
which is merged with what makes the gradient that it sums up.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from compiler.backend.ir.expr import Expr, Shape, cast, operation
from compiler.backend.lower.pointwise import element
from compiler.backend.lower.reductions import cast_up, finish_reduction, kept_shape, reduce
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, checked_dtype, computing_dtype, is_on_gpu
from compiler.torch_api.fx import value_of


def convolution(low: Lowering, node: Node, image: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """aten.convolution."""
    meta = value_of(node)
    if bias is None or not is_on_gpu(meta):
        raise NoRuleError("PyTorch's own kernel")
    dtype, name = computing_dtype(checked_dtype(meta.dtype)), f"{node.name}_without_bias"
    bare = low.whole(name, meta)
    low.call(node.target, (image, weight, None, *rest), name)
    low.operator = "bias"

    def add_bias(at: Shape) -> Expr:
        return cast(operation("add", element(bare, at, dtype), element(bias, at[1:2], dtype)), meta.dtype)

    return low.fill(node.name, meta, add_bias)


def backward(low: Lowering, node: Node, gradient: Tensor, *args: Any) -> tuple[Tensor | None, ...]:
    """aten.convolution_backward: gradients of the image, the weight and the bias, those that `args[-1]` asks for."""
    metas, (*others, of_bias) = value_of(node), args[-1]
    if not of_bias or not isinstance(gradient, Tensor) or not is_on_gpu(metas[2]):
        raise NoRuleError("PyTorch's own kernel")
    names = tuple(f"{node.name}_{place}" if asked else None for place, asked in enumerate(others))
    made = tuple(low.whole(name, metas[place]) if name else None for place, name in enumerate(names))
    if any(others):
        low.call(node.target, (gradient, *args[:2], None, *args[3:-1], [*others, False]), (*names, None))
    return *made, _bias_gradient(low, node, gradient, metas[2])


def _bias_gradient(low: Lowering, node: Node, gradient: Tensor, meta: Any) -> Tensor:
    """The gradient of the bias: a sum over everything but channels, rounded at its end."""
    dims = [dim for dim in range(len(gradient.shape)) if dim != 1]
    total = low.temporary("sum", computing_dtype(checked_dtype(meta.dtype)), kept_shape(gradient, dims), gradient)
    reduce(low, gradient, dims, "sum", total, lambda value, _: cast_up(value))
    return finish_reduction(low, meta, f"{node.name}_2", gradient, dims, lambda at: cast(total.load(at), meta.dtype))


CONVOLUTIONS: dict[str, Rule] = {"aten.convolution.default": convolution, "aten.convolution_backward.default": backward}
