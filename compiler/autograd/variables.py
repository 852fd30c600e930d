"""The variable that a call's result is assigned to, from the exact place of the call in its source line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

from compiler.autograd.recording import is_users
from compiler.capture.assignments import name_of, source_of_file

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
    source = source_of_file(code.co_filename)
    return {} if source is None else {_place(node): name for node, name in _find_named_values(source.tree)}


def _place(node: ast.expr | ast.stmt) -> Span:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0


def _find_named_values(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield each value that is bound to a name, with the name; for `x += y`, the whole statement."""
    for node in ast.walk(tree):
        match node:
            case ast.Return(value=ast.expr() as value) | ast.Lambda(body=value):
                yield value, "return"
            case ast.AugAssign(target=target):
                yield node, name_of(target)
            case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
                if node.value is not None and name_of(target):
                    yield node.value, name_of(target)
