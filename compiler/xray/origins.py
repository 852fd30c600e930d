"""Trace the values in an expression back: to assignments, loops and arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.capture.breaks import span_of
from compiler.capture.sources import SourceBook
from compiler.capture.suggestions.case import nodes_around
from compiler.record import ValueOrigin
from compiler.torch_api.traced_lines import Place

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try)
MOST = 6


@dataclass(frozen=True)
class _Use:
    """A name that is read in a function, and its line."""

    name: str
    line: int
    depth: int
    """Index of the function in the chain of calls."""


def origins(places: Sequence[Place], node: ast.AST, book: SourceBook) -> tuple[ValueOrigin, ...]:
    """Origins of the names in a node at the last of `places`, nearest first; `places` is the chain of calls."""
    found: dict[Place, ValueOrigin] = {}
    todo = [_Use(name, places[-1].line, len(places) - 1) for name in _names(node)]
    seen = set(todo)
    while todo and len(found) < MOST:
        use = todo.pop(0)
        for place, value, depth in _sources(use, places):
            found.setdefault(place, ValueOrigin(use.name, span_of(place, book)))
            later = [_Use(name, place.line, depth) for name in _names(value)]
            todo += [each for each in later if each not in seen]
            seen.update(later)
    return tuple(found.values())


def branch(place: Place) -> tuple[str, ...]:
    """Headers of the blocks around a place, within its function, outermost first: `for step in range(3)`."""
    around = nodes_around(place)
    inner = max((n for n, node in enumerate(around) if isinstance(node, _FUNCTIONS)), default=-1)
    blocks = [node for node in around[inner + 1 :] if isinstance(node, _BLOCKS)]
    return tuple(_header(node, place.line) for node in blocks if node.lineno < place.line)


def _header(node: ast.stmt, line: int) -> str:
    if isinstance(node, ast.Try):
        in_final = bool(node.finalbody) and node.finalbody[0].lineno <= line
        return "finally" if in_final else "except" if any(each.lineno <= line for each in node.handlers) else "try"
    other = isinstance(node, ast.If) and bool(node.orelse) and node.orelse[0].lineno <= line
    if isinstance(node, ast.If):
        return f"{'else of ' if other else ''}if {ast.unparse(node.test)}"
    if isinstance(node, ast.For):
        return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
    if isinstance(node, ast.While):
        return f"while {ast.unparse(node.test)}"
    assert isinstance(node, ast.With)
    return f"with {', '.join(map(ast.unparse, node.items))}"


def _sources(use: _Use, places: Sequence[Place]) -> Iterator[tuple[Place, ast.AST, int]]:
    """Yield the assignments and the caller's argument that may have set a name: place, value, depth in the chain."""
    place = places[use.depth]
    function = _function(place)
    if function is None:
        return
    assigned = [found for found in _assignments(function, use.name) if found[0].lineno <= use.line]
    assigned = [found for found in assigned if not _excludes(function, found[0].lineno, use.line)]
    before = [found for found in assigned if (found[0].end_lineno or 0) < use.line] or assigned
    for target, value in sorted(before, key=lambda found: found[0].lineno, reverse=True):
        yield _place(place, target), value, use.depth
        if not _is_conditional(function, target.lineno, use.line):
            return
    if not isinstance(function, ast.Lambda) and use.depth > 0:
        caller = places[use.depth - 1]
        call = nodes_around(caller)[-1:]
        passed = argument_of(function.args, use.name, call[0]) if call and isinstance(call[0], ast.Call) else None
        if passed is not None:
            yield _place(caller, passed), passed, use.depth - 1


def _arms(node: ast.AST) -> list[Sequence[ast.stmt]]:
    """The blocks of a conditional statement or a loop, of which some may not run; [] for other nodes."""
    if isinstance(node, ast.If | ast.For | ast.While):
        return [node.body, node.orelse]
    if isinstance(node, ast.Try):
        return [node.body, *(handler.body for handler in node.handlers), node.orelse]
    return [case.body for case in node.cases] if isinstance(node, ast.Match) else []


def _is_in(line: int, block: Sequence[ast.stmt]) -> bool:
    return bool(block) and block[0].lineno <= line <= (block[-1].end_lineno or 0)


def _is_conditional(function: ast.AST, line: int, use: int) -> bool:
    """Whether an assignment is in a block that may not run before the use of its name."""
    arms = (arm for node in _own_nodes(function) for arm in _arms(node))
    return any(_is_in(line, arm) and not _is_in(use, arm) for arm in arms)


def _excludes(function: ast.AST, line: int, use: int) -> bool:
    """Whether two lines are in different branches of an `if` or `match`."""
    branches = (_arms(node) for node in _own_nodes(function) if isinstance(node, ast.If | ast.Match))
    return any(_is_in(line, one) and _is_in(use, other) for arms in branches for one in arms for other in arms
               if one is not other)  # fmt: skip


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes defined in it."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(node))


def argument_of(parameters: ast.arguments, name: str, call: ast.Call) -> ast.expr | None:
    """The argument of a call for the parameter `name`; None if unknown. `self` and `cls` are not passed by the call."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    if name not in names or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    index = names.index(name) - (names[0] in ("self", "cls"))
    return call.args[index] if 0 <= index < len(call.args) else None


def _assignments(function: ast.AST, name: str) -> Iterator[tuple[ast.stmt | ast.expr, ast.AST]]:
    """Yield statements and loops that set a name, with the expression of the value."""
    for node in _own_nodes(function):
        match node:
            case ast.Assign(targets=targets, value=value) if any(_is_named(target, name) for target in targets):
                yield node, value
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
                yield from [(node, node)] if _is_named(target, name) else []
            case ast.NamedExpr(target=target, value=value) if _is_named(target, name):
                yield node, value
            case ast.For(target=target, iter=value) if _is_named(target, name):
                yield node, value
            case ast.comprehension(target=target, iter=value) if _is_named(target, name):
                yield value, value
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target) if _is_named(target, name):
                yield value, value


def _is_named(target: ast.expr, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store) for each in ast.walk(target)
    )


def _names(node: ast.AST) -> list[str]:
    """Names that a node reads, except `self` and `torch`."""
    loads = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
    return list(dict.fromkeys(each.id for each in loads if each.id not in ("self", "torch")))


def _function(place: Place) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    around = nodes_around(place)
    return next((node for node in reversed(around) if isinstance(node, _FUNCTIONS)), None)


def _place(around: Place, node: ast.stmt | ast.expr) -> Place:
    """Place of a node; for a loop, of its header."""
    if isinstance(node, ast.For):
        node_end = node.iter
        end = node_end.end_lineno, node.col_offset, node_end.end_col_offset
        return Place(around.file, around.function, node.lineno, *end)
    return Place(around.file, around.function, node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
