"""Rewrite of loops that end as tensor data say, as `torch.while_loop`: `for i in range(n.item())` and `while`."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from compiler.capture.suggestions import branches
from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.loops import name_of, names_read_later, only_assignments, reads
from compiler.capture.suggestions.rule import Lines

_TESTS, _STEPS = ("is_unfinished", "goes_on", "is_going_on"), ("next_step", "iterate", "next_iteration")


def loop_in_graph(case: Case) -> Lines | None:
    """Rewrite `while x.sum() > 1:`, or `for i in range(n.item()):` with `i` as a tensor that counts.

    The body may only assign names.
    A name that an iteration reads, or that is read after the loop, must have a value before the loop.
    """
    node = case.statement
    function = next((each for each in reversed(case.around) if isinstance(each, ast.FunctionDef)), None)
    if not isinstance(node, ast.For | ast.While) or node.orelse or function is None:
        return None
    if len(list(only_assignments(node.body))) != len(node.body) or node.body[0].lineno == node.lineno:
        return None
    carried = names_read_later(node, function) & {name_of(each) for each in node.body}
    if not carried or not carried <= _names_defined_before(node, function):
        return None
    names = sorted(carried)
    if isinstance(node, ast.For):
        return _rewrite_range_loop(case, node, function, names)
    if not (branches.is_in(case, node.test) and branches.can_combine(node.test)):
        return None
    return _write_while_loop(case, node, function, branches.condition_code(case, node.test), names)


def repeats(case: Case) -> bool:
    """Whether the culprit decides how often a loop that can be rewritten is repeated."""
    return loop_in_graph(case) is not None


def _rewrite_range_loop(case: Case, node: ast.For, function: ast.FunctionDef, names: Sequence[str]) -> Lines | None:
    """Rewrite `for i in range(n)`."""
    match node:
        case ast.For(target=ast.Name(id=target), iter=ast.Call(func=ast.Name(id="range"), args=[count], keywords=[])):
            after = (each for each in ast.walk(function) if getattr(each, "lineno", 0) > (node.end_lineno or 0))
            is_read = any(isinstance(each, ast.Name) and each.id == target for each in after)
            if is_read or {target, *reads(count)} & set(names):
                return None
            match count:
                case ast.Call(func=ast.Attribute(value=tensor, attr="item"), args=[], keywords=[]):
                    code = ast.unparse(tensor)
                    first = f"torch.zeros((), dtype=torch.int64, device=({code}).device)"
                case _:
                    code, first = ast.unparse(count), "torch.zeros((), dtype=torch.int64)"
            return _write_while_loop(case, node, function, f"{target} < {code}", names, target, first)
    return None


def _write_while_loop(
    case: Case, node: ast.For | ast.While, function: ast.FunctionDef, condition: str, names: Sequence[str],
    target: str = "", first: str = "",
) -> Lines | None:  # fmt: skip
    """The loop as two functions and a call. If there is a `target`, it counts up from `first`."""
    taken = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
    test = next((name for name in _TESTS if name not in taken), "")
    step = next((name for name in _STEPS if name not in taken), "")
    if not test or not step:
        return None
    last = node.end_lineno or node.lineno
    body = [line.rstrip("\r\n") for line in case.source[node.body[0].lineno - 1 : last]]
    outer = case.source[node.lineno - 1][: node.col_offset]
    inner = body[0][: len(body[0]) - len(body[0].lstrip())]
    parameters = ", ".join([target, *names] if target else names)
    assigned, values, start = (_tuple([each, *names] if target else names) for each in ("_", f"{target} + 1", first))
    return node.lineno, last, "\n".join([
        f"{outer}def {test}({parameters}):", f"{inner}return {condition}", "",
        f"{outer}def {step}({parameters}):", *body, f"{inner}return {values}", "",
        f"{outer}{assigned} = torch.while_loop({test}, {step}, ({start}))",
    ])  # fmt: skip


def _tuple(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) > 1 else f"{values[0]},"


def _names_defined_before(node: ast.stmt, function: ast.FunctionDef) -> set[str]:
    arguments = function.args
    own = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    stores = (each for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return own | {each.id for each in stores if each.lineno < node.lineno}
