"""Rewrite of loops that tensor data ends early: every iteration runs, and torch.where keeps the values that count.

`if c: break` and `if c: return x` set a flag, after which assignments keep the old values; `if c: continue` keeps the
old values for the rest of the iteration.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from compiler.capture.suggestions import branches
from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.rule import Lines

_FLAGS = ("is_done", "has_ended", "is_over")
_TESTS = ("is_last", "is_end", "is_so")
_SKIPS = ("is_skipped", "is_left_out", "is_not_so")
_Assignment = ast.Assign | ast.AugAssign


@dataclass(frozen=True)
class _Loop:
    """A `for` loop with an `if` that ends it or skips the rest of an iteration.

    `before`, `inside` and `after` are the assignments before the `if`, in it, and after it. `final` is the `return`
    after the loop that a `return` in the loop takes the place of.
    """

    case: Case
    node: ast.For
    function: ast.FunctionDef
    choice: ast.If
    before: Sequence[_Assignment]
    inside: Sequence[_Assignment]
    after: Sequence[_Assignment]
    final: ast.Return | None = None

    @property
    def end(self) -> ast.stmt:
        return self.choice.body[-1]

    def assigned_statements(self) -> list[_Assignment]:
        return [*self.before, *self.inside, *self.after]

    def carried_names(self) -> set[str]:
        """Names whose value of an earlier iteration, or of the last one, is read: in the loop, or after it."""
        read = names_read_later(self.node, self.function)
        read |= reads(self.end) if isinstance(self.end, ast.Return) else set()
        return read & {name_of(each) for each in self.assigned_statements()}

    def is_defined_before(self, name: str) -> bool:
        arguments = self.function.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        stores = (node for node in ast.walk(self.function) if isinstance(node, ast.Name) and node.id == name)
        first = min((node.lineno for node in stores if isinstance(node.ctx, ast.Store)), default=self.node.lineno)
        return name in {each.arg for each in every} or first < self.node.lineno

    def free_name(self, names: Sequence[str]) -> str:
        taken = {node.id for node in ast.walk(self.function) if isinstance(node, ast.Name)}
        return next((name for name in names if name not in taken), "")


def loop_to_where(case: Case) -> Lines | None:
    """Rewrite a loop that a condition on tensor data ends, so that it always runs to its end; None for other code.

    Its body may only assign names. A name that is kept must have a value before the loop.
    """
    loop = _loop(case)
    if loop is None or not branches.can_combine(loop.choice.test):
        return None
    carried = loop.carried_names()
    device = next((name for name in map(name_of, loop.assigned_statements()) if name in carried), "")
    targets = {node.id for node in ast.walk(loop.node.target) if isinstance(node, ast.Name)}
    if not device or not all(map(loop.is_defined_before, carried)) or _is_read_after(loop, targets):
        return None
    return _rewrite_loop(loop, carried, device)


def names_read_later(loop: ast.For | ast.While, function: ast.FunctionDef) -> set[str]:
    """Names that an iteration reads before it assigns them, and names that code after the loop reads."""
    read, known = reads(loop.test) if isinstance(loop, ast.While) else set[str](), set[str]()
    for statement in loop.body:
        read |= reads(statement) - known
        known |= {name_of(statement)} if isinstance(statement, ast.Assign) else set()
    later = (node for node in ast.walk(function) if getattr(node, "lineno", 0) > (loop.end_lineno or 0))
    return read | {node.id for node in later if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def without_skip(case: Case) -> Lines | None:
    """Leave out `if c: continue`, as code that follows may do nothing where `c` holds; None for other code."""
    owner = case.statement
    loop = next((node for node in reversed(case.around) if isinstance(node, ast.For | ast.While)), None)
    if not isinstance(owner, ast.If) or loop is None or owner not in loop.body[:-1] or owner.orelse:
        return None
    if len(owner.body) != 1 or not isinstance(owner.body[0], ast.Continue):
        return None
    after = loop.body[loop.body.index(owner) + 1]
    if after.lineno == owner.end_lineno or isinstance(after, ast.FunctionDef | ast.ClassDef):
        return None
    last = after.end_lineno or after.lineno
    return owner.lineno, last, "".join(case.source[after.lineno - 1 : last]).rstrip("\r\n")


def skips(case: Case) -> bool:
    """Whether the statement only skips the rest of an iteration."""
    return without_skip(case) is not None


def ends_loop(case: Case) -> bool:
    """Whether the culprit is the condition of a loop's end that can be rewritten."""
    return loop_to_where(case) is not None


def _rewrite_loop(loop: _Loop, carried: set[str], device: str) -> Lines | None:
    is_skip = isinstance(loop.end, ast.Continue)
    flag, test = loop.free_name(_FLAGS), loop.free_name(_SKIPS if is_skip else _TESTS)
    condition = branches.condition_code(loop.case, loop.choice.test)
    if not flag or not test:
        return None
    if is_skip:
        edits: list[tuple[ast.stmt, str]] = [(loop.choice, _choose(loop, carried, test, f"{test} = {condition}"))]
        edits += [(each, _keep_old_value(each, carried, test)) for each in loop.after]
        return _edit_lines(loop, edits, "")
    edits = [(each, _keep_old_value(each, carried, flag)) for each in loop.before]
    ends = f"{flag} = {flag} | ({condition})"
    if loop.inside:
        now = f"{test} = torch.logical_not({flag}) & ({condition})"
        edits.append((loop.choice, _choose(loop, carried, test, now, f"{flag} = {flag} | {test}")))
    else:
        edits.append((loop.choice, ends))
    edits += [(each, _keep_old_value(each, carried, flag)) for each in loop.after]
    if loop.final is not None and isinstance(loop.end, ast.Return) and loop.end.value and loop.final.value:
        chosen = branches.choose_expression(flag, loop.end.value, loop.final.value)
        if chosen is None:
            return None
        edits.append((loop.final, f"return {chosen}"))
    return _edit_lines(loop, edits, f"{flag} = torch.zeros((), dtype=torch.bool, device={device}.device)")


def _choose(loop: _Loop, carried: set[str], test: str, first: str, *last: str) -> str:
    """Lines in place of the `if`: compute the condition, make its assignments where it holds."""
    indent = " " * loop.choice.col_offset
    chosen = [_keep_old_value(each, carried, f"torch.logical_not({test})") for each in loop.inside]
    return f"\n{indent}".join([first, *chosen, *last])


def _keep_old_value(statement: _Assignment, carried: set[str], flag: str) -> str:
    """An assignment that keeps the old value where the flag is set; one of a name that is not carried, as it is."""
    name = name_of(statement)
    if name not in carried:
        return ast.unparse(statement)
    value = statement.value
    if isinstance(statement, ast.AugAssign):
        value = ast.BinOp(ast.Name(name, ast.Load()), statement.op, value)
    return f"{name} = torch.where({flag}, {name}, {ast.unparse(value)})"


def _edit_lines(loop: _Loop, edits: Iterable[tuple[ast.stmt, str]], above: str) -> Lines | None:
    """The loop's lines with statements replaced, and a line above it; None if two statements share a line."""
    node, last = loop.node, (loop.final or loop.node).end_lineno or 0
    lines = [line.rstrip("\r\n") for line in loop.case.source[node.lineno - 1 : last]]
    position = last + 1
    for statement, new in sorted(edits, key=lambda edit: edit[0].lineno, reverse=True):
        first, end = statement.lineno, statement.end_lineno or statement.lineno
        if end >= position or first == node.lineno:
            return None
        position = first
        if new != ast.unparse(statement):
            lines[first - node.lineno : end - node.lineno + 1] = loop.case.lines_with(statement, new).split("\n")
    indent = loop.case.source[node.lineno - 1][: node.col_offset]
    return node.lineno, last, "\n".join([f"{indent}{above}", *lines] if above else lines)


def _loop(case: Case) -> _Loop | None:
    """The loop that the culprit's `if` ends; None if the loop does more than assign names."""
    choice = case.statement
    blocks = [node for node in case.around if isinstance(node, ast.For | ast.FunctionDef)]
    if not (isinstance(choice, ast.If) and branches.is_in(case, choice.test) and not choice.orelse) or len(blocks) < 2:
        return None
    node, function = blocks[-1], next((each for each in reversed(blocks) if isinstance(each, ast.FunctionDef)), None)
    if not (isinstance(node, ast.For) and isinstance(function, ast.FunctionDef) and choice in node.body) or node.orelse:
        return None
    at = node.body.index(choice)
    before, after, *inside, end = node.body[:at], node.body[at + 1 :], *choice.body
    final = _return_after(function, node)
    if isinstance(end, ast.Return):
        fits = end.value is not None and final is not None
    else:
        fits, final = isinstance(end, ast.Break | ast.Continue), None
    parts = [list(only_assignments(each)) for each in (before, inside, after)]
    if not fits or [len(each) for each in parts] != [len(before), len(inside), len(after)]:
        return None
    return _Loop(case, node, function, choice, parts[0], parts[1], parts[2], final)


def only_assignments(statements: Sequence[ast.stmt]) -> Iterator[_Assignment]:
    for each in statements:
        match each:
            case ast.Assign(targets=[ast.Name()]) | ast.AugAssign(target=ast.Name()):
                yield each


def _return_after(function: ast.FunctionDef, loop: ast.For) -> ast.Return | None:
    """The `return` that follows a loop in the function's own body; None if something else follows."""
    at = function.body.index(loop) + 1 if loop in function.body else len(function.body)
    found = function.body[at] if at < len(function.body) else None
    return found if isinstance(found, ast.Return) and found.value is not None else None


def _is_read_after(loop: _Loop, names: set[str]) -> bool:
    """Whether names are read after the loop, or in a `return` that moves there."""
    later = [node for node in ast.walk(loop.function) if getattr(node, "lineno", 0) > (loop.node.end_lineno or 0)]
    if isinstance(loop.end, ast.Return):
        later += list(ast.walk(loop.end))
    return any(isinstance(node, ast.Name) and node.id in names for node in later)


def reads(statement: ast.AST) -> set[str]:
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names | {name_of(each) for each in ast.walk(statement) if isinstance(each, ast.AugAssign)}


def name_of(statement: ast.AST) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    return target.id if isinstance(target, ast.Name) else ""
