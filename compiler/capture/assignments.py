"""Assignments in the user's files: which of them may have set a variable where it is read."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from dataclasses import dataclass

from compiler.record.break_facts import Place

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
MUTATING = ("append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft", "remove", "clear",
            "setdefault", "discard")  # fmt: skip
"""Names of methods that change a container."""


@dataclass(frozen=True, slots=True)
class Step:
    """A node of a file through which a value passes. `name` is the name that it sets, or the code of an expression.

    `argument` is set for the user's call, or an argument of it, that led to a value in a package: the path to the value
    from the explored function's parameters.
    """

    file: str
    node: ast.stmt | ast.expr | ast.arg
    name: str = ""
    argument: str = ""


@dataclass(frozen=True)
class Source:
    """A parsed file, with the parent of each node."""

    file: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]

    def enclosing_nodes(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> Function | None:
        return next((each for each in self.enclosing_nodes(node) if isinstance(each, _FUNCTIONS)), None)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        return next((each for each in (node, *self.enclosing_nodes(node)) if isinstance(each, ast.stmt)), None)

    def function_around(self, place: Place) -> Function | None:
        """The innermost function around a place; None if there is none."""
        start = (place.line, place.column or 0)
        found = [node for node in ast.walk(self.tree) if isinstance(node, _FUNCTIONS)
                 and (node.lineno, node.col_offset) <= start < (node.end_lineno, node.end_col_offset)]  # fmt: skip
        return max(found, key=lambda node: (node.lineno, node.col_offset), default=None)

    def function_at(self, name: str, line: int) -> Function | None:
        """The innermost function of this name around a line, including its decorators; None if there is none."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, _FUNCTIONS) and _holds(node, line)
                 and getattr(node, "name", "<lambda>") == name]  # fmt: skip
        return max(found, key=lambda node: node.lineno, default=None)


def _holds(node: Function, line: int) -> bool:
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return first <= line <= (node.end_lineno or node.lineno)


def source_of_file(file: str) -> Source | None:
    """Parse a file; None if it has no source or does not parse."""
    return _parse(file, "".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=128)
def _parse(file: str, text: str) -> Source | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return Source(file, tree, parents) if tree.body else None


def place_of(step: Step) -> Place:
    """Place of a step's node; for a loop or a `with`, of its header."""
    node, source = step.node, source_of_file(step.file)
    function = source.function(node) if source else None
    name = getattr(function, "name", "<module>") if function is not None else "<module>"
    end: ast.expr | ast.stmt | ast.arg = node
    if isinstance(node, ast.For | ast.AsyncFor):
        end = node.iter
    elif isinstance(node, ast.With | ast.AsyncWith):
        end = node.items[-1].optional_vars or node.items[-1].context_expr
    return Place(step.file, name, node.lineno, end.end_lineno, node.col_offset, end.end_col_offset)


Assigned = tuple[ast.stmt | ast.expr, ast.expr | None]
"""A node that sets a variable, and the expression of the value, None if there is none."""


def find_reaching(
    source: Source, function: Function, name: str, line: int, use: ast.Name | None
) -> tuple[list[Assigned], list[Assigned]]:
    """Assignments to a variable that may reach a line: earlier ones, latest first, and later ones in loops around."""
    assigned = sorted(assignments(source, function, name), key=lambda found: found[0].lineno)
    inside = source.statement(use) if use is not None else None
    before = [found for found in assigned if _is_before(found[0], line, inside)]
    sure = [found for found in before if always_sets(source, found[0], name, line)]
    reached = before[before.index(sure[-1]) :] if sure else before
    loops = [node for node in ast.walk(function) if isinstance(node, _LOOPS) and covers(node, line)
             and not (sure and covers(node, sure[-1][0].lineno))]  # fmt: skip
    later = [found for found in assigned
             if found not in before and any(covers(each, found[0].lineno) for each in loops)]  # fmt: skip
    return reached[::-1], later


def _is_before(statement: ast.stmt | ast.expr, line: int, inside: ast.stmt | None) -> bool:
    if statement is inside:
        return isinstance(statement, ast.For | ast.AsyncFor)
    end = statement.lineno if isinstance(statement, ast.For | ast.AsyncFor | ast.With) else statement.end_lineno
    return (end or statement.lineno) <= line


def always_sets(source: Source, node: ast.stmt | ast.expr, name: str, line: int) -> bool:
    """Whether a node always runs before a line and gives a variable a new value, not only a container other items."""
    targets = node.targets if isinstance(node, ast.Assign) else ()
    is_of_items = bool(targets) and not any(_names(target, name) for target in targets)
    return not (isinstance(node, ast.Expr) or is_of_items) and dominates(source, node, line)


def _names(target: ast.expr, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
               for each in ast.walk(target))  # fmt: skip


def dominates(source: Source, statement: ast.stmt | ast.expr, line: int) -> bool:
    """Whether a statement always runs before a line: the blocks around it are also around the line."""
    kinds = ast.If | ast.Match | ast.For | ast.While | ast.Try
    blocks = [each for each in source.enclosing_nodes(statement) if isinstance(each, kinds)]
    return all(covers(each, line) and _same_branch(each, statement.lineno, line) for each in blocks)


def excludes(source: Source, statement: ast.stmt | ast.expr, line: int) -> bool:
    """Whether a statement and a line are in different branches of an `if` or `match`."""
    blocks = (
        each
        for each in source.enclosing_nodes(statement)
        if isinstance(each, ast.If | ast.Match) and covers(each, line)
    )
    return not all(_same_branch(each, statement.lineno, line) for each in blocks)


def _same_branch(block: ast.AST, first: int, second: int) -> bool:
    """Whether two lines in a block are in the same branch of it."""
    later = [case.body[0] for case in block.cases[1:]] if isinstance(block, ast.Match) else getattr(block, "orelse", [])
    starts = [each.lineno for each in (later if isinstance(block, ast.Match) else later[:1])]
    return sum(first >= start for start in starts) == sum(second >= start for start in starts)


def covers(node: ast.AST, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or line)  # type: ignore[attr-defined]


def assignments(source: Source, function: Function, name: str) -> Iterator[tuple[ast.stmt | ast.expr, ast.expr | None]]:
    """Yield the nodes that set a variable of a function, or change the container in it, with the values."""
    for node in ast.walk(function):
        if isinstance(node, ast.stmt | ast.NamedExpr) and source.function(node) is function and assigns(node, name):
            yield node, _value_for(node, name)


def _value_for(node: ast.stmt | ast.expr, name: str) -> ast.expr | None:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            return next((v for t, v in zip(targets, values, strict=True) if sets(t, name)), node.value)
        case ast.Assign(value=value) | ast.NamedExpr(value=value) | ast.AugAssign(value=value):
            return value
        case ast.AnnAssign(value=value):
            return value
        case ast.For(iter=values) | ast.AsyncFor(iter=values):
            return values
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return next((item.context_expr for item in items if item.optional_vars), None)
        case ast.Expr(value=ast.Call(args=[*_, last])):
            return last
    return None


def assigns(node: ast.AST, name: str) -> bool:
    """Whether a node sets a variable, or changes the container in it."""
    match node:
        case ast.Assign(targets=targets):
            return any(sets(each, name) for each in targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            return sets(target, name)
        case ast.NamedExpr(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
            return sets(target, name)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return any(item.optional_vars is not None and sets(item.optional_vars, name) for item in items)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=attr))):
            return owner == name and attr in MUTATING
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return any((each.asname or each.name) == name for each in names)
    return False


def sets(target: ast.expr, name: str) -> bool:
    if isinstance(target, ast.Subscript):
        return isinstance(target.value, ast.Name) and target.value.id == name
    if isinstance(target, ast.Name):
        return target.id == name
    if isinstance(target, ast.Starred):
        return sets(target.value, name)
    return isinstance(target, ast.Tuple | ast.List) and any(sets(each, name) for each in target.elts)


def name_of(target: ast.expr) -> str:
    """The name that an assignment's target has for a reader: `h` for `h` and `self.h`; "" for others."""
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def parameter_of(function: Function, name: str) -> ast.arg | None:
    own = function.args
    every = [*own.posonlyargs, *own.args, *own.kwonlyargs, *filter(None, (own.vararg, own.kwarg))]
    return next((each for each in every if each.arg == name), None)


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
