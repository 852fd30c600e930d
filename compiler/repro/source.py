"""Make a user's program smaller: leave out statements, and keep what is inside of others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

from compiler.repro.reduce import Effort, minimize

Shows = Callable[[str], bool]


def reduce_source(text: str, shows: Shows, effort: Effort) -> str:
    """The program without statements that `shows` can do without; comments are dropped.

    Statements are left out first, from the outside in. Then compound statements become their bodies, and calls become
    one of their arguments.
    """
    tree = ast.parse(text)
    while not effort.is_spent:
        before = ast.unparse(tree)
        tree = _without_statements(tree, shows, effort)
        tree = _simplify(tree, shows, effort)
        if ast.unparse(tree) == before:
            break
    return ast.unparse(tree) + "\n"


def count_statements(text: str) -> int:
    """The number of statements of a program, without docstrings."""
    return sum(isinstance(node, ast.stmt) and not _is_docstring(node) for node in ast.walk(ast.parse(text)))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _blocks(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Each list of statements, outermost first, as its owner and the name of the field."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            value = getattr(node, name, None)
            if isinstance(value, list) and value:
                yield node, name


def _without_statements(tree: ast.Module, shows: Shows, effort: Effort) -> ast.Module:
    place = 0
    while place < len(blocks := list(_blocks(tree))) and not effort.is_spent:
        owner, name = blocks[place]
        statements = getattr(owner, name)

        def is_enough(some: Sequence[ast.stmt], owner: ast.AST = owner, name: str = name) -> bool:
            kept = getattr(owner, name)
            setattr(owner, name, _body(owner, name, some))
            try:
                return _is_shown(tree, shows, effort)
            finally:
                setattr(owner, name, kept)

        left = [] if is_enough([]) else minimize(statements, is_enough, effort)
        setattr(owner, name, _body(owner, name, left))
        place += 1
    return tree


def _body(owner: ast.AST, name: str, some: Sequence[ast.stmt]) -> list[ast.stmt]:
    needs_one = name == "body" and not isinstance(owner, ast.Module)
    return list(some) or ([ast.Pass()] if needs_one else [])


def _is_shown(tree: ast.Module, shows: Shows, effort: Effort) -> bool:
    effort.tried += 1
    return shows(ast.unparse(ast.fix_missing_locations(tree)) + "\n")


def _simplify(tree: ast.Module, shows: Shows, effort: Effort) -> ast.Module:
    """The program with simpler statements and expressions, each of which still shows the fault."""
    place = 0
    while not effort.is_spent:
        candidates = list(_simpler(tree))
        if place >= len(candidates):
            return tree
        changed = deepcopy(tree)
        _replace_at(changed, *candidates[place])
        if _is_shown(changed, shows, effort):
            tree = changed
        else:
            place += 1
    return tree


def _simpler(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The index of a node in the walk of the tree, and the name of a simpler form of it."""
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.With | ast.For | ast.If | ast.Try | ast.While):
            yield number, "body"
        elif isinstance(node, ast.BinOp):
            yield number, "left"
            yield number, "right"
        elif isinstance(node, ast.Call) and node.args and not isinstance(node.args[0], ast.Starred | ast.Constant):
            yield number, "argument"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield number, "owner"


def _replace_at(tree: ast.AST, number: int, form: str) -> None:
    node = list(ast.walk(tree))[number]
    for owner in ast.walk(tree):
        for name, value in ast.iter_fields(owner):
            if value is node:
                setattr(owner, name, _form_of(node, form))
            elif isinstance(value, list) and any(each is node for each in value):
                place = next(index for index, each in enumerate(value) if each is node)
                found = _form_of(node, form)
                value[place : place + 1] = found if isinstance(found, list) else [found]


def _form_of(node: ast.AST, form: str) -> ast.AST | list[ast.stmt]:
    if form == "argument":
        return node.args[0]  # type: ignore[attr-defined]
    if form == "owner":
        return node.func.value  # type: ignore[attr-defined]
    found: ast.AST | list[ast.stmt] = getattr(node, form)
    return found
