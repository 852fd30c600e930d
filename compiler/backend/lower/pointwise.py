"""Lowering rules of pointwise operators, and of random operators.

Values are computed in the dtype of the result, or in float32 for float16 and bfloat16, and cast at the end, with the
rounding of eager mode. Intermediate values of a decomposed ATen operation stay in float32, as eager mode rounds its
result only. Comparisons compute in the promoted dtype of their arguments. Random operators are decomposed into seeds,
drawn by one extern call per device, and counter-based functions (Philox) of a seed and an element's position.
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
"""Integer dtypes that float16 and bfloat16 do not represent exactly."""


def scalar(value: Any, dtype: torch.dtype) -> Expr:
    """Convert a number, a size, or an expression of sizes to an expression of a dtype. Raises NoRuleError for a number
    beyond the dtype's range: some operators of PyTorch raise an error, others wrap it around or make it infinite.
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
    """Element of an argument at coordinates of the result, broadcast and cast to a dtype."""
    if not isinstance(value, Tensor):
        return scalar(value, dtype)
    return cast(value.load(broadcast(value.shape, at)), dtype)


def broadcast(shape: Shape, at: Shape) -> Shape:
    """Coordinates in a tensor of this shape that is broadcast to a result, for coordinates of the result."""
    own = at[len(at) - len(shape) :] if shape else ()
    return tuple(Index.of(0) if size.constant == 1 else place for size, place in zip(shape, own, strict=True))


def operand(value: Any, at: Shape, own: torch.dtype, rounds: bool) -> Expr:
    """Element of an argument in the computing dtype of an operation in dtype `own`. If `own` is low-precision, integer
    tensors are rounded to it first, as in eager mode's type promotion; with `rounds`, Python numbers are rounded, too.
    """
    dtype = computing_dtype(own)
    if isinstance(value, Tensor) and value.shape and dtype != own and value.dtype in _WIDE:
        return cast(element(value, at, own), dtype)
    if rounds and not isinstance(value, Tensor | Index) and dtype != own:
        return cast(scalar(value, own), dtype)
    return element(value, at, dtype)


def rounds_on_cpu(node: Node) -> bool:
    """Whether eager mode first rounds Python numbers to low precision: on a CPU it does for sums and comparisons."""
    own = _operation(node)
    is_own = own is None or str(own[0]).split(".")[1] in _ROUNDING_ON_CPU
    return is_own and value_of(node).device.type == "cpu"


def arithmetic(build: Build, rounds: Callable[[Node], bool] = lambda node: False) -> Rule:
    """Lowering rule for an operation with arguments and result in the result's dtype. None arguments stay None."""

    def rule(low: Lowering, *args: Any, **kwargs: Any) -> Tensor:
        own, rounded, is_inner = low.dtype, rounds(low.node), is_inside(low.node)

        def value(at: Shape) -> Expr:
            named = {key: operand(arg, at, own, rounded) for key, arg in kwargs.items() if arg is not None}
            found = build(*(arg if arg is None else operand(arg, at, own, rounded) for arg in args), **named)
            return found if is_inner else cast(found, own)

        return low.fill(value, dtype=computing_dtype(own) if is_inner else None)

    return rule


def is_inside(node: Node) -> bool:
    """Whether a node is an intermediate value of a decomposed ATen operation."""
    own = _operation(node)
    if own is None or own[0] == node.target:
        return False
    return all(_operation(user) == own and str(user.target) in POINTWISE for user in node.users)


def _operation(node: Node) -> tuple[Any, ...] | None:
    """Key of the ATen operation that a node was decomposed from: operator, and position in the user's code; or None."""
    before = node.meta.get("original_aten")
    return before and (before, node.meta.get("seq_nr"), node.meta.get("stack_trace"))


def test(build: Build) -> Rule:
    """Lowering rule for a comparison: arguments in their promoted dtype, bool result."""

    def rule(low: Lowering, *args: Any) -> Tensor:
        values: list[Any] = [value_of(arg) if isinstance(arg, Node) else arg for arg in low.node.args]
        own = torch.result_type(*values) if len(values) > 1 else values[0].dtype
        rounded = rounds_on_cpu(low.node)
        return low.fill(lambda at: build(*(operand(arg, at, own, rounded) for arg in args)))

    return rule


def float_test(build: Build) -> Rule:
    """Lowering rule for a test that is False for all dtypes but floats, such as isnan."""
    return test(lambda x: build(x) if x.dtype.is_floating_point else Const(False, torch.bool))


def logical(name: str) -> Rule:
    """Lowering rule for a logical operation: arguments as bools."""
    return lambda low, *args: low.fill(lambda at: operation(name, *(truth(arg, at) for arg in args)))


def truth(value: Any, at: Shape) -> Expr:
    """Whether an element of an argument is not zero, as an expression."""
    dtype = computing_dtype(value.dtype) if isinstance(value, Tensor) else torch.bool
    return as_bool(element(value, at, dtype))


def as_bool(value: Expr) -> Expr:
    """Whether a value is not zero, as an expression."""
    return value if value.dtype == torch.bool else operation("ne", value, number(0, value))


def number(value: float, like: Expr) -> Expr:
    """Constant in the dtype of another value."""
    return scalar(value, like.dtype)


def plain(name: str) -> Rule:
    return arithmetic(partial(operation, name))


def float_only(name: str) -> Rule:
    """Lowering rule for a rounding operation: integers are returned unchanged."""
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
    """Divide and truncate towards zero. The ratio is rounded to the dtype `rounded` first, as in eager mode."""
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
    """Cube in low precision: eager mode rounds the square first."""
    return operation("mul", cast(cast(operation("mul", x, x), low_precision), x.dtype), x)


def whole_division(name: str) -> Rule:
    """Lowering rule for a rounded division, remainder or fmod. Integers need a positive constant divisor: an integer
    division by zero is an error in PyTorch, but would crash the process in a loop.
    """

    def rule(low: Lowering, x: Any, y: Any) -> Tensor:
        is_whole = not low.dtype.is_floating_point
        if is_whole and not (isinstance(y, int) and y > 0):
            raise NoRuleError("a division of integers may be by zero, which is an error")
        if is_whole and name == "fmod":
            return arithmetic(integer_fmod)(low, x, y)
        return arithmetic(partial(operation, name), lambda _: name in ("remainder", "fmod"))(low, x, y)

    return rule


def integer_fmod(x: Expr, y: Expr) -> Expr:
    """The remainder of a division that rounds to 0: it has the sign of x."""
    return operation("sub", x, operation("mul", operation("truncdiv", x, y), y))


def shift(name: str) -> Rule:
    def rule(low: Lowering, x: Any, y: Any) -> Tensor:
        if low.dtype.is_floating_point or low.dtype == torch.bool:
            raise NoRuleError(f"a shift of {str(low.dtype).removeprefix('torch.')}")
        return arithmetic(partial(operation, name))(low, x, y)

    return rule


def power(low: Lowering, x: Any, y: Any) -> Any:
    """Lowering rule for aten.pow. Exponents 1, 2 and 3 become multiplications, as in eager mode. Raises NoRuleError for
    integers with other exponents.
    """
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
    """Lowering rule for a cast or copy. A copy to another device stays an extern call."""
    meta = low.meta
    if str(meta.device) != low.buffers[x.buffer].device:
        raise NoRuleError("a copy between devices")
    if meta.layout is not torch.strided:
        raise NoRuleError(f"the layout {meta.layout}")
    return low.fill(lambda at: truth(x, at) if meta.dtype == torch.bool else element(x, at, meta.dtype))


def fill_with(low: Lowering, value: Any) -> Tensor:
    """Fill the result with a tensor or a number, broadcast and cast."""
    return low.fill(lambda at: element(value, at, low.dtype))


def second(low: Lowering, _: Any, source: Any, *__: Any, **___: Any) -> Tensor:
    """Fill the result with the second argument, a tensor or a number: for `copy`, `full` and the like."""
    return fill_with(low, source)


def sign_bit(x: Expr) -> Expr:
    if not x.dtype.is_floating_point:
        return operation("lt", x, number(0, x)) if x.dtype != torch.bool else Const(False, torch.bool)
    return operation("lt", operation("copysign", number(1, x), x), number(0, x))


def build_bound(name: str) -> Build:
    """Builder of fmax or fmin: the maximum or minimum, but if one operand is NaN, the other operand."""

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
_SIDES, _SHIFTED = ("left", "right"), ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
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
    **{f"aten.__{side[0]}shift__.{kind}": shift(f"shift_{side}") for side in _SIDES for kind in _KINDS},
    **{f"aten.bitwise_{side}_shift.{kind}": shift(f"shift_{side}") for side in _SIDES for kind in _SHIFTED},
    **{f"aten.logical_{name}.default": logical(name) for name in ("and", "or", "xor", "not")},
    **{f"aten.{name}.default": plain(name) for name in ("maximum", "minimum", "neg", "atan2", "hypot")},
    **{f"aten.clamp_min.{kind}": plain("maximum") for kind in ("default", "Tensor")},
    **{f"aten.clamp_max.{kind}": plain("minimum") for kind in ("default", "Tensor")},
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
