"""Record kinds of the values of a program's expressions: shapes, plain values, lengths and identities.

The user's functions run eagerly with every expression wrapped, and each value is reduced to a small description.
Comparing the descriptions of one expression tells whether its value changes, within a call or between calls.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from compiler.xray.substitution import CodeKey, codes_of, key_of, swap_code

NOTE = "_tcompile_kind"
MOST_ITEMS = 12
MOST_KINDS = 24
NodeKey = tuple[str, int, int, int, int]
"""File, first line and column, and last line and column of an expression or a parameter."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)


@dataclass(frozen=True, slots=True)
class Kind:
    """A description of a value. Fields that do not apply have their defaults.

    `value` is a plain value. `shape` are the sizes of a tensor or array. `length` and `items` describe a container.
    `code` is the key of the code that a function or module runs. `identity` is the id of a tensor or any other object.
    """

    type: str
    value: Any = None
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    dtype: Any = None
    device: Any = None
    requires_grad: bool | None = None
    length: int | None = None
    items: tuple[Kind, ...] = ()
    code: CodeKey | None = None
    identity: int | None = None
    is_iterator: bool = False

    def aspect(self, aspect: str) -> Any:
        """The part of the description that matters for an aspect; None if the aspect does not apply."""
        if self.length is not None:
            items = tuple(item.aspect(aspect) for item in self.items)
            counts = aspect in ("shape", "value", "stride", "identity")
            return (
                (self.length if counts else None, items) if counts or any(item is not None for item in items) else None
            )
        if aspect == "identity":
            return self.identity if self.identity is not None else self.aspect("value")
        if aspect == "value":
            return (self.type, repr(self.value)) if self.shape is None and self.is_plain else self.shape
        if aspect == "shape":
            return self.value if self.shape is None and self.type == "int" else self.shape
        return (
            (self.shape, self.stride) if aspect == "stride" and self.shape is not None else getattr(self, aspect, None)
        )

    def sizes(self) -> Iterator[int]:
        """Yield all sizes, lengths and ints in the description, including those of items."""
        yield from self.shape or ()
        yield from (each for each in (self.length, self.value) if type(each) is int)
        for item in self.items:
            yield from item.sizes()

    @property
    def is_plain(self) -> bool:
        return self.value is not None or self.type == "NoneType"


def kind_of(value: Any, depth: int = 3) -> Kind:
    """Describe a value, and `depth` levels of items of containers. The user's own methods are not called."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        stride = tuple(value.stride()) if value.layout == torch.strided else None
        parts = (tuple(value.shape), stride, value.dtype, str(value.device), value.requires_grad)
        return Kind(name, None, *parts, identity=id(value))
    if isinstance(value, _PLAIN):
        return Kind(name, value)
    if isinstance(value, np.ndarray):
        return Kind(name, shape=value.shape, dtype=value.dtype)
    if type(value) in (list, tuple, deque, torch.Size) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return _container(name, list(value), len(value), depth)
    if type(value) in (dict, set, frozenset):
        items = [*value, *(value.values() if isinstance(value, dict) else ())]
        return _container(name, items, len(value), depth)
    if hasattr(type(value), "__next__"):
        return Kind(name, is_iterator=True)
    return Kind(name, code=_code_key(value), identity=id(value))


def _container(name: str, items: Sequence[Any], length: int, depth: int) -> Kind:
    shown = items[:MOST_ITEMS] if depth else ()
    return Kind(name, length=length, items=tuple(kind_of(item, depth - 1) for item in shown))


def _code_key(value: Any) -> CodeKey | None:
    if isinstance(value, torch.nn.Module):
        value = type(value).forward
    function = value.__func__ if isinstance(value, MethodType) else value
    return key_of(function.__code__) if isinstance(function, FunctionType) else None


@dataclass
class Kinds:
    """Kinds of the values of each expression, by number of the call."""

    call: int = 1
    nodes: list[NodeKey] = field(default_factory=list)
    found: dict[NodeKey, dict[int, dict[Kind, None]]] = field(default_factory=dict)

    def note(self, number: int, value: Any) -> Any:
        """Record the kind of a value and return the value."""
        kinds = self.found.setdefault(self.nodes[number], {}).setdefault(self.call, {})
        if len(kinds) < MOST_KINDS:
            kinds[kind_of(value)] = None
        return value

    @property
    def calls(self) -> range:
        """Numbers of all calls so far."""
        return range(1, self.call + 1)

    @functools.cached_property
    def keys(self) -> frozenset[NodeKey]:
        """Keys of all expressions that are noted when they run. Read it only after the calls, as it is cached."""
        return frozenset(self.nodes)

    def kinds_of(self, key: NodeKey, calls: Iterable[int]) -> list[Kind]:
        """Kinds of an expression's values in some calls."""
        by_call = self.found.get(key, {})
        return list(dict.fromkeys(kind for call in dict.fromkeys(calls) for kind in by_call.get(call, ())))

    def varies(self, key: NodeKey, aspect: str, calls: Iterable[int]) -> bool:
        """Whether an aspect of an expression's value changes within or between some calls."""
        return len(self.aspects(key, aspect, calls)) > 1

    def aspects(self, key: NodeKey, aspect: str, calls: Iterable[int]) -> set[Any]:
        """The different values that an aspect of an expression takes in some calls."""
        return {each for kind in self.kinds_of(key, calls) if (each := kind.aspect(aspect)) is not None}

    @contextmanager
    def record_kinds(self, functions: Mapping[str, Sequence[FunctionType]]) -> Iterator[None]:
        """While the block runs, record the kinds of the values of all expressions in functions, given by file."""
        codes: dict[CodeKey, CodeType] = {}
        for file in functions:
            codes |= codes_of(file, _Wrap(file, self.nodes).visit(parse(file)))
        with swap_code([each for file in functions for each in functions[file]], codes, {NOTE: self.note}):
            yield


def parse(file: str) -> ast.Module:
    """A new syntax tree of a file. Raises SyntaxError."""
    return ast.parse("".join(linecache.getlines(file)))


def node_key(file: str, node: ast.AST) -> NodeKey:
    """The key of a node of a file."""
    assert isinstance(node, ast.expr | ast.stmt | ast.arg)
    return file, node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0


class _Wrap(ast.NodeTransformer):
    """Wraps each expression of a function in a call that notes its value."""

    def __init__(self, file: str, nodes: list[NodeKey]) -> None:
        self.file, self.nodes, self.depth = file, nodes, 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.depth += 1
            body = [self.visit(each) for each in node.body]
            self.depth -= 1
            first = int(ast.get_docstring(node, clean=False) is not None)
            node.body = [*body[:first], *self._parameters(node.args), *body[first:]]
            return node
        if isinstance(node, ast.Module | ast.ClassDef):
            return self.generic_visit(node) if isinstance(node, ast.Module) else self._class(node)
        if not self.depth:
            return self._value_outside(node)
        if isinstance(node, ast.expr):
            return self._expression(node)
        return self._match_case(node) if isinstance(node, ast.match_case) else self._statement(node)

    def _value_outside(self, node: ast.AST) -> Any:
        """Visit only the functions in a node that is outside of functions."""
        return node if isinstance(node, ast.expr) else self.generic_visit(node)

    def _class(self, node: ast.ClassDef) -> Any:
        before, self.depth = self.depth, 0
        node.body = [self.visit(each) for each in node.body]
        self.depth = before
        return node

    def _match_case(self, node: ast.match_case) -> Any:
        node.guard = None if node.guard is None else self.visit(node.guard)
        node.body = [self.visit(each) for each in node.body]
        return node

    def _statement(self, node: ast.AST) -> Any:
        if isinstance(node, ast.AnnAssign):
            node.value = None if node.value is None else self.visit(node.value)
            return node
        return self.generic_visit(node)

    def _expression(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
        elif isinstance(node, ast.Subscript) and _holds_slice(node.slice):
            node.value = self.visit(node.value)
            self._visit_slices(node.slice)
        elif not isinstance(node, ast.JoinedStr):
            self.generic_visit(node)
        return self._wrap(node) if _can_be_wrapped(node) else node

    def _parameters(self, arguments: ast.arguments) -> Iterator[ast.stmt]:
        """Yield statements that note the values of parameters."""
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            yield ast.copy_location(ast.Expr(self._wrap(ast.Name(each.arg, ast.Load()), each)), each)

    def _visit_slices(self, node: ast.expr) -> None:
        for part in node.elts if isinstance(node, ast.Tuple) else [node]:
            if isinstance(part, ast.Slice | ast.Starred):
                self.generic_visit(part)
        if isinstance(node, ast.Tuple):
            node.elts = [each if isinstance(each, ast.Slice | ast.Starred) else self.visit(each) for each in node.elts]

    def _wrap(self, node: ast.expr, at: ast.expr | ast.arg | None = None) -> ast.expr:
        """Wrap an expression. Its value is noted for the node `at`, by default for the expression."""
        place = node if at is None else at
        self.nodes.append(node_key(self.file, place))
        number = ast.Constant(len(self.nodes) - 1)
        call = ast.Call(ast.Name(NOTE, ast.Load()), [number, node], [])
        for new in (call, call.func, number, node):
            ast.copy_location(new, place)
        return call


def _holds_slice(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(isinstance(part, ast.Slice | ast.Starred) for part in parts)


def _can_be_wrapped(node: ast.expr) -> bool:
    is_target = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    other = ast.Constant | ast.Starred | ast.Slice | ast.JoinedStr | ast.FormattedValue | ast.Yield | ast.YieldFrom
    return not is_target and not isinstance(node, other) and not (isinstance(node, ast.Name) and node.id == "super")
