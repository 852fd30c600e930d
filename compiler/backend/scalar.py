"""The scalar operations of the IR: one table that says of each what it means, to torch, in C++ and in Triton.

All arguments of an operation have one dtype, which is its result's too, but for comparisons (result bool), `where`
(first argument bool), `cast`, and random numbers (arguments int64: a seed, a counter; of `randint` also how many).
Float16 and bfloat16 are only loaded, stored and cast: rules of lowering compute in float32 and cast back, so that a
value is rounded wherever eager's is, at the end of each ATen operation, fused or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from compiler.backend import philox

Kind = Literal["same", "compare", "where", "cast", "random"]

NAMES: dict[torch.dtype, str] = {
    torch.bool: "b8",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
"""The dtypes that loops are made for, as programs print them."""

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Operation:
    """A scalar operation. `cpp` has {0}, {1}, {2} for its arguments and {f} for the suffix of C's math functions
    ("f" for float). `text` is how programs print it, "" for name(arguments). `cost` is about how many additions it is
    worth. `triton` is as `cpp`: names without a module are functions of `triton_text.FUNCTIONS`.
    """

    name: str
    arity: int
    torch: Callable[..., Any]
    cpp: str
    kind: Kind = "same"
    cost: int = 1
    text: str = ""
    triton: str = ""


def _math(name: str, torch_name: str = "", cost: int = 10, arity: int = 1) -> Operation:
    arguments = ", ".join(f"{{{position}}}" for position in range(arity))
    function = getattr(torch, torch_name or name)
    return Operation(
        name, arity, function, f"::{name}{{f}}({arguments})", cost=cost, triton=f"libdevice.{name}({arguments})"
    )


def _builtin(name: str, torch_name: str = "") -> Operation:
    function = getattr(torch, torch_name or name)
    return Operation(name, 1, function, f"__builtin_{name}{{f}}({{0}})", triton=f"libdevice.{name}({{0}})")


def _prelude(name: str, function: Callable[..., Any], cost: int = 2, arity: int = 2) -> Operation:
    arguments = ", ".join(f"{{{position}}}" for position in range(arity))
    return Operation(name, arity, function, f"::{name}({arguments})", cost=cost, triton=f"{name}({arguments})")


def _infix(name: str, sign: str, function: Callable[..., Any], kind: Kind = "same", cost: int = 1) -> Operation:
    text = f"({{0}} {sign} {{1}})"
    return Operation(name, 2, function, text, kind, cost, text, text)


def _random(name: str, arity: int, function: Callable[..., Any]) -> Operation:
    found = replace(_prelude(name, function, cost=60, arity=arity), kind="random")
    return found if arity > 2 else replace(found, triton=f"tl.{name}({{0}}, tl.cast({{1}}, tl.uint32))")


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        _infix("add", "+", torch.add),
        _infix("sub", "-", torch.sub),
        _infix("mul", "*", torch.mul),
        replace(_infix("div", "/", torch.div, cost=4), triton="tl.div_rn({0}, {1})"),
        _infix("lt", "<", torch.lt, "compare"),
        _infix("le", "<=", torch.le, "compare"),
        _infix("gt", ">", torch.gt, "compare"),
        _infix("ge", ">=", torch.ge, "compare"),
        _infix("eq", "==", torch.eq, "compare"),
        _infix("ne", "!=", torch.ne, "compare"),
        _infix("and", "&", torch.bitwise_and),
        _infix("or", "|", torch.bitwise_or),
        _infix("xor", "^", torch.bitwise_xor),
        Operation("not", 1, torch.bitwise_not, "::bit_not({0})", text="~{0}", triton="(~{0})"),
        Operation("neg", 1, torch.neg, "(-{0})", text="-{0}", triton="({0} * -1)"),
        Operation("where", 3, torch.where, "({0} ? {1} : {2})", "where", triton="tl.where({0}, {1}, {2})"),
        Operation("cast", 1, lambda x: x, "", "cast"),
        _prelude("maximum", torch.maximum),
        _prelude("minimum", torch.minimum),
        _prelude("floordiv", lambda x, y: torch.div(x, y, rounding_mode="floor"), cost=6),
        _prelude("truncdiv", lambda x, y: torch.div(x, y, rounding_mode="trunc"), cost=6),
        _prelude("remainder", torch.remainder, cost=8),
        _prelude("sign", torch.sign, arity=1),
        _prelude("absolute", torch.abs, cost=1, arity=1),
        Operation("isnan", 1, torch.isnan, "({0} != {0})", "compare", triton="({0} != {0})"),
        replace(_builtin("sqrt"), triton="tl.sqrt_rn({0})"),
        _builtin("floor"),
        _builtin("ceil"),
        _builtin("trunc"),
        replace(_builtin("rint", "round"), triton="libdevice.nearbyint({0})"),  # Triton 3.6 has no rint for AMD
        Operation(
            "copysign", 2, torch.copysign, "__builtin_copysign{f}({0}, {1})", triton="libdevice.copysign({0}, {1})"
        ),
        _math("exp"),
        _math("exp2"),
        _math("expm1"),
        _math("log"),
        _math("log2"),
        _math("log10"),
        _math("log1p"),
        _math("sin"),
        _math("cos"),
        _math("tan"),
        _math("asin"),
        _math("acos"),
        _math("atan"),
        _math("sinh"),
        _math("cosh"),
        _math("tanh"),
        _math("asinh"),
        _math("acosh"),
        _math("atanh"),
        _math("erf"),
        _math("erfc"),
        _math("lgamma", cost=20),
        _math("pow", cost=20, arity=2),
        _math("fmod", arity=2),
        _math("atan2", cost=15, arity=2),
        _math("hypot", arity=2),
        _random("rand", 2, philox.rand),
        _random("randn", 2, philox.randn),
        _random("randint", 3, philox.randint),
    )
}
