"""Numbers that are held in attributes, globals and dicts, and edits that hold them in tensors from the start."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from typing import Any

import torch

from compiler.capture.assignments import Source, Step
from compiler.record import Suggestion


def name_and_key(code: str) -> tuple[str, Any]:
    """The name in `name` or `name['key']`, and the key, which may be None; "" for any other code."""
    try:
        node = ast.parse(code, mode="eval").body
    except SyntaxError:
        return "", None
    match node:
        case ast.Name(id=name):
            return name, None
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
            return name, key
    return "", None


def make_item_a_tensor(held: Any, key: Any) -> None:
    """Replace the number with this key in a dict by a tensor."""
    if key is not None and isinstance(held, dict) and type(held.get(key)) in (int, float):
        held[key] = torch.tensor(held[key])


def initial_values(source: Source, owner: Step, attribute: str, file: str) -> Iterator[Suggestion]:
    """Yield edits that assign a tensor where a class or module assigns a constant number to an attribute or name.

    The number may be an item of a dict that is written there: `state = {"step": 0}`.
    """
    inside = next((each for each in source.enclosing_nodes(owner.node) if isinstance(each, ast.ClassDef)), source.tree)
    wanted, key = name_and_key(attribute)
    for node in ast.walk(inside):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name) | ast.Name(id=name)], value=assigned) if name == wanted:
                number = _item_of(assigned, key)
                if isinstance(number, ast.Constant) and type(number.value) in (int, float):
                    line = linecache.getline(source.file, number.lineno).rstrip("\n").encode()
                    start, end = number.col_offset, number.end_col_offset or 0
                    new = (line[:start] + f"torch.tensor({number.value!r})".encode() + line[end:]).decode()
                    yield Suggestion("Hold the number in a tensor.", file, number.lineno, number.lineno, new)


def _item_of(node: ast.expr, key: Any) -> ast.expr | None:
    """The expression itself if `key` is None; the value of this key in a dict that is written out."""
    match node:
        case _ if key is None:
            return node
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return next((value for each, value in pairs if isinstance(each, ast.Constant) and each.value == key), None)
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return next((each.value for each in keywords if each.arg == key), None)
    return None
