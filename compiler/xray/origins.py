"""Trace the values in an expression back: to assignments, loops and arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.capture.assignments import (
    Assigned,
    Source,
    Step,
    always_sets,
    argument_of,
    covers,
    excludes,
    find_reaching,
    place_of,
    sets,
    source_of_file,
)
from compiler.capture.sources import SourceBook, span_of
from compiler.capture.suggestions.case import nodes_around
from compiler.record import ValueOrigin
from compiler.record.break_facts import Place

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
    source = source_of_file(place.file)
    function = source.function_around(place) if source else None
    if source is None or function is None:
        return
    iterated = _iterated_values(source, function, use)
    before, later = find_reaching(source, function, use.name, use.line, _load(function, use))
    earlier = [found for found in before if not excludes(source, found[0], use.line)]
    for node, value in iterated or earlier or later:
        if value is not None:
            shown = value if isinstance(node, ast.With | ast.AsyncWith) else node
            read = node if isinstance(node, ast.AugAssign) else value
            yield replace(place_of(Step(place.file, shown)), function=place.function), read, use.depth
    is_set = iterated or any(always_sets(source, node, use.name, use.line) for node, _ in earlier)
    if is_set or use.depth == 0:
        return
    caller = places[use.depth - 1]
    call = nodes_around(caller)[-1:]
    passed = argument_of(function.args, use.name, call[0]) if call and isinstance(call[0], ast.Call) else None
    if passed is not None and not isinstance(function, ast.Lambda):
        yield replace(place_of(Step(caller.file, passed)), function=caller.function), passed, use.depth - 1


def _load(function: ast.AST, use: _Use) -> ast.Name | None:
    """The first node that reads the name from the line of a use on."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == use.name)
    loads = (node for node in names if isinstance(node.ctx, ast.Load) and node.lineno >= use.line)
    return min(loads, key=lambda node: node.lineno, default=None)


def _iterated_values(source: Source, function: ast.AST, use: _Use) -> list[Assigned]:
    """The iterated values of the comprehensions around a use that set its name."""
    own = (node for node in ast.walk(function) if isinstance(node, ast.comprehension) and sets(node.target, use.name))
    return [(node.iter, node.iter) for node in own if covers(source.parents[node], use.line)]


def _names(node: ast.AST) -> list[str]:
    """Names that a node reads, except `self` and `torch`."""
    loads = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
    return list(dict.fromkeys(each.id for each in loads if each.id not in ("self", "torch")))
