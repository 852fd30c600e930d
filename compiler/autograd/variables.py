"""The variable that a call's result is assigned to, from the exact place of the call in its source line."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

from compiler.autograd.recording import is_users

Span = tuple[int, int, int, int]


def variable_of(frame: FrameType | None, stop: FrameType | None = None) -> str:
    """The variable that the expression running in a frame is assigned to: `y` in `y = x * w`; "" for a part of a
    larger expression. A returned value has the name that the caller gives it; frames from `stop` on are not looked at.
    """
    while frame is not None and frame is not stop:
        if is_users(frame.f_code.co_filename):
            role = _roles(frame.f_code).get(_span(frame), "")
            if role != "return":
                return role
        frame = frame.f_back
    return ""


def _span(frame: FrameType) -> Span:
    """Lines and columns of the expression that a frame runs."""
    found = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line, end, column, end_column = (each or 0 for each in found)
    return line, end, column, end_column


@lru_cache(maxsize=256)
def _roles(code: CodeType) -> dict[Span, str]:
    """For each assigned or returned expression of a file: the variable, or "return"."""
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return {}
    return {_place(value): name for value, name in _assigned(tree)}


def _place(node: ast.expr) -> Span:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0


def _assigned(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Attribute):
            yield node.value, _short(node.targets[0])
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield node.value, _short(node.target)
        elif isinstance(node, ast.AugAssign):
            yield ast.copy_location(ast.Constant(None), node), _short(node.target)
        elif isinstance(node, ast.Return) and node.value is not None:
            yield node.value, "return"
        elif isinstance(node, ast.Lambda):
            yield node.body, "return"


def _short(target: ast.expr) -> str:
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""
