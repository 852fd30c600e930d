"""Branches of the user's code on the rank: why ranks capture different graphs, or call different collectives."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Set

from compiler.record import Artifact, Record, Span

Branch = ast.If | ast.IfExp | ast.While
_RANK_CALLS = frozenset({"get_rank", "get_local_rank", "get_coordinate", "get_group_rank"})
_RANK_NAMES = frozenset({"rank", "local_rank", "global_rank"})
_COLLECTIVE_CALLS = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
    "all_to_all", "all_to_all_single", "barrier", "reduce", "gather", "scatter", "redistribute", "full_tensor",
})  # fmt: skip
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def captured_branches(artifact: Artifact, callers: Set[tuple[str, int]]) -> Iterator[tuple[str, int, bool]]:
    """(file, line, whether a collective is in it) of each branch on the rank in a captured function of the user.

    `callers` are lines that call compiled functions: the functions around them are not compiled.
    """
    lines = {int(entity.attrs["line"]) for entity in artifact.entities if "line" in entity.attrs}
    captured = {line for line in lines if (artifact.title, line) not in callers}
    numbers = _numbers(artifact)
    for function in _functions(artifact):
        own = {numbers[row - 1] for row in _own_rows(function)}
        for branch in _branches(function) if captured & own else ():
            if (line := numbers[branch.lineno - 1]) in own:
                yield artifact.title, line, _calls_collective(branch)


def _own_rows(function: ast.FunctionDef) -> set[int]:
    """The rows of a function without those of functions that are defined in it, which may be all that is compiled."""
    nested = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function]
    rows = set(range(function.lineno, (function.end_lineno or 0) + 1))
    return rows.difference(*(range(node.lineno, (node.end_lineno or 0) + 1) for node in nested))


def branch_before(lines: Iterable[Span], record: Record) -> Span | None:
    """The branch on the rank that decides whether the first of these lines is reached, or else a later one.

    It is one around the line, or one that leaves the function before it; None if none is seen.
    """
    found = (branch for line in lines if not line.installed for branch in _branches_before(line, record))
    return next(found, None)


def _branches_before(line: Span, record: Record) -> Iterator[Span]:
    """The branches on the rank that decide whether a line is reached, innermost first."""
    for artifact in record.of_stage("source"):
        numbers = _numbers(artifact)
        if artifact.title != line.file or line.line not in numbers:
            continue
        row, rows = numbers.index(line.line) + 1, artifact.text.split("\n")
        around = [each for each in _functions(artifact) if each.lineno <= row <= (each.end_lineno or 0)]
        scope = max(around, key=lambda each: each.lineno, default=_tree(artifact))
        deciding = set(_deciding_branches(scope, row)).intersection(_branches(scope))
        for branch in sorted(deciding, key=lambda each: -each.lineno):
            place = numbers[branch.lineno - 1]
            yield Span(line.file, place, place, code=rows[branch.lineno - 1].strip())


def _deciding_branches(scope: ast.AST, row: int) -> Iterator[Branch]:
    for node in ast.walk(scope):
        if isinstance(node, Branch) and node.lineno < row:
            leaves = isinstance(node, ast.If) and isinstance(node.body[-1], _EXITS)
            if leaves or row <= (node.end_lineno or 0):
                yield node


def _numbers(artifact: Artifact) -> list[int]:
    """The line of the file of each row of a source; 0 for a gap."""
    return artifact.attrs.get("numbers") or list(range(1, artifact.text.count("\n") + 2))


def _functions(artifact: Artifact) -> list[ast.FunctionDef]:
    """The functions in a source of the user."""
    return [node for node in ast.walk(_tree(artifact)) if isinstance(node, ast.FunctionDef)]


def _tree(artifact: Artifact) -> ast.Module:
    """A source of the user; an empty one if it can't be parsed, or is installed."""
    nothing = ast.Module([], [])
    if artifact.attrs.get("installed"):
        return nothing
    text = "\n".join("" if line.strip() == "⋮" else line for line in artifact.text.split("\n"))
    try:
        return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return nothing


def _branches(scope: ast.AST) -> Iterator[Branch]:
    """The branches of a function, or of a program, on the rank of this process."""
    assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign) and _reads_rank(node.value, set())]
    ranks = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(scope):
        if isinstance(node, Branch) and _reads_rank(node.test, ranks):
            yield node


def _reads_rank(node: ast.expr, names: Set[str]) -> bool:
    """Whether an expression reads the rank: a function of torch, a variable with its result, `rank == 0`."""
    inside = list(ast.walk(node))
    compared = [part for each in inside if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq | ast.NotEq)
                for part in (each.left, *each.comparators)]  # fmt: skip
    known = (each for each in inside if isinstance(each, ast.Name) and each.id in names)
    called = (each for each in inside if isinstance(each, ast.Call) and _callee_name(each) in _RANK_CALLS)
    named = (each for each in compared if isinstance(each, ast.Name | ast.Attribute) and _word(each) in _RANK_NAMES)
    return any(True for found in (known, called, named) for _ in found)


def _word(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _callee_name(node: ast.Call) -> str:
    return _word(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""


def _calls_collective(branch: Branch) -> bool:
    """Whether one side of a branch calls a collective that the other side does not call."""
    sides = [[branch.body], [branch.orelse]] if isinstance(branch, ast.IfExp) else [branch.body, branch.orelse]
    called = [
        sorted(
            name
            for statement in side
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and (name := _callee_name(node)) in _COLLECTIVE_CALLS
        )
        for side in sides
    ]
    return called[0] != called[1]
