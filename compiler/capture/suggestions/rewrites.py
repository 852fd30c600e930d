"""Rewrites of the user's own lines: each returns the new text, or None."""

from __future__ import annotations

import ast

from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.rule import Lines, Rewrite
from compiler.capture.suggestions.uses import REDUCTIONS, is_boolean, needs_number, needs_python


def _put(case: Case, old: ast.expr | ast.stmt, new: str) -> Lines:
    return old.lineno, old.end_lineno or old.lineno, case.replaced(old, new)


def expression(template: str) -> Rewrite:
    """The culprit's call becomes `template`, with `{0}` its first argument, `{self}` what a method is called on, and
    `{arguments}` all arguments. Keywords are carried by `{arguments}` alone: without it, a call with some is no case.
    """

    def rewrite(case: Case) -> Lines | None:
        node = case.node
        if not isinstance(node, ast.Call) or any(isinstance(item, ast.Starred) for item in node.args):
            return None
        if node.keywords and "{arguments}" not in template:
            return None
        arguments = [case.text(item) for item in node.args]
        given = ", ".join([*arguments, *(case.text(item) for item in node.keywords)])
        owner = case.text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        try:
            return _put(case, node, template.format(*arguments, self=owner, arguments=given))
        except IndexError:
            return None

    return rewrite


def without_call(case: Case) -> Lines | None:
    """`y.sum().item()` and `float(y.sum())` become `y.sum().detach()`: no gradient flows through a number either."""
    node = case.node
    if not isinstance(node, ast.Call) or node.keywords or needs_python(case) or needs_number(case):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return _put(case, node, _as_number(case, node.func.value))
    if isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1:
        return _put(case, node, _as_number(case, node.args[0]))
    return None


def _as_number(case: Case, tensor: ast.expr) -> str:
    """A tensor in the place of its number: without gradient and, if it may have some, without dimensions."""
    is_call = isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute)
    is_reduced = is_call and not tensor.args and not tensor.keywords and tensor.func.attr in REDUCTIONS  # type: ignore[attr-defined]
    text = (
        case.text(tensor)
        if isinstance(tensor, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        else f"({case.text(tensor)})"
    )
    return f"{text}.detach()" if is_reduced else f"{text}.detach().reshape(())"


def without_statement(case: Case) -> Lines | None:
    """The whole statement goes, if it is this call alone; `pass` stays where it was."""
    statement = case.statement
    is_alone = isinstance(statement, ast.Expr) and statement.value is case.node
    return _put(case, statement, "pass") if statement is not None and is_alone else None


def branch_to_where(case: Case) -> Lines | None:
    """`if c: y = a` (`else: y = b`) and `a if c else b` become `torch.where(c, a, b)`."""
    owner = case.statement
    if case.node is None:
        return None
    if isinstance(owner, ast.If) and case.node in _operands(owner.test):
        return _where_statement(case, owner) if _can_combine(owner.test) else None
    choices = (node for node in _expressions(case) if isinstance(node, ast.IfExp))
    choice = next((node for node in choices if case.node in _operands(node.test)), None)
    if choice is None or not _can_combine(choice.test):
        return None
    yes, no = case.text(choice.body), case.text(choice.orelse)
    return _put(case, choice, f"torch.where({_condition(case, choice.test)}, {yes}, {no})")


def _operands(test: ast.expr) -> list[ast.expr]:
    """A condition, and what it is made of by `and`, `or` and `not`."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test.operand] if isinstance(test, ast.UnaryOp) else []
    return [test, *(inner for part in parts for inner in _operands(part))]


def _where_statement(case: Case, statement: ast.If) -> Lines | None:
    yes, no = _choices(statement) or (None, None)
    if yes is None or no is None or yes[0] != no[0]:
        return None
    condition = _condition(case, statement.test)
    return _put(case, statement, f"{yes[0]} = torch.where({condition}, {yes[1]}, {no[1]})")


def _can_combine(test: ast.expr) -> bool:
    """Whether a condition can be a tensor: `&` and `|` take what `and` and `or` are between only if it is bool."""
    return not isinstance(test, ast.BoolOp) or is_boolean(test)


def _choices(statement: ast.If) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """The assignments of both branches, as pairs of name and value."""
    yes = _only_assignment(statement.body)
    no = _only_assignment(statement.orelse) if statement.orelse else yes and (yes[0], yes[0])
    return (yes, no) if yes is not None and no is not None else None


def chooses_alike(case: Case) -> bool:
    """Whether both sides of a choice are the same tensor, added to or multiplied with whole numbers: they have one
    shape and one dtype, and no side can fail where the other is meant.
    """
    statement = case.statement
    if isinstance(statement, ast.If):
        choices = _choices(statement)
        sides = [ast.parse(value, mode="eval").body for _, value in choices or ()]
    else:
        choice = next((node for node in _expressions(case) if isinstance(node, ast.IfExp)), None)
        sides = [choice.body, choice.orelse] if choice is not None else []
    names = {node.id for side in sides for node in ast.walk(side) if isinstance(node, ast.Name)}
    return bool(sides) and len(names) == 1 and all(map(_is_scaled, sides))


def _is_scaled(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        numbers = [isinstance(side, ast.Constant) and type(side.value) is int for side in sides]
        known = isinstance(node.op, ast.Add | ast.Sub | ast.Mult)
        return (
            known
            and any(numbers)
            and all(number or _is_scaled(side) for number, side in zip(numbers, sides, strict=True))
        )
    return isinstance(node, ast.Name)


def _only_assignment(body: list[ast.stmt]) -> tuple[str, str] | None:
    """Name and value of the one assignment in a block."""
    if len(body) != 1 or not isinstance(body[0], ast.Assign) or len(body[0].targets) != 1:
        return None
    target = body[0].targets[0]
    return (target.id, ast.unparse(body[0].value)) if isinstance(target, ast.Name) else None


def _condition(case: Case, test: ast.expr) -> str:
    """A condition as a tensor: `and`, `or`, `not` and `a < b < c` ask Python for truth."""
    if isinstance(test, ast.BoolOp):
        operator = " & " if isinstance(test.op, ast.And) else " | "
        return operator.join(f"({_condition(case, value)})" for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"torch.logical_not({_condition(case, test.operand)})"
    if isinstance(test, ast.Compare) and len(test.ops) > 1:
        sides = [test.left, *test.comparators]
        pairs = (ast.Compare(sides[n], [test.ops[n]], [sides[n + 1]]) for n in range(len(test.ops)))
        return " & ".join(f"({ast.unparse(pair)})" for pair in pairs)
    return case.text(test)


def negation(case: Case) -> Lines | None:
    """`not c` becomes `torch.logical_not(c)`."""
    node = case.node
    return _put(case, node, _condition(case, node)) if isinstance(node, ast.UnaryOp) else None


def _expressions(case: Case) -> list[ast.AST]:
    return list(ast.walk(case.statement)) if case.statement is not None else []


def logical(case: Case) -> Lines | None:
    """`a and b` becomes `(a) & (b)`, `a or b` `(a) | (b)`, outside of the header of a block."""
    if isinstance(case.statement, ast.If | ast.While | ast.Assert):
        return None
    for node in _expressions(case):
        if isinstance(node, ast.BoolOp) and case.node in (node, *node.values) and is_boolean(node):
            return _put(case, node, _condition(case, node))
    return None


def assert_in_graph(case: Case) -> Lines | None:
    """`assert c, message` and `if c: raise ...` become `torch._assert_async(c, "message")`, a node of the graph."""
    statement = case.statement
    if isinstance(statement, ast.Assert) and _can_combine(statement.test):
        message = _message(case, [statement.msg] if statement.msg is not None else [], statement.test)
        return _put(case, statement, f"torch._assert_async({_condition(case, statement.test)}, {message})")
    if raises(case) and isinstance(statement, ast.If) and _can_combine(statement.test):
        error = statement.body[0].exc if isinstance(statement.body[0], ast.Raise) else None
        message = _message(case, error.args if isinstance(error, ast.Call) else [], statement.test)
        return _put(case, statement, f"torch._assert_async({_negate(case, statement.test)}, {message})")
    return None


def raises(case: Case) -> bool:
    """Whether the branch only raises: `if c: raise ValueError("...")`."""
    statement = case.statement
    is_if = isinstance(statement, ast.If) and not statement.orelse
    return is_if and [type(inner) for inner in statement.body] == [ast.Raise]  # type: ignore[union-attr]


def checks(case: Case) -> bool:
    """Whether the statement only checks something."""
    return isinstance(case.statement, ast.Assert) or raises(case)


def repeats(case: Case) -> bool:
    return isinstance(case.statement, ast.While)


def branches(case: Case) -> bool:
    return not checks(case) and not repeats(case)


def _message(case: Case, given: list[ast.expr], test: ast.expr) -> str:
    """The message of an assert as a constant: as written, or else the condition."""
    first = given[0] if given else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return case.text(first)
    return ast.unparse(ast.Constant(" ".join(case.text(test).split())))


def _negate(case: Case, test: ast.expr) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _condition(case, test.operand)
    return f"torch.logical_not({_condition(case, test)})"


def data_to_copy(case: Case) -> Lines | None:
    """`y.data = v` becomes `y.detach().copy_(v)`."""
    statement = case.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
        return None
    if not isinstance(statement.targets[0], ast.Attribute) or statement.targets[0].attr != "data":
        return None
    owner, value = case.text(statement.targets[0].value), case.text(statement.value)
    return _put(case, statement, f"{owner}.detach().copy_({value})")


def clone(case: Case) -> Lines | None:
    """`copy.deepcopy(y)` becomes `y.detach().clone()` if y is a tensor, not something that holds some."""
    return expression("{0}.detach().clone()")(case) if case.depth == 1 else None
