"""The facts about a graph break that rules check: torch's message, and the user's expression and statement."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from compiler.record import Span
from compiler.record.break_facts import Place

_TARGET = re.compile(r"^module: (?P<module>[^,]*), qualname: (?P<name>[^,]*),")
_SPECIAL_METHOD = re.compile(r"name=(__\w+__), type=")
_OF_SPECIAL_METHODS = {
    "__iter__": "missing tp_iter",
    "__next__": "Missing tp_iternext",
    "__getitem__": "missing_mp_subscript",
    "__setitem__": "missing_mp_ass_subscript",
}
_METHOD = re.compile(r"^call_method \w+\(<class '(?P<owner>[\w.]+)'>\) (?P<name>\w+)")


@dataclass(frozen=True, slots=True)
class Case:
    """One graph break. `span` is the innermost piece of the user's own code, and `node` its expression.

    `statement` contains the expression; `around` are the enclosing statements, outermost first. `source` are the lines
    of the file. `depth` is the number of calls, in installed packages, from the span to the line of the break.
    `inlined` is whether TorchDynamo inlines the function into the compiled one, or would without other breaks.
    """

    kind: str
    context: str
    span: Span
    source: tuple[str, ...] = ()
    node: ast.expr | None = None
    statement: ast.stmt | None = None
    around: tuple[ast.AST, ...] = ()
    depth: int = 0
    inlined: bool = False

    @property
    def callee(self) -> str:
        """The callee as written: `print`, `time.time`, or `.item` for a method of an expression."""
        return _callee(self.node.func) if isinstance(self.node, ast.Call) else ""

    @property
    def target(self) -> str:
        """The callee as named in torch's message (`posix.stat`); "" if the message names none."""
        if found := _TARGET.match(self.context):
            return f"{found['module']}.{found['name']}"
        found = _METHOD.match(self.context)
        return f"{found['owner']}.{found['name']}" if found else ""

    def text(self, node: ast.AST | None) -> str:
        """Source text of a node in this file."""
        return (node and ast.get_source_segment("".join(self.source), node)) or ""

    def lines_with(self, old: ast.expr | ast.stmt, new: str) -> str:
        """The lines of `old` with its text replaced by `new`; other text on these lines is kept."""
        first, last = self.source[old.lineno - 1], self.source[(old.end_lineno or old.lineno) - 1]
        before = first.encode()[: old.col_offset].decode()
        after = last.encode()[old.end_col_offset or 0 :].decode()
        return before + new + after.rstrip("\n")


def case_of(kind: str, context: str, place: Place, span: Span, depth: int = 0, inlined: bool = False) -> Case:
    """The case of a break at `place`; if the source does not parse, the case has no AST nodes."""
    source = tuple(linecache.getlines(place.file))
    path = nodes_around(place)
    statements = [node for node in path if isinstance(node, ast.stmt)]
    nodes = [node for node in path if isinstance(node, ast.expr) and _is_at(node, place)]
    return Case(
        kind=kind,
        context=context,
        span=span,
        source=source,
        node=nodes[-1] if nodes else None,
        statement=statements[-1] if statements else None,
        around=tuple(node for node in path if not isinstance(node, ast.expr))[:-1],
        depth=depth,
        inlined=inlined,
    )


def kind_in_rules(kind: str, message: str) -> str:
    """The type of a break as rules name it, as torch 2.15 has one type for several earlier types."""
    if kind == "Unsupported function call (delayed)" and "RNN, GRU, or LSTM" in message:
        return "Attempted to wrap RNN, GRU, or LSTM"
    if kind == "C-implemented special method without VariableTracker model":
        method = _SPECIAL_METHOD.search(message)
        return _OF_SPECIAL_METHODS.get(method[1] if method else "", "vectorcall_maybe on C method descriptor")
    return kind


def narrow_to_header(place: Place) -> Place:
    """Narrow the place of a whole `with`, `if` or `for` block to its header."""
    if not place.end_line or place.end_line == place.line:
        return place
    statement = nodes_around(place)[-1:]
    header = _header(statement[0]) if statement and getattr(statement[0], "col_offset", -1) == place.column else None
    if header is None:
        return place
    ends = (header.end_lineno, header.col_offset, header.end_col_offset)
    return Place(place.file, place.function, header.lineno, *ends)


def _header(statement: ast.AST) -> ast.expr | None:
    if isinstance(statement, ast.With | ast.AsyncWith):
        return statement.items[0].context_expr
    if isinstance(statement, ast.If | ast.While | ast.Assert):
        return statement.test
    return statement.iter if isinstance(statement, ast.For | ast.AsyncFor) else None


@lru_cache(maxsize=16)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def nodes_around(place: Place) -> tuple[ast.AST, ...]:
    """The AST nodes around a place, outermost first; () if its file does not parse.

    If the place has no columns, only the statements that contain its line.
    """
    found: list[ast.AST] = []
    inside: ast.AST | None = _parse("".join(linecache.getlines(place.file)))
    while inside is not None:
        inside = next((child for child in _children(inside) if _holds(child, place)), None)
        if inside is not None:
            found.append(inside)
    return tuple(found)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:  # `withitem` and `arguments` have no position
            yield from _children(child)


def _holds(node: ast.AST, place: Place) -> bool:
    if place.column is None or place.end_line is None:
        return isinstance(node, ast.stmt) and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    start, end = (place.line, place.column), (place.end_line, place.end_column or 0)
    return (node.lineno, node.col_offset) <= start and end <= (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def _is_at(node: ast.expr, place: Place) -> bool:
    own = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
    return own == (place.line, place.end_line, place.column, place.end_column)


def _callee(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _callee(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else ""
        return f"{owner}.{node.attr}"
    return ""
