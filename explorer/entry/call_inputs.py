"""Parse `--input "randn(8, 64)"`: literals and calls of torch's factory functions, read from the syntax tree.

No code is evaluated: other names, method calls and operators are refused.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

FACTORIES = (
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
)

_NAMED_KINDS = (torch.dtype, torch.memory_format, torch.layout)


class InputError(ValueError):
    """Raised for an invalid `--input`; the message quotes it and gives valid forms."""


@dataclass
class Inputs:
    """Positional and keyword arguments of a call."""

    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)


def parse(texts: Iterable[str]) -> Inputs:
    """Parse the texts in order; `mask=ones(8)` is a keyword argument. Raises InputError."""
    inputs = Inputs()
    for text in texts:
        call = _as_call(text)
        inputs.args += [_value(node, text) for node in call.args]
        for keyword in call.keywords:
            if keyword.arg is None:
                raise InputError(f"--input {text!r}: `**` is not read; name each argument")
            inputs.kwargs[keyword.arg] = _value(keyword.value, text)
    return inputs


def _as_call(text: str) -> ast.Call:
    """Parse the text as call arguments, so that `x=1` and `1, 2` are also valid. Raises InputError."""
    try:
        node = ast.parse(f"inputs({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"--input {text!r} is not Python; for example: randn(8, 64)") from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise InputError(f"--input {text!r} is not one value; for example: randn(8, 64)")
    return node


def _value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items):
            return [_value(item, text) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item, text) for item in items)
        case ast.Dict(keys=keys, values=values):
            return {_key(key, text): _value(value, text) for key, value in zip(keys, values, strict=True)}
        case ast.Call():
            return _make_tensor(node, text)
        case ast.Name() | ast.Attribute():
            return _named_constant(node, text)
    raise InputError(
        f"--input {text!r}: {ast.unparse(node)!r} is not read; write numbers, strings, lists, and tensors such as "
        "randn(8, 64)"
    )


def _key(node: ast.expr | None, text: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    raise InputError(f"--input {text!r}: a key of a dict is a literal")


def _named_constant(node: ast.expr, text: str) -> Any:
    """The dtype, layout or memory format with this name: `torch.float16`, or `float16`. Raises InputError."""
    name = ast.unparse(node)
    value = getattr(torch, name.removeprefix("torch."), None)
    if isinstance(value, _NAMED_KINDS):
        return value
    hint = f"; write {name}(…) with its shape" if name.removeprefix("torch.") in FACTORIES else ""
    raise InputError(f"--input {text!r}: {name!r} is not a literal, nor a dtype of torch{hint}")


def _make_tensor(node: ast.Call, text: str) -> Any:
    factory = _factory(node.func, text)
    args = [_value(argument, text) for argument in node.args]
    kwargs = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise InputError(f"--input {text!r}: `**` is not read; name each argument")
        kwargs[keyword.arg] = _dtype(keyword.arg, _value(keyword.value, text), text)
    try:
        return factory(*args, **kwargs)
    except (TypeError, ValueError, RuntimeError, AssertionError, OverflowError, IndexError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"--input {text!r}: torch says: {reason[0]}") from None


def _factory(node: ast.expr, text: str) -> Callable[..., torch.Tensor]:
    name = ast.unparse(node).removeprefix("torch.")
    if name in FACTORIES:
        return getattr(torch, name)
    raise InputError(f"--input {text!r}: {name!r} is not one of {', '.join(FACTORIES)}")


def _dtype(name: str, value: Any, text: str) -> Any:
    """The value of a keyword argument; `dtype="float16"` is converted to the dtype. Raises InputError."""
    if name != "dtype" or not isinstance(value, str):
        return value
    found = getattr(torch, value.removeprefix("torch."), None)
    if isinstance(found, torch.dtype):
        return found
    raise InputError(f"--input {text!r}: {value!r} is not a dtype of torch; for example: float32, bfloat16, int64")
