"""Read a kernel's arguments from its Inductor source, and find the arguments that it stores to."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

_WRITTEN = ("out_ptr", "in_out_ptr", "ws_ptr")


@dataclass(frozen=True, slots=True)
class Signature:
    """Names of the launch arguments, in order, without block sizes. `written` names the arguments stored to."""

    arguments: tuple[str, ...]
    written: frozenset[str]


def signature(name: str, source: str) -> Signature:
    """Parse the arguments of kernel `name` without executing the source. Raises SyntaxError, ValueError."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            meta = {
                key.arg: key.value for decorator in node.decorator_list for key in getattr(decorator, "keywords", ())
            }
            types = _entry(meta.get("triton_meta"), "signature") or {}
            mutated = _entry(meta.get("inductor_meta"), "mutated_arg_names") or []
            names = tuple(argument.arg for argument in node.args.args if types.get(argument.arg) != "constexpr")
            changed = {one for one in names if one.startswith(_WRITTEN) or one in mutated}
            return Signature(names, frozenset(changed - _only_read(node, changed)))
    raise ValueError(f"the source defines no kernel named {name!r}")


def _only_read(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """The `in_out_ptr` arguments that are never stored to, because fusion removed the store."""
    stored: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and not _is_load(node):
            stored |= {name.id for argument in node.args for name in ast.walk(argument) if isinstance(name, ast.Name)}
    return {name for name in names if name.startswith("in_out_ptr")} - stored


def _is_load(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("load", "to")


def _entry(literal: ast.expr | None, key: str) -> Any:
    """The value of one key of a dict literal, whose other values need not be literals; None if missing."""
    if isinstance(literal, ast.Dict):
        for name, value in zip(literal.keys, literal.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == key:
                return ast.literal_eval(value)
    return None
