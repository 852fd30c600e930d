"""Rewrites of the user's own lines: each gives the lines to replace and their new text, or None."""

from __future__ import annotations

import ast

from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.rule import Lines, Rewrite
from compiler.torch_api.dynamo import PRINT_OPERATOR


def _put(case: Case, old: ast.expr | ast.stmt, new: str) -> Lines:
    return old.lineno, old.end_lineno or old.lineno, case.replaced(old, new)


def expression(template: str) -> Rewrite:
    """The culprit's call becomes `template`, with `{0}` its first argument and `{self}` what a method is called on."""

    def rewrite(case: Case) -> Lines | None:
        node = case.node
        if not isinstance(node, ast.Call) or any(isinstance(item, ast.Starred) for item in node.args):
            return None
        arguments = [case.text(item) for item in node.args]
        owner = case.text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        try:
            return _put(case, node, template.format(*arguments, self=owner))
        except IndexError:
            return None

    return rewrite


def without_call(case: Case) -> Lines | None:
    """`y.sum().item()` and `float(y.sum())` become `y.sum()`."""
    node = case.node
    if not isinstance(node, ast.Call) or not _is_arithmetic(case, node):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return _put(case, node, case.text(node.func.value))
    if isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1:
        return _put(case, node, case.text(node.args[0]))
    return None


def _is_arithmetic(case: Case, node: ast.expr) -> bool:
    """Whether a value is only calculated with and returned: an index or a size has to be a Python number."""
    function = next((item for item in reversed(case.around) if isinstance(item, ast.FunctionDef)), None)
    if function is None:
        return False
    uses: list[ast.expr] = [node]
    if isinstance(case.statement, ast.Assign) and case.statement.value is node:
        names = {case.text(target) for target in case.statement.targets}
        loaded = (item for item in ast.walk(function) if isinstance(getattr(item, "ctx", None), ast.Load))
        uses = [item for item in loaded if isinstance(item, ast.Name) and item.id in names]
    users = [parent for parent in ast.walk(function) if any(child in uses for child in ast.iter_child_nodes(parent))]
    return all(isinstance(user, ast.BinOp | ast.UnaryOp | ast.Return | ast.AugAssign) for user in users)


def without_statement(case: Case) -> Lines | None:
    """The whole statement goes; `pass` stays where it was."""
    statement = case.statement
    return None if statement is None else _put(case, statement, "pass")


def print_in_graph(case: Case) -> Lines | None:
    """`print("mean", m)` becomes `torch._higher_order_ops.print("mean {}", m)`, which is a node of the graph."""
    node = case.node
    if not isinstance(node, ast.Call) or node.keywords or not node.args:
        return None
    pieces, values = [], []
    for argument in node.args:
        text, found = _formatted(case, argument)
        pieces.append(text)
        values += found
    template = ast.unparse(ast.Constant(" ".join(pieces)))
    return _put(case, node, f"{PRINT_OPERATOR}({', '.join([template, *values])})")


def _formatted(case: Case, node: ast.expr) -> tuple[str, list[str]]:
    """The format string of one argument of `print`, and the values in it."""
    if isinstance(node, ast.Constant):
        return str(node.value).replace("{", "{{").replace("}", "}}"), []
    if isinstance(node, ast.JoinedStr) and all(_is_plain(part) for part in node.values):
        parts = [_formatted(case, part) for part in node.values]
        return "".join(text for text, _ in parts), [value for _, values in parts for value in values]
    if isinstance(node, ast.FormattedValue):
        return "{}", [ast.unparse(node.value)]
    return "{}", [case.text(node)]


def _is_plain(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) or (
        isinstance(part, ast.FormattedValue) and part.format_spec is None and part.conversion == -1
    )


def branch_to_where(case: Case) -> Lines | None:
    """`if c: y = a` (`else: y = b`) and `a if c else b` become `torch.where(c, a, b)`."""
    owner = case.statement
    if case.node is None:
        return None
    if isinstance(owner, ast.If) and case.node in _operands(owner.test):
        return _where_statement(case, owner)
    choices = (node for node in _expressions(case) if isinstance(node, ast.IfExp))
    choice = next((node for node in choices if case.node in _operands(node.test)), None)
    if choice is None:
        return None
    yes, no = case.text(choice.body), case.text(choice.orelse)
    return _put(case, choice, f"torch.where({_condition(case, choice.test)}, {yes}, {no})")


def _operands(test: ast.expr) -> list[ast.expr]:
    """A condition, and what it is made of by `and`, `or` and `not`."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test.operand] if isinstance(test, ast.UnaryOp) else []
    return [test, *(inner for part in parts for inner in _operands(part))]


def _where_statement(case: Case, statement: ast.If) -> Lines | None:
    yes = _assigned(statement.body)
    no = _assigned(statement.orelse) if statement.orelse else yes and (yes[0], yes[0])
    if yes is None or no is None or yes[0] != no[0]:
        return None
    condition = _condition(case, statement.test)
    return _put(case, statement, f"{yes[0]} = torch.where({condition}, {yes[1]}, {no[1]})")


def _assigned(body: list[ast.stmt]) -> tuple[str, str] | None:
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
    if isinstance(case.statement, ast.If | ast.While):
        return None
    for node in _expressions(case):
        if isinstance(node, ast.BoolOp) and case.node in (node, *node.values):
            return _put(case, node, _condition(case, node))
    return None


def assert_in_graph(case: Case) -> Lines | None:
    """`assert c, f"..."` becomes `assert c`: with a constant message, or none, it is a node of the graph."""
    statement = case.statement
    if not isinstance(statement, ast.Assert):
        return None
    return _put(case, statement, f"assert {case.text(statement.test)}")


def data_to_copy(case: Case) -> Lines | None:
    """`y.data = v` becomes `y.detach().copy_(v)`."""
    statement = case.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Attribute):
        return None
    owner, value = case.text(statement.targets[0].value), case.text(statement.value)
    return _put(case, statement, f"{owner}.detach().copy_({value})")


def clone(case: Case) -> Lines | None:
    """`copy.deepcopy(y)` becomes `y.clone()` if y is a tensor, not something that holds some."""
    return expression("{0}.clone()")(case) if case.depth == 1 else None


def is_looped(case: Case) -> bool:
    """Whether the culprit is what a loop goes over."""
    return isinstance(case.statement, ast.For) and case.node is case.statement.iter


def is_index(case: Case) -> bool:
    """Whether the culprit is what something is indexed with, or indexes with it."""
    indexed = (node for node in _expressions(case) if isinstance(node, ast.Subscript))
    return any(case.node in (node, node.slice) and not isinstance(node.slice, ast.Slice) for node in indexed)
