"""Rules of operators that compute each element from the elements at the same place, or from random seeds.

Values are computed in the dtype of the result, or for float16 and bfloat16 in float32, and cast at the end: the
rounding of eager mode. Of an ATen operation that was decomposed eager rounds the result only: what lies between its
steps stays in float32. Comparisons compute in the dtype that their arguments have together. Random operators are
decomposed into seeds, which one call draws for a graph, and functions of a seed and an element's place, which count
with Philox.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch.fx import Node

from compiler.backend.ir import Buffer, Strided
from compiler.backend.ir.expr import Const, Expr, Op, Shape, cast, operation
from compiler.backend.ir.index import Index, position
from compiler.backend.ir.scalar import HALVES, MATH
from compiler.backend.lower.value import Lowering, NoRuleError, Rule, Tensor, computing_dtype
from compiler.torch_api.fx import value_of

Build = Callable[..., Expr]
_WIDE = (torch.int16, torch.int32, torch.int64)
"""Whole numbers that low precision does not hold exactly."""


def scalar(value: Any, dtype: torch.dtype) -> Expr:
    """A number, a size, or what follows from sizes, in a dtype. A number beyond its range is left to PyTorch: some of
    its operators have an error for that, others wrap it around, or make it infinite.
    """
    if isinstance(value, Expr):
        return cast(value, dtype)
    if not isinstance(value, bool | int | float):
        raise NoRuleError(f"{value!r} is not a real number")
    if dtype == torch.bool:
        return Const(bool(value), dtype)
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    is_special = dtype.is_floating_point and not math.isfinite(value)
    if not is_special and not limits.min <= value <= limits.max:
        raise NoRuleError(f"{value} is beyond the range of {str(dtype).removeprefix('torch.')}")
    return Const(float(value) if dtype.is_floating_point else int(value), dtype)


def element(value: Any, at: Shape, dtype: torch.dtype) -> Expr:
    """An argument's element at a place of the result, broadcast to its shape, in a dtype."""
    if not isinstance(value, Tensor):
        return scalar(value, dtype)
    return cast(value.load(broadcast(value.shape, at)), dtype)


def broadcast(shape: Shape, at: Shape) -> Shape:
    """The coordinates in a tensor of this shape that correspond to coordinates of a result, aligned at the right."""
    own = at[len(at) - len(shape) :] if shape else ()
    return tuple(Index.of(0) if size.constant == 1 else place for size, place in zip(shape, own, strict=True))


def operand(value: Any, at: Shape, own: torch.dtype, rounds: bool) -> Expr:
    """An argument's element in the dtype that is computed in, for an operation in the dtype `own`. Whole numbers are
    rounded to that first, as they are where eager mode promotes them; with `rounds` a Python number is, too.
    """
    dtype = computing_dtype(own)
    if isinstance(value, Tensor) and value.shape and dtype != own and value.dtype in _WIDE:
        return cast(element(value, at, own), dtype)
    if rounds and not isinstance(value, Tensor | Index) and dtype != own:
        return cast(scalar(value, own), dtype)
    return element(value, at, dtype)


def rounds_on_cpu(node: Node) -> bool:
    """Whether eager mode rounds Python numbers to low precision before it adds or compares: its CPU kernels do."""
    own = _operation(node)
    is_own = own is None or str(own[0]).split(".")[1] in _ROUNDING_ON_CPU
    return is_own and value_of(node).device.type == "cpu"


def arithmetic(build: Build, rounds: Callable[[Node], bool] = lambda node: False) -> Rule:
    """Arguments, but for None, and result in the result's dtype."""

    def rule(low: Lowering, *args: Any, **kwargs: Any) -> Tensor:
        own, rounded, is_inner = low.dtype, rounds(low.node), is_inside(low.node)

        def value(at: Shape) -> Expr:
            named = {key: operand(arg, at, own, rounded) for key, arg in kwargs.items() if arg is not None}
            found = build(*(arg if arg is None else operand(arg, at, own, rounded) for arg in args), **named)
            return found if is_inner else cast(found, own)

        return low.fill(value, dtype=computing_dtype(own) if is_inner else None)

    return rule


def is_inside(node: Node) -> bool:
    """Whether a value is one between the steps of an ATen operation that was decomposed."""
    own = _operation(node)
    if own is None or own[0] == node.target:
        return False
    return all(_operation(user) == own and str(user.target) in POINTWISE for user in node.users)


def _operation(node: Node) -> tuple[Any, ...] | None:
    """The operation that a node is a step of: what it was before decompositions, where in the user's code."""
    before = node.meta.get("original_aten")
    return before and (before, node.meta.get("seq_nr"), node.meta.get("stack_trace"))


def test(build: Build) -> Rule:
    """Arguments in the dtype that they have together by torch's rules of promotion, a bool as result."""

    def rule(low: Lowering, *args: Any) -> Tensor:
        values: list[Any] = [value_of(arg) if isinstance(arg, Node) else arg for arg in low.node.args]
        own = torch.result_type(*values) if len(values) > 1 else values[0].dtype
        rounded = rounds_on_cpu(low.node)
        return low.fill(lambda at: build(*(operand(arg, at, own, rounded) for arg in args)))

    return rule


def float_test(build: Build) -> Rule:
    """A test that only a float can pass."""
    return test(lambda x: build(x) if x.dtype.is_floating_point else Const(False, torch.bool))


def logical(name: str) -> Rule:
    """Arguments as bools."""
    return lambda low, *args: low.fill(lambda at: operation(name, *(truth(arg, at) for arg in args)))


def truth(value: Any, at: Shape) -> Expr:
    """Whether an argument's element is not zero."""
    dtype = computing_dtype(value.dtype) if isinstance(value, Tensor) else torch.bool
    return as_bool(element(value, at, dtype))


def as_bool(value: Expr) -> Expr:
    """Whether a value is not zero."""
    return value if value.dtype == torch.bool else operation("ne", value, number(0, value))


def number(value: float, like: Expr) -> Expr:
    """A constant in the dtype of another value."""
    return scalar(value, like.dtype)


def plain(name: str) -> Rule:
    return arithmetic(partial(operation, name))


def float_only(name: str) -> Rule:
    """Of integers, rounding gives the same: eager returns them as they are."""
    return arithmetic(lambda x: operation(name, x) if x.dtype.is_floating_point else x)


def unless_bool(name: str) -> Rule:
    return arithmetic(lambda x: x if x.dtype == torch.bool else operation(name, x))


def add(x: Expr, y: Expr, alpha: Expr | None = None) -> Expr:
    if x.dtype == torch.bool:
        return operation("or", x, y)
    return operation("add", x, y if alpha is None else operation("mul", y, alpha))


def sub(x: Expr, y: Expr, alpha: Expr | None = None) -> Expr:
    return operation("sub", x, y if alpha is None else operation("mul", y, alpha))


def mul(x: Expr, y: Expr) -> Expr:
    return operation("and" if x.dtype == torch.bool else "mul", x, y)


def sigmoid(x: Expr) -> Expr:
    one = number(1, x)
    return operation("div", one, operation("add", one, operation("exp", operation("neg", x))))


def clamp(x: Expr, low: Expr | None = None, high: Expr | None = None, **named: Expr) -> Expr:
    low, high = named.get("min", low), named.get("max", high)
    x = x if low is None else operation("maximum", x, low)
    return x if high is None else operation("minimum", x, high)


def divide(low: Lowering, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return plain("div")(low, x, y)
    dtype = low.dtype
    if rounding_mode == "floor" or not dtype.is_floating_point:
        return whole_division("floordiv" if rounding_mode == "floor" else "truncdiv")(low, x, y)
    is_number = not isinstance(y, Tensor) or all(size.constant == 1 for size in y.shape)
    return arithmetic(partial(whole_ratio, rounded=computing_dtype(dtype) if is_number else dtype))(low, x, y)


def whole_ratio(x: Expr, y: Expr, rounded: torch.dtype) -> Expr:
    """Truncate the ratio towards zero, after rounding it to `rounded` as eager mode does."""
    return operation("trunc", cast(cast(operation("div", x, y), rounded), x.dtype))


def lerp(x: Expr, end: Expr, weight: Expr) -> Expr:
    """Interpolate from the nearer end, as eager mode does."""
    far = operation("sub", end, x)
    near = operation("sub", end, operation("mul", far, operation("sub", number(1, x), weight)))
    is_first = operation("lt", operation("absolute", weight), number(0.5, x))
    return operation("where", is_first, operation("add", x, operation("mul", weight, far)), near)


def addcdiv(x: Expr, above: Expr, below: Expr, value: Expr | None = None) -> Expr:
    ratio = operation("div", above if value is None else operation("mul", value, above), below)
    return operation("add", x, ratio)


def cube(x: Expr, low_precision: torch.dtype) -> Expr:
    """In low precision eager mode rounds the square."""
    return operation("mul", cast(cast(operation("mul", x, x), low_precision), x.dtype), x)


def whole_division(name: str) -> Rule:
    """Of integers only by a constant, and no fmod: by zero PyTorch raises an error, a loop would end the process."""

    def rule(low: Lowering, x: Any, y: Any) -> Tensor:
        is_constant = isinstance(y, int) and y > 0 and name != "fmod"
        if not low.dtype.is_floating_point and not is_constant:
            raise NoRuleError("a division of integers may be by zero, which is an error")
        return arithmetic(partial(operation, name), lambda _: name in ("remainder", "fmod"))(low, x, y)

    return rule


def power(low: Lowering, x: Any, y: Any) -> Any:
    """Small whole exponents as products: exactly what eager does for 2 and 3, and all that integers get."""
    dtype = low.dtype
    if isinstance(y, int | float) and y == 3 and dtype in HALVES:
        return arithmetic(partial(cube, low_precision=dtype))(low, x)
    if isinstance(y, int | float) and y in (1, 2, 3):
        return arithmetic(lambda base: reduce(mul, [base] * int(y)))(low, x)
    if isinstance(y, float) and y in (0.5, -0.5):
        return arithmetic(lambda base: _root(base, y))(low, x)
    if not dtype.is_floating_point:
        raise NoRuleError("integers to any power but 1, 2 and 3")
    return arithmetic(partial(operation, "pow"), lambda _: True)(low, x, y)


def _root(x: Expr, exponent: float) -> Expr:
    root = operation("sqrt", x)
    return root if exponent > 0 else operation("div", number(1, x), root)


def where(low: Lowering, condition: Any, x: Any, y: Any) -> Any:
    dtype = low.dtype
    return low.fill(lambda at: operation("where", truth(condition, at), element(x, at, dtype), element(y, at, dtype)))


def convert(low: Lowering, x: Tensor, *_: Any, **named: Any) -> Any:
    """A cast or a copy. To another device it is PyTorch's."""
    meta = low.meta
    if str(meta.device) != low.buffers[x.buffer].device:
        raise NoRuleError("a copy between devices")
    if meta.layout is not torch.strided:
        raise NoRuleError(f"the layout {meta.layout}")
    return low.fill(lambda at: truth(x, at) if meta.dtype == torch.bool else element(x, at, meta.dtype))


def fill_with(low: Lowering, value: Any) -> Tensor:
    """A tensor or a number in the result's shape and dtype."""
    return low.fill(lambda at: element(value, at, low.dtype))


def second(low: Lowering, _: Any, source: Any, *__: Any, **___: Any) -> Tensor:
    """The second argument, a tensor or a number: of `copy`, `full` and the like."""
    return fill_with(low, source)


def sign_bit(x: Expr) -> Expr:
    if not x.dtype.is_floating_point:
        return operation("lt", x, number(0, x)) if x.dtype != torch.bool else Const(False, torch.bool)
    return operation("lt", operation("copysign", number(1, x), x), number(0, x))


def build_bound(name: str) -> Build:
    """The larger or smaller of two, NaN if one is; fmax and fmin take the other one then."""

    def build(x: Expr, y: Expr) -> Expr:
        found = operation(name, x, y)
        if not x.dtype.is_floating_point:
            return found
        return operation("where", operation("isnan", x), y, operation("where", operation("isnan", y), x, found))

    return build


def random_seed(low: Lowering, *_: Any) -> Tensor:
    device = str(low.meta.device)
    name = f"random_seeds_{device.replace(':', '_')}"
    nodes = low.seeds.setdefault(name, [])
    place = Index.of(len(nodes))
    nodes.append(low.node.name)
    low.add(Buffer(name, torch.int64, (place + 1,), (Index.of(1),), device))
    return Tensor(name, torch.int64, (), lambda at: (place,), Strided(name, (), (), place))


def random_floats(low: Lowering, size: Sequence[Any], seed: Tensor, mode: str, **_: Any) -> Tensor:
    shape = tuple(map(Index.of, size))
    return low.fill(lambda at: Op(mode, (seed.load(()), position(at, shape)), torch.float32))


def random_integers(low: Lowering, least: int, end: int, size: Sequence[Any], seed: Tensor) -> Tensor:
    shape, count = tuple(map(Index.of, size)), scalar(end - least, torch.int64)

    def value(at: Shape) -> Expr:
        found = Op("randint", (seed.load(()), position(at, shape), count), torch.int64)
        return operation("add", found, scalar(least, torch.int64))

    return low.fill(value)


_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_KINDS = ("Tensor", "Scalar")
_ROUNDING_ON_CPU = ("add", "sub", "rsub", *_COMPARISONS)

POINTWISE: dict[str, Rule] = {
    **{f"aten.{name}.default": plain(name) for name in (*MATH, "lgamma", "sqrt")},
    **{f"aten.{name}.default": float_only(how) for name, how in _ROUNDING.items()},
    **{f"aten.{name}.{kind}": test(partial(operation, name)) for name in _COMPARISONS for kind in _KINDS},
    **{f"aten.add.{kind}": arithmetic(add, rounds_on_cpu) for kind in _KINDS},
    **{f"aten.sub.{kind}": arithmetic(sub, rounds_on_cpu) for kind in _KINDS},
    **{f"aten.rsub.{kind}": arithmetic(lambda x, y: operation("sub", y, x), rounds_on_cpu) for kind in _KINDS},
    **{f"aten.lerp.{kind}": arithmetic(lerp) for kind in _KINDS},
    "aten.addcdiv.default": arithmetic(addcdiv),
    **{f"aten.mul.{kind}": arithmetic(mul) for kind in _KINDS},
    **{f"aten.div.{kind}": divide for kind in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")},
    **{f"aten.floor_divide.{kind}": whole_division("floordiv") for kind in ("default", "Scalar")},
    **{f"aten.remainder.{kind}": whole_division("remainder") for kind in _KINDS},
    **{f"aten.fmod.{kind}": whole_division("fmod") for kind in _KINDS},
    **{f"aten.pow.{kind}": power for kind in ("Tensor_Scalar", "Tensor_Tensor", "Scalar")},
    **{f"aten.bitwise_{name}.{kind}": plain(name) for name in ("and", "or", "xor") for kind in _KINDS},
    **{f"aten.logical_{name}.default": logical(name) for name in ("and", "or", "xor", "not")},
    **{f"aten.{name}.default": plain(name) for name in ("maximum", "minimum", "neg", "atan2", "hypot")},
    **{f"aten.clamp_{name}.default": plain(how) for name, how in (("min", "maximum"), ("max", "minimum"))},
    "aten._neg_view.default": plain("neg"),
    "aten.bitwise_not.default": plain("not"),
    "aten.copysign.Tensor": plain("copysign"),
    **{f"aten.f{name}.default": arithmetic(build_bound(f"{name}imum")) for name in ("max", "min")},
    **{f"aten.{name}.default": unless_bool(how) for name, how in (("abs", "absolute"), ("sign", "sign"))},
    "aten.relu.default": arithmetic(lambda x: operation("maximum", x, number(0, x))),
    "aten.sigmoid.default": arithmetic(sigmoid),
    "aten.reciprocal.default": arithmetic(lambda x: operation("div", number(1, x), x)),
    "aten.rsqrt.default": arithmetic(lambda x: _root(x, -0.5)),
    "aten.square.default": arithmetic(lambda x: mul(x, x)),
    **{f"aten.clamp.{kind}": arithmetic(clamp) for kind in ("default", "Tensor")},
    "aten.isnan.default": float_test(partial(operation, "isnan")),
    "aten.isinf.default": float_test(lambda x: operation("eq", operation("absolute", x), number(math.inf, x))),
    "aten.signbit.default": test(sign_bit),
    "aten.where.self": where,
    **{f"aten.{name}.default": convert for name in ("clone", "_to_copy")},
    **{f"prims.{name}.default": convert for name in ("convert_element_type", "device_put")},
    "aten.copy.default": second,
    "aten.native_dropout_backward.default": arithmetic(lambda x, kept, scale: mul(x, mul(kept, scale))),
    "prims.fma.default": arithmetic(lambda x, y, z: add(mul(x, y), z)),
    "prims.inductor_seed.default": random_seed,
    "prims.inductor_random.default": random_floats,
    "prims.inductor_randint.default": random_integers,
}
