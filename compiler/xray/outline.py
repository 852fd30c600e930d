"""Move part of a function into a new function: find the arguments that it needs, and the code of the new function.

An argument is the longest path, such as `self.total` or `x[0]`, with a value that can be passed to an operator. Names
of modules, functions, classes and loggers stay unchanged. Other objects can't be passed: code that needs an object can
be moved only if the value that it computes from the object can be passed instead.
"""

from __future__ import annotations

import ast
import builtins
import copy
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from compiler.xray.value_kinds import ValueKind, ValueKinds

_FIXED = (ModuleType, type, FunctionType, BuiltinFunctionType, logging.Logger)
_BLOCKS = ("body", "orelse", "finalbody")
_LOOPS = (ast.For, ast.While, ast.comprehension, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
Accepts = Callable[[ValueKind], bool]


@dataclass(frozen=True)
class Target:
    """Code to move: one expression, or consecutive statements."""

    nodes: tuple[ast.expr | ast.stmt, ...]

    @property
    def expression(self) -> ast.expr | None:
        first = self.nodes[0]
        return first if isinstance(first, ast.expr) else None


@dataclass(frozen=True)
class Argument:
    """An argument of the new function: the parameter's name, its code in the caller, and the kinds of its values."""

    name: str
    code: str
    kinds: Sequence[ValueKind]

    @property
    def kind(self) -> ValueKind:
        return self.kinds[0]


@dataclass(frozen=True)
class Outline:
    """The code of the new function. `body` are its statements. `value` is the returned expression, None for statements.

    `absorbed` are assignments before the moved code that only this code uses: they are moved too.
    """

    arguments: tuple[Argument, ...]
    body: tuple[ast.stmt, ...]
    value: ast.expr | None
    absorbed: tuple[ast.stmt, ...]


@dataclass
class Outliner:
    """Moves code out of one function. `sites` are the nodes that break the graph, so they can't be arguments.

    `accepts` decides which kinds of values can be passed. `inner_code` makes the code that reads a parameter.
    """

    function: ast.FunctionDef
    names: Mapping[str, Any]
    kinds: ValueKinds
    sites: Sequence[ast.AST]
    accepts: Accepts
    inner_code: Callable[[str, ValueKind], ast.expr]
    _arguments: dict[str, Argument] = field(default_factory=dict)
    _absorbed: dict[ast.stmt, ast.stmt] = field(default_factory=dict)
    _kept: set[ast.stmt] = field(default_factory=set)
    _bound: set[str] = field(default_factory=set)
    _moved: list[ast.AST] = field(default_factory=list)

    def outline(self, target: Target) -> Outline | None:
        """The new function's code for a target; None if the target can't be moved."""
        self._moved = list(target.nodes)
        self._bound = _stored_names(target.nodes)
        named = {each.target.id for node in target.nodes for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}
        kept = named if target.expression is not None else self._bound
        if kept & self._names_used_elsewhere(target.nodes):
            return None
        taken = [self._node_inside(node) for node in target.nodes]
        if None in taken:
            return None
        body = [statement for statement in taken if isinstance(statement, ast.stmt)]
        value = taken[0] if isinstance(taken[0], ast.expr) else None
        order = sorted(self._absorbed, key=lambda statement: statement.lineno)
        moved = (*(self._absorbed[statement] for statement in order), *body)
        absorbed = tuple(statement for statement in order if statement not in self._kept)
        return Outline(tuple(self._arguments.values()), moved, value, absorbed)

    def _take(self, node: ast.AST) -> ast.AST | None:
        """Code for a node in the new function; None if it needs an object that can't be passed."""
        if isinstance(node, ast.expr) and _is_path(node):
            return self._take_path(node)
        saved = dict(self._arguments), dict(self._absorbed)
        inner = self._node_inside(node)
        if inner is not None:
            return inner
        self._arguments, self._absorbed = saved
        is_own = isinstance(node, ast.expr) and not self._needs_moved(node)
        return self._argument(node) if is_own and isinstance(node, ast.expr) else None

    def _take_path(self, node: ast.expr) -> ast.AST | None:
        root = _root(node)
        if root.id in self._bound:
            return self._node_inside(node) if node is not root else node
        if not self._is_local(root.id):
            return self._take_global(node, root)
        if not self._needs_moved(node) and (argument := self._argument(node)) is not None:
            return argument
        if node is root:
            return self._absorb(root)
        return self._node_inside(node)

    def _take_global(self, node: ast.expr, root: ast.Name) -> ast.AST | None:
        value = self.names.get(root.id, getattr(builtins, root.id, None))
        if isinstance(value, _FIXED):
            return self._node_inside(node) if node is not root else node
        if (argument := self._argument(node)) is not None:
            return argument
        return None if node is root else self._node_inside(node)

    def _node_inside(self, node: ast.AST) -> ast.AST | None:
        """A copy of a node, with the code for its parts in the new function; None if a part can't be moved."""
        new = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr_context):
                continue
            if isinstance(value, ast.AST):
                part = self._take(value)
                if part is None:
                    return None
                setattr(new, name, part)
            elif isinstance(value, list):
                parts = [self._take(item) if isinstance(item, ast.AST) else item for item in value]
                if any(part is None for part, item in zip(parts, value, strict=True) if isinstance(item, ast.AST)):
                    return None
                setattr(new, name, parts)
        return new

    def _argument(self, node: ast.expr) -> ast.expr | None:
        """Add an argument for a node's value and return the code that reads it; None if it can't be passed."""
        kind = self.kinds.one_of(node)
        if kind is None or not self.accepts(kind):
            return None
        code = ast.unparse(node)
        if code not in self._arguments:
            self._arguments[code] = Argument(self._new_name(node), code, self.kinds.kinds_of(node))
        return self.inner_code(self._arguments[code].name, kind)

    def _absorb(self, name: ast.Name) -> ast.AST | None:
        """Move the only assignment of a local name too, and return the name; None if other code uses the name.

        A dict, list or tuple that other code reads too is also kept in its place.
        """
        assignments = [node for node in ast.walk(self.function) if _assigns(node, name.id)]
        statement = assignments[0] if len(assignments) == 1 else None
        if not isinstance(statement, ast.Assign):
            return None
        if statement in self._absorbed:
            return name
        if not _can_move(statement, self._moved[0], self.function):
            return None
        is_shared = name.id in self._names_used_elsewhere([*self._moved, statement])
        if is_shared and not self._can_be_made_again(statement, name.id):
            return None
        if is_shared:
            self._kept.add(statement)
        else:
            self._moved.append(statement)
        self._bound.add(name.id)
        taken = self._node_inside(statement.value)
        if not isinstance(taken, ast.expr):
            return None
        self._absorbed[statement] = ast.Assign([ast.Name(name.id, ast.Store())], taken)
        return name

    def _can_be_made_again(self, statement: ast.Assign, name: str) -> bool:
        """Whether an assigned dict, list or tuple display has no calls and is not used before the moved code."""
        first, last = statement.end_lineno or statement.lineno, getattr(self._moved[0], "lineno", 0)
        uses = (node for node in ast.walk(self.function) if isinstance(node, ast.Name) and node.id == name)
        is_read_between = any(first < node.lineno < last for node in uses)
        has_calls = any(isinstance(part, ast.Call) for part in ast.walk(statement.value))
        is_display = isinstance(statement.value, ast.Dict | ast.List | ast.Tuple)
        return is_display and not has_calls and not is_read_between

    def _names_used_elsewhere(self, nodes: Sequence[ast.AST]) -> set[str]:
        """Names that the function reads outside of some nodes."""
        inside = {id(each) for node in nodes for each in ast.walk(node)}
        loads = (each for each in ast.walk(self.function) if isinstance(each, ast.Name))
        return {each.id for each in loads if isinstance(each.ctx, ast.Load) and id(each) not in inside}

    def _needs_moved(self, node: ast.AST) -> bool:
        """Whether a node contains a site, or a name that the moved code assigns."""
        parts = list(ast.walk(node))
        is_bound = any(isinstance(part, ast.Name) and part.id in self._bound for part in parts)
        return is_bound or any(part is site for part in parts for site in self.sites)

    def _is_local(self, name: str) -> bool:
        arguments = self.function.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
        return any(each and each.arg == name for each in every) or name in _stored_names([self.function])

    def _new_name(self, node: ast.expr) -> str:
        """An unused parameter name: the first three words of a path without `self`, or `value`."""
        words = re.findall(r"[A-Za-z_]\w*|\d+", ast.unparse(node).removeprefix("self."))
        name = "_".join(words[:3] if _is_path(node) else ["value"])
        taken = {argument.name for argument in self._arguments.values()} | set(self.names) | self._bound
        name = name if name.isidentifier() else f"value_{name}"
        while name in taken or hasattr(builtins, name):
            name += "_"
        return name


def _is_path(node: ast.AST) -> bool:
    """Whether a node is a name, or an attribute or item of a path: `self.beams[0].score`."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        return _is_path(node.value)
    return isinstance(node, ast.Name)


def _root(node: ast.expr) -> ast.Name:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    assert isinstance(node, ast.Name)
    return node


def _stored_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that some nodes assign, including parameters of lambdas."""
    parts = [part for node in nodes for part in ast.walk(node)]
    names = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    lambdas = (part for part in parts if isinstance(part, ast.Lambda))
    return names | {each.arg for part in lambdas for each in ast.walk(part.args) if isinstance(each, ast.arg)}


def _assigns(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _can_move(statement: ast.Assign, node: ast.AST, function: ast.AST) -> bool:
    """Whether an assignment can be moved to just before a node.

    The node must follow in the same block and outside of inner loops, and no name that the assignment reads may be
    assigned in between.
    """
    later = _statements_after(statement, function)
    holder = next((each for each in later if any(part is node for part in ast.walk(each))), None)
    if holder is None:
        return False
    loops = (each for each in ast.walk(holder) if isinstance(each, _LOOPS))
    if any(part is node for loop in loops for part in ast.walk(loop)):
        return False
    between = _stored_names(later[: later.index(holder) + 1])
    return not between & {part.id for part in ast.walk(statement.value) if isinstance(part, ast.Name)}


def _statements_after(statement: ast.stmt, function: ast.AST) -> list[ast.stmt]:
    """The statements after a statement in its block."""
    for owner in ast.walk(function):
        for block in _BLOCKS:
            body = getattr(owner, block, None)
            if isinstance(body, list) and statement in body:
                return body[body.index(statement) + 1 :]
    return []
