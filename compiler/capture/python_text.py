"""Pieces of Python text for bytecode: literals, tuples, the parameters of a `def`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any


def literal(value: Any) -> str | None:
    """The text that spells a constant exactly, or None."""
    if not isinstance(value, int | float | str | bytes | bool | tuple | frozenset | type(None) | type(...)):
        return None
    try:
        text = repr(value)
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return text if type(read) is type(value) and repr(read) == text else None


def tuple_text(*items: str) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "function"


def parameters(code: CodeType) -> Iterator[str]:
    """The parameters as in a `def`; defaults belong to the function, not to its code."""
    names = list(code.co_varnames)
    for number, name in enumerate(names[: code.co_argcount], 1):
        yield name
        if number == code.co_posonlyargcount:
            yield "/"
    only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = names[code.co_argcount + code.co_kwonlyargcount :]
    if code.co_flags & 4:
        yield f"*{rest.pop(0)}"
    elif only:
        yield "*"
    yield from only
    if code.co_flags & 8:
        yield f"**{rest.pop(0)}"


def parameter_names(code: CodeType) -> tuple[str, ...]:
    """The variables that a call fills."""
    stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
