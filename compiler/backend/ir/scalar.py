"""The scalar operations of the IR: a table with the torch function, C++ and Triton code of each.

All arguments and the result of an operation have the same dtype. Exceptions: comparisons (bool result), `where` (bool
condition), `cast`, and random numbers (int64 arguments: a seed, a counter; for `randint` also a size). Float16 and
bfloat16 are only loaded, stored and cast: lowering computes in float32 and casts back, so that values are rounded as in
eager mode, at the end of each ATen operation, fused or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from compiler.backend.ir import philox

Kind = Literal["same", "compare", "where", "cast", "random"]


@dataclass(frozen=True, slots=True)
class Called:
    """Names of a dtype in printed programs, C++ and Triton, and of a pointer to it in Triton's signatures."""

    name: str
    cpp: str
    triton: str
    pointer: str


DTYPES: Mapping[torch.dtype, Called] = {
    torch.bool: Called("b8", "bool", "int1", "*i1"),
    torch.uint8: Called("u8", "unsigned char", "uint8", "*u8"),
    torch.int8: Called("i8", "signed char", "int8", "*i8"),
    torch.int16: Called("i16", "short", "int16", "*i16"),
    torch.int32: Called("i32", "int", "int32", "*i32"),
    torch.int64: Called("i64", "long", "int64", "*i64"),
    torch.float16: Called("f16", "_Float16", "float16", "*fp16"),
    torch.bfloat16: Called("bf16", "unsigned short", "bfloat16", "*bf16"),
    torch.float32: Called("f32", "float", "float32", "*fp32"),
    torch.float64: Called("f64", "double", "float64", "*fp64"),
}
"""Dtypes that loops support."""

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Operation:
    """A scalar operation.

    torch   function that computes it on tensors
    cpp     format string of C++: {0}, {1}, {2} for the arguments, {f} for a math function's suffix ("f" for float)
    triton  format string of Triton; functions without a module are those of `triton.text.FUNCTIONS`
    text    format string of printed programs, "" for name(arguments)
    cost    estimated cost, in additions
    """

    name: str
    arity: int
    torch: Callable[..., Any]
    cpp: str
    kind: Kind = "same"
    cost: int = 1
    text: str = ""
    triton: str = ""


def neutral(reduction: str, dtype: torch.dtype) -> bool | int | float:
    """Identity element of a reduction or a scan in a dtype: its initial value."""
    name = reduction.removeprefix("arg").removeprefix("cum")
    if name in ("sum", "any", "prod", "all"):
        value = name in ("prod", "all")
        return value if dtype == torch.bool else float(value) if dtype.is_floating_point else int(value)
    if dtype == torch.bool:
        return name == "min"
    if dtype.is_floating_point:
        return float("-inf") if name == "max" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if name == "max" else limits.max


def _math(name: str, torch_name: str = "", cost: int = 10, arity: int = 1, prefix: str = "::") -> Operation:
    arguments = ", ".join(f"{{{position}}}" for position in range(arity))
    cpp, triton = f"{prefix}{name}{{f}}({arguments})", f"libdevice.{name}({arguments})"
    return Operation(name, arity, getattr(torch, torch_name or name), cpp, cost=cost, triton=triton)


_builtin = partial(_math, cost=1, prefix="__builtin_")


def _prelude(name: str, function: Callable[..., Any], cost: int = 2, arity: int = 2) -> Operation:
    arguments = ", ".join(f"{{{position}}}" for position in range(arity))
    return Operation(name, arity, function, f"::{name}({arguments})", cost=cost, triton=f"{name}({arguments})")


def _infix(name: str, sign: str, function: Callable[..., Any], kind: Kind = "same", cost: int = 1) -> Operation:
    text = f"({{0}} {sign} {{1}})"
    return Operation(name, 2, function, text, kind, cost, text, text)


def _random(name: str, arity: int, function: Callable[..., Any]) -> Operation:
    found = replace(_prelude(name, function, cost=60, arity=arity), kind="random")
    return found if arity > 2 else replace(found, triton=f"tl.{name}({{0}}, tl.cast({{1}}, tl.uint32))")


MATH = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
)  # fmt: skip
"""Unary functions with the same name in C, Triton and PyTorch."""

_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        _infix("add", "+", torch.add),
        _infix("sub", "-", torch.sub),
        _infix("mul", "*", torch.mul),
        replace(_infix("div", "/", torch.div, cost=4), triton="tl.div_rn({0}, {1})"),
        *(_infix(name, sign, getattr(torch, name), "compare") for name, sign in _COMPARED.items()),
        _infix("and", "&", torch.bitwise_and),
        _infix("or", "|", torch.bitwise_or),
        _infix("xor", "^", torch.bitwise_xor),
        Operation("not", 1, torch.bitwise_not, "::bit_not({0})", text="~{0}", triton="(~{0})"),
        _prelude("shift_left", torch.bitwise_left_shift),
        _prelude("shift_right", torch.bitwise_right_shift),
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
        _builtin("copysign", arity=2),
        *map(_math, MATH),
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
