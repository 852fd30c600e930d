"""Uses of a value in the user's code: whether a tensor can replace a Python number there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compiler.capture.suggestions.case import Case

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_METADATA = {"size", "stride", "dim", "numel", "shape", "dtype", "device", "ndim"}
_NOT_TENSORS = {"item", "tolist", "numpy", "data_ptr"} | _METADATA
REDUCTIONS = ("sum", "mean", "max", "min", "norm", "std", "var", "prod", "median", "amax", "amin")
"""Methods that, without arguments, reduce a tensor to one number."""


def is_reduction(node: ast.expr) -> bool:
    """Whether an expression is a method call that reduces a tensor to one number: `loss.mean()`."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]):
            return name in REDUCTIONS
    return False


_TAKES_TENSORS = frozenset({"append", "add", "sub", "mul", "div", "pow", "abs", "min", "max", "sum", "where"})
"""Functions and methods, also of lists, that accept a tensor with one element in place of a number."""
_BOOLEAN_CALLS = {"any", "all", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not", "isinstance"}


def is_combined_with_its_tensor(case: Case) -> bool:
    """Whether every use of the value is arithmetic with a tensor that it was computed from; a tensor with one element
    then gives the same result as its number.
    """
    uses = list(_uses(case))
    tensors = _tensors(case)
    return bool(uses) and all(_is_arithmetic(user, use, tensors) for user, use in uses)


def needs_python(case: Case) -> bool:
    """Whether Python itself needs the value: a branch, a loop, range(), text. A tensor or symbol in its place would
    only move the break there.
    """
    return any(_asks(user, use) for user, use in _uses(case))


def needs_number(case: Case) -> bool:
    """Whether a symbol can replace the value, but a tensor can't: an index, a slice, a key, or an argument of a
    function not known to accept a tensor, such as Python's `math`, `round` and torch.full.
    """
    return any(_takes_number(user, use) for user, use in _uses(case))


def _takes_number(user: ast.AST, use: ast.expr) -> bool:
    if isinstance(user, ast.Call):
        return use in user.args and last_name(user) not in _TAKES_TENSORS
    is_key = isinstance(user, ast.Dict) and use in user.keys
    return is_key or isinstance(user, ast.Slice | ast.Subscript | ast.keyword)


def last_name(call: ast.Call) -> str:
    """Last part of the callee's name: `append` of `self.losses.append`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_int_of_truth(case: Case) -> bool:
    """Whether the culprit is `int()` of a bool, which TorchDynamo can't represent as a symbol."""
    node = case.node
    return isinstance(node, ast.Call) and case.callee == "int" and any(map(is_boolean, node.args))


def is_boolean(node: ast.expr) -> bool:
    """Whether the syntax shows that an expression returns a bool or a tensor of bools."""
    if isinstance(node, ast.BoolOp):
        return all(map(is_boolean, node.values))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) or (isinstance(node.op, ast.Invert) and is_boolean(node.operand))
    if isinstance(node, ast.Call):
        return last_name(node) in _BOOLEAN_CALLS
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Constant) and isinstance(node.value, bool))


def is_looped(case: Case) -> bool:
    """Whether the culprit is the iterable of a loop."""
    return isinstance(case.statement, ast.For) and case.node is case.statement.iter


def loop_over(case: Case) -> ast.For | None:
    """The loop over the culprit's value, or over the name that it is assigned to; None if it has another use too."""
    users = [user for user, _ in _uses(case)]
    return users[0] if len(users) == 1 and isinstance(users[0], ast.For) else None


def is_index(case: Case) -> bool:
    """Whether the culprit is an index, or an indexing expression."""
    indexed = (node for node in ast.walk(case.statement or ast.Pass()) if isinstance(node, ast.Subscript))
    return any(case.node in (node, node.slice) and not isinstance(node.slice, ast.Slice) for node in indexed)


def _function(case: Case) -> ast.AST | None:
    return next((item for item in reversed(case.around) if isinstance(item, _FUNCTIONS)), None)


def _uses(case: Case) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield pairs (user, use) of AST nodes: uses of the culprit's value, and later uses of names assigned from it."""
    function = _function(case)
    if function is None or case.node is None or case.statement is None:
        return
    names, last = _assigned_names(case), case.statement.end_lineno or 0
    for user in ast.walk(function):
        for child in ast.iter_child_nodes(user):
            is_value = child is case.node and not (names and user is case.statement)
            is_name = isinstance(child, ast.Name) and child.id in names and isinstance(child.ctx, ast.Load)
            if isinstance(child, ast.expr) and (is_value or (is_name and child.lineno > last)):
                yield user, child


def _assigned_names(case: Case) -> set[str]:
    statement = case.statement
    if not isinstance(statement, ast.Assign) or statement.value is not case.node:
        return set()
    return {name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _tensors(case: Case) -> set[str]:
    """Names of tensors that the value depends on, and of tensors computed from them."""
    found = {node.id for node in ast.walk(case.node or ast.Pass()) if isinstance(node, ast.Name)} - {"torch", "float"}
    function = _function(case)
    assignments = [node for node in ast.walk(function or ast.Pass()) if isinstance(node, ast.Assign)]
    for _ in assignments:
        for statement in assignments:
            if statement is not case.statement and _is_tensor(statement.value, found):
                found |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return found


def _is_tensor(node: ast.expr, tensors: set[str]) -> bool:
    """Whether the syntax shows that an expression returns a tensor."""
    if isinstance(node, ast.Name):
        return node.id in tensors
    if isinstance(node, ast.BinOp):
        return _is_tensor(node.left, tensors) or _is_tensor(node.right, tensors)
    if isinstance(node, ast.UnaryOp):
        return not isinstance(node.op, ast.Not) and _is_tensor(node.operand, tensors)
    if isinstance(node, ast.Attribute):
        return node.attr not in _NOT_TENSORS and _is_tensor(node.value, tensors)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and _is_tensor(node.func, tensors)
    return isinstance(node, ast.Subscript) and _is_tensor(node.value, tensors)


def _is_arithmetic(user: ast.AST, use: ast.expr, tensors: set[str]) -> bool:
    if isinstance(user, ast.BinOp):
        other = user.right if user.left is use else user.left
        return not isinstance(user.op, ast.MatMult) and _is_tensor(other, tensors)
    return isinstance(user, ast.AugAssign) and user.value is use and _is_tensor(user.target, tensors)


def _asks(user: ast.AST, use: ast.expr) -> bool:
    if isinstance(user, ast.If | ast.While | ast.IfExp | ast.Assert):
        return user.test is use
    if isinstance(user, ast.For | ast.comprehension):
        return user.iter is use or (isinstance(user, ast.comprehension) and use in user.ifs)
    if isinstance(user, ast.Call):
        return getattr(user.func, "id", "") in ("range", "bool", "int", "len", "str") or last_name(user) == "format"
    if isinstance(user, ast.BinOp) and isinstance(user.op, ast.Mod) and user.right is use:
        return isinstance(user.left, ast.JoinedStr) or isinstance(getattr(user.left, "value", None), str)
    is_not = isinstance(user, ast.UnaryOp) and isinstance(user.op, ast.Not)
    return is_not or isinstance(user, ast.BoolOp | ast.Compare | ast.FormattedValue)
