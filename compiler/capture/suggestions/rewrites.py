"""Rewrites of the user's own lines: each returns the new text, or None.

A `print` becomes a graph node that prints the same text, including format specifications and conversions.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.rule import Lines, Rewrite
from compiler.capture.suggestions.uses import is_boolean, is_reduction, last_name, needs_number, needs_python
from compiler.torch_api.dynamo import PRINT_OPERATOR

_KIND = re.compile(r"variables\.\w+\.(\w+)'>")
_PRINTABLE = ("TensorVariable", "ConstantVariable", "SymNodeVariable", "StringFormatVariable")
"""Kinds of values, in TorchDynamo's names, that torch's operator can print; it fails for lists, tuples, torch.Size."""
_TESTS, _EARLY = ("is_so", "is_chosen", "is_taken"), ("is_early", "has_returned", "is_returned")
"""Names for a condition, and for one that decides about a value that is returned later."""
_TUPLES = ("size", "stride", "tolist", "split", "chunk", "unbind", "keys", "values", "items")


def _put(case: Case, old: ast.expr | ast.stmt, new: str) -> Lines:
    return old.lineno, old.end_lineno or old.lineno, case.lines_with(old, new)


def expression(template: str) -> Rewrite:
    """A rewrite that replaces the culprit's call with `template`.

    In the template, `{0}` is the first argument, `{self}` the object of a method call, and `{arguments}` all arguments.
    Without `{arguments}`, a call with keyword arguments is not rewritten.
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
    """Rewrite `y.sum().item()` and `float(y.sum())` as `y.sum().detach()`, which has no gradient either."""
    match case.node:
        case (
            ast.Call(func=ast.Attribute(value=tensor, attr="item"), keywords=[])
            | ast.Call(func=ast.Name(id="float"), args=[tensor], keywords=[])
        ) if not needs_python(case) and not needs_number(case):
            return _put(case, case.node, _as_number(case, tensor))
    return None


def _as_number(case: Case, tensor: ast.expr) -> str:
    """Code for a tensor in place of its number: detached, and reshaped to zero dimensions unless it is a reduction."""
    text = _in_parentheses(case, tensor)
    return f"{text}.detach()" if is_reduction(tensor) else f"{text}.detach().reshape(())"


def _in_parentheses(case: Case, node: ast.expr) -> str:
    """Code of a node, in parentheses if an attribute access can't follow it directly."""
    is_one = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return case.text(node) if is_one else f"({case.text(node)})"


def without_statement(case: Case) -> Lines | None:
    """Replace the whole statement with `pass`, if it consists only of the culprit's call."""
    match case.statement:
        case ast.Expr(value=value) if value is case.node:
            return _put(case, case.statement, "pass")
    return None


def branch_to_where(case: Case) -> Lines | None:
    """Rewrite a choice by `torch.where`: `a if c else b`, and an `if` whose sides only assign names or only return.

    `if c: y = a` and `y += a` become `y = torch.where(c, a, y)`; `if c: return a` followed by `return b`, also with
    assignments in between, becomes `return torch.where(c, a, b)`.
    """
    owner = case.statement
    if isinstance(owner, ast.If) and is_in(case, owner.test):
        if case.text(owner).startswith("elif"):
            return None
        return (
            _returns_to_where(case, owner) or _early_return_to_where(case, owner) or _assignments_to_where(case, owner)
        )
    found = (node for node in _expressions(case) if isinstance(node, ast.IfExp))
    choice = next((node for node in found if is_in(case, node.test)), None)
    if choice is None or not can_combine(choice.test):
        return None
    condition = condition_code(case, choice.test)
    return _put(case, choice, f"torch.where({condition}, {case.text(choice.body)}, {case.text(choice.orelse)})")


def numbers_to_where(case: Case) -> Lines | None:
    """Rewrite an `if` that assigns Python numbers, as in `if c: self.scale *= 0.5`; tensors are chosen as well.

    A number is computed as a tensor of one element, and becomes a symbol by `.item()`.
    """
    owner = case.statement
    if not isinstance(owner, ast.If) or not is_in(case, owner.test) or case.text(owner).startswith("elif"):
        return None
    return _assignments_to_where(case, owner, _choose_number)


def assigns_numbers(case: Case) -> bool:
    """Whether a side of an `if` computes an attribute's value from it and constants: maybe a Python number."""
    pairs = _choices(case.statement) if isinstance(case.statement, ast.If) else []
    return any(_number_dtype(*pair) for pair in pairs)


def _choose_tensor(condition: str, name: str, yes: str, no: str) -> str:
    return f"{name} = torch.where({condition}, {yes}, {no})"


def _choose_number(condition: str, name: str, yes: str, no: str) -> str:
    dtype = _number_dtype(name, yes, no)
    if not dtype:
        return _choose_tensor(condition, name, yes, no)
    first, second = (f"torch.scalar_tensor({value}, dtype=torch.{dtype})" for value in (yes, no))
    return f"{name} = torch.where({condition}, {first}, {second}).item()"


def _number_dtype(name: str, yes: str, no: str) -> str:
    """Dtype of two values that are made of the assigned attribute and constant numbers; "" for others, and for names,
    as local names are mostly tensors.
    """
    parts = [part for value in (yes, no) for part in ast.walk(ast.parse(value, mode="eval"))]
    numbers = [part.value for part in parts if isinstance(part, ast.Constant) and type(part.value) in (int, float)]
    names = {part.id for part in parts if isinstance(part, ast.Name)} - {"min", "max", "abs"}
    if "." not in name or not numbers or not names <= {name.partition(".")[0]}:
        return ""
    return "float64" if any(isinstance(number, float) for number in numbers) else "int64"


def _assignments_to_where(
    case: Case, owner: ast.If, choose: Callable[[str, str, str, str], str] = _choose_tensor
) -> Lines | None:
    """Rewrite an `if` whose sides only assign names; the condition is computed once, before the assignments."""
    pairs = _choices(owner)
    if not pairs or not can_combine(owner.test):
        return None
    condition, indent = condition_code(case, owner.test), " " * owner.col_offset
    if len(pairs) == 1:
        return _put(case, owner, choose(condition, *pairs[0]))
    test = _free_name(case, owner, _TESTS)
    lines = [choose(test, *pair) for pair in pairs]
    return _put(case, owner, f"\n{indent}".join([f"{test} = {condition}", *lines]))


def _free_name(case: Case, owner: ast.If, names: Sequence[str]) -> str:
    taken = {node.id for node in ast.walk(_function_of(case) or owner) if isinstance(node, ast.Name)}
    return next(name for name in names if name not in taken)


def _early_return_to_where(case: Case, owner: ast.If) -> Lines | None:
    """Rewrite `if c: return a`, where assignments follow and then `return b`, so that the last line chooses."""
    function = _function_of(case)
    body = function.body if isinstance(function, ast.FunctionDef) and owner in function.body else []
    rest = body[body.index(owner) + 1 :] if body else []
    match owner, rest:
        case (
            ast.If(body=[ast.Return(value=ast.expr() as yes)], orelse=[]),
            [*between, ast.Return(value=ast.expr() as no) as last],
        ) if can_combine(owner.test) and all(map(_assigns_name, between)):
            test = _free_name(case, owner, _EARLY)
            text = choose_expression(test, yes, no)
            stored = {node.id for each in between for node in ast.walk(each) if _is_stored(node)}  # type: ignore[attr-defined]
            if text is None or stored & {node.id for node in ast.walk(yes) if isinstance(node, ast.Name)}:
                return None
            start, end = owner.end_lineno or owner.lineno, last.end_lineno or last.lineno
            kept = [line.rstrip("\r\n") for line in case.source[start : last.lineno - 1]]
            first = case.lines_with(owner, f"{test} = {condition_code(case, owner.test)}")
            return owner.lineno, end, "\n".join([first, *kept, case.lines_with(last, f"return {text}")])
    return None


def _assigns_name(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name()]) | ast.AugAssign(target=ast.Name()):
            return True
    return False


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _returns_to_where(case: Case, owner: ast.If) -> Lines | None:
    """Rewrite `if c: return a` and the `return b` after it, or in its `else`; equal parts of a tuple are kept."""
    after = _statement_after(case, owner)
    other = owner.orelse[0] if len(owner.orelse) == 1 else after if not owner.orelse else None
    match owner.body, other:
        case [ast.Return(value=ast.expr() as yes)], ast.Return(value=ast.expr() as no) if can_combine(owner.test):
            text = choose_expression(condition_code(case, owner.test), yes, no)
            if text is None:
                return None
            first, _, new = _put(case, owner, f"return {text}")
            return first, other.end_lineno or other.lineno, new
    return None


def choose_expression(condition: str, yes: ast.expr, no: ast.expr) -> str | None:
    """Code that chooses between two values, or item by item between two tuples; None if one is another container."""
    if isinstance(yes, ast.Tuple) and isinstance(no, ast.Tuple) and len(yes.elts) == len(no.elts):
        parts = [choose_expression(condition, mine, other) for mine, other in zip(yes.elts, no.elts, strict=True)]
        return None if None in parts else ", ".join(map(str, parts))
    if ast.dump(yes) == ast.dump(no):
        return ast.unparse(yes)
    if any(isinstance(side, ast.Tuple | ast.List | ast.Dict | ast.Starred) for side in (yes, no)):
        return None
    return f"torch.where({condition}, {ast.unparse(yes)}, {ast.unparse(no)})"


def _statement_after(case: Case, statement: ast.stmt) -> ast.stmt | None:
    """The statement that follows in the same block; None if there is none."""
    function = _function_of(case)
    for node in ast.walk(function) if function else ():
        body = getattr(node, "body", None)
        if isinstance(body, list) and statement in body[:-1]:
            return body[body.index(statement) + 1]
    return None


def _function_of(case: Case) -> ast.AST | None:
    return next((node for node in reversed(case.around) if isinstance(node, ast.FunctionDef)), None)


def is_in(case: Case, test: ast.expr) -> bool:
    """Whether the culprit is a condition, one of its operands, or a number that it compares."""
    return case.node in _operands(test) or _is_compared(case, test)


def _operands(test: ast.expr) -> list[ast.expr]:
    """A condition, and the operands of `and`, `or` and `not` in it."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test.operand] if isinstance(test, ast.UnaryOp) else []
    return [test, *(inner for part in parts for inner in _operands(part))]


def can_combine(test: ast.expr) -> bool:
    """Whether a condition can be a tensor: `&` and `|` can replace `and` and `or` only between booleans."""
    return not isinstance(test, ast.BoolOp) or is_boolean(test)


def _choices(statement: ast.If) -> list[tuple[str, str, str]]:
    """Assignments in both sides of an `if`, as (name, value, other value); [] if a side does anything else.

    Also [] if a value reads a name that is assigned before, as it would then read the chosen value.
    """
    yes, no = _assignments(statement.body), _assignments(statement.orelse)
    if yes is None or no is None:
        return []
    names = list(dict.fromkeys([*yes, *no]))
    for position, name in enumerate(names):
        values = [side[name] for side in (yes, no) if name in side]
        nodes = (node for value in values for node in ast.walk(ast.parse(value)))
        read = {ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
        if read & set(names[:position]):
            return []
    return [(name, yes.get(name, name), no.get(name, name)) for name in names]


def chooses_alike(case: Case) -> bool:
    """Whether both sides of a choice are the same tensor with integers added or multiplied: their shape and dtype are
    then equal, and computing both sides can't fail.
    """
    statement = case.statement
    if isinstance(statement, ast.If):
        pairs = _choices(statement)
        sides = (
            [ast.parse(value, mode="eval").body for each in pairs[:1] for value in each[1:]] if len(pairs) == 1 else []
        )
    else:
        choice = next((node for node in _expressions(case) if isinstance(node, ast.IfExp)), None)
        sides = [choice.body, choice.orelse] if choice is not None else []
    names = {node.id for side in sides for node in ast.walk(side) if isinstance(node, ast.Name)}
    return bool(sides) and len(names) == 1 and all(map(_is_scaled, sides))


def _is_scaled(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        sides = (node.left, node.right)
        others = [side for side in sides if not isinstance(side, ast.Constant) or type(side.value) is not int]
        return len(others) < len(sides) and all(map(_is_scaled, others))
    return isinstance(node, ast.Name)


def _assignments(body: list[ast.stmt]) -> dict[str, str] | None:
    """Values by name if a block only assigns names and attributes, each once; else None."""
    found: dict[str, str] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value) if (
                name := ast.unparse(target)
            ) not in found:
                found[name] = ast.unparse(value)
            case ast.AugAssign(target=ast.Name() | ast.Attribute() as target, op=op, value=value) if (
                name := ast.unparse(target)
            ) not in found:
                found[name] = ast.unparse(ast.BinOp(ast.parse(name, mode="eval").body, op, value))
            case ast.Pass():
                pass
            case ast.If(test=test) if (pairs := _choices(statement)) and not found.keys() & {pair[0] for pair in pairs}:
                found |= {name: f"torch.where({ast.unparse(test)}, {yes}, {no})" for name, yes, no in pairs}
            case _:
                return None
    return found


def condition_code(case: Case, test: ast.expr) -> str:
    """A condition as tensor code, as `and`, `or`, `not` and `a < b < c` need Python booleans."""
    if isinstance(test, ast.BoolOp):
        operator = " & " if isinstance(test.op, ast.And) else " | "
        return operator.join(f"({condition_code(case, value)})" for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"torch.logical_not({condition_code(case, test.operand)})"
    if isinstance(test, ast.Compare) and len(test.ops) > 1:
        sides = [test.left, *test.comparators]
        pairs = (ast.Compare(sides[n], [test.ops[n]], [sides[n + 1]]) for n in range(len(test.ops)))
        return " & ".join(f"({ast.unparse(pair)})" for pair in pairs)
    return ast.unparse(_without_number(case, test)) if case.node in list(ast.walk(test)) else case.text(test)


def _without_number(case: Case, test: ast.expr) -> ast.expr:
    """A condition with a tensor in place of the number or bool that the culprit asks for: `x.item() > 1` as `x > 1`."""
    match case.node:
        case (
            ast.Call(func=ast.Attribute(value=tensor, attr="item"), args=[], keywords=[])
            | ast.Call(func=ast.Name(id="float"), args=[tensor], keywords=[])
        ):
            return _Replace(case.node, tensor).visit(copy.deepcopy(test))
        case ast.Call() if compared := comparison_code(case):
            return _Replace(case.node, ast.parse(compared, mode="eval").body).visit(copy.deepcopy(test))
    return test


def comparison_code(case: Case) -> str:
    """Code for `torch.equal` or `torch.allclose`, also as methods, that returns a tensor; "" for other calls."""
    node = case.node
    if not isinstance(node, ast.Call) or any(isinstance(item, ast.Starred) for item in node.args):
        return ""
    own = [] if case.callee.startswith("torch.") or not isinstance(node.func, ast.Attribute) else [node.func.value]
    values = [case.text(item) for item in (*own, *node.args)]
    match last_name(node), values:
        case "equal", [first, second] if not node.keywords:
            return f"({first} == {second}).all()"
        case "allclose", [_, _, *_]:
            given = ", ".join([*values, *(case.text(item) for item in node.keywords)])
            return f"torch.isclose({given}).all()"
    return ""


def comparison(case: Case) -> Lines | None:
    """Rewrite `torch.equal(a, b)` as `(a == b).all()`, and `torch.allclose` in the same way."""
    code = comparison_code(case)
    return _put(case, case.node, code) if code and case.node is not None else None


class _Replace(ast.NodeTransformer):
    """Replaces the node equal to `old`, position included, with `new`."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = ast.dump(old, include_attributes=True), new

    def visit(self, node: ast.AST) -> Any:
        return self.new if ast.dump(node, include_attributes=True) == self.old else self.generic_visit(node)


def select_by_tensor(case: Case) -> Lines | None:
    """Rewrite `x[i]`, where `i` is a tensor of one number, as `x[i.reshape(1)].squeeze(0)`."""
    match case.node:
        case ast.Subscript(value=value, slice=index, ctx=ast.Load()) if not isinstance(index, ast.Slice | ast.Tuple):
            return _put(case, case.node, f"{case.text(value)}[{_in_parentheses(case, index)}.reshape(1)].squeeze(0)")
    return None


def numbers_by_item(case: Case) -> Lines | None:
    """Rewrite `x.tolist()` as `[number.item() for number in x]`, which is the same for a tensor of one dimension."""
    match case.node:
        case ast.Call(func=ast.Attribute(value=tensor, attr="tolist"), args=[], keywords=[]):
            return _put(case, case.node, f"[number.item() for number in {case.text(tensor)}]")
    return None


def negation(case: Case) -> Lines | None:
    """Rewrite `not c` as `torch.logical_not(c)`."""
    node = case.node
    return _put(case, node, condition_code(case, node)) if isinstance(node, ast.UnaryOp) else None


def _expressions(case: Case) -> list[ast.AST]:
    return list(ast.walk(case.statement)) if case.statement is not None else []


def logical(case: Case) -> Lines | None:
    """Rewrite `a and b` as `(a) & (b)`, `a or b` as `(a) | (b)`, except in the header of a block."""
    if isinstance(case.statement, ast.If | ast.While | ast.Assert):
        return None
    for node in _expressions(case):
        if isinstance(node, ast.BoolOp) and case.node in (node, *node.values) and is_boolean(node):
            return _put(case, node, condition_code(case, node))
    return None


def assert_in_graph(case: Case) -> Lines | None:
    """Rewrite `assert c, message` and `if c: raise ...` as the graph node `torch._assert_async(c, "message")`."""
    match case.statement:
        case ast.Assert(test=test, msg=message):
            condition = condition_code(case, test)
        case ast.If(test=test, body=[ast.Raise(exc=error)], orelse=[]):
            condition = _negate(case, test)
            message = error.args[0] if isinstance(error, ast.Call) and error.args else None
        case _:
            return None
    if not can_combine(test):
        return None
    return _put(case, case.statement, f"torch._assert_async({condition}, {_message(case, message, test)})")


def checks(case: Case) -> bool:
    """Whether the statement only checks something: `assert c`, or `if c: raise ValueError("...")`."""
    match case.statement:
        case ast.Assert() | ast.If(body=[ast.Raise()], orelse=[]):
            return True
    return False


def is_checked_number(case: Case) -> bool:
    """Whether the statement only checks the number of a tensor: `if loss.item() > 9: raise ...`."""
    return checks(case) and _is_compared(case, case.statement.test)  # type: ignore[union-attr]


def is_choosing_number(case: Case) -> bool:
    """Whether an `if` or a conditional expression compares the number of a tensor, to choose a value."""
    tests = [node.test for node in _expressions(case) if isinstance(node, ast.If | ast.IfExp)]
    return any(_is_compared(case, test) for test in tests) and branch_to_where(case) is not None


def _is_compared(case: Case, test: ast.expr) -> bool:
    parts = [part for part in _operands(test) if isinstance(part, ast.Compare)]
    return any(case.node in (part.left, *part.comparators) for part in parts)


def choose_number(case: Case) -> Lines | None:
    """Rewrite `1.0 if n < 3 else 0.5`, where `n` is a symbol, as `torch.where` on tensors of one number."""
    for node in _expressions(case):
        match node:
            case ast.IfExp(test=ast.Compare(left=left, ops=[op], comparators=[right]) as test) if case.node is test:
                yes, no = _number_tensor(node.body), _number_tensor(node.orelse)
                if yes is None or no is None:
                    return None
                tensor = ast.parse(f"torch.scalar_tensor({ast.unparse(left)}, dtype=torch.float64)", mode="eval").body
                condition = ast.unparse(ast.Compare(tensor, [op], [right]))
                return _put(case, node, f"torch.where({condition}, {yes}, {no}).item()")
    return None


def _number_tensor(node: ast.expr) -> str | None:
    """Code for a constant number as a tensor of the same precision."""
    match node:
        case ast.Constant(value=float() | int() as value) if not isinstance(value, bool):
            dtype = "float64" if isinstance(value, float) else "int64"
            return f"torch.tensor({value!r}, dtype=torch.{dtype})"
    return None


def is_number_choice(case: Case) -> bool:
    """Whether a conditional expression chooses between two constant numbers."""
    return choose_number(case) is not None


def is_pick(case: Case) -> bool:
    """Whether the culprit picks an item by one index."""
    return select_by_tensor(case) is not None


def repeats(case: Case) -> bool:
    return isinstance(case.statement, ast.While)


def branches(case: Case) -> bool:
    return not checks(case) and not repeats(case)


def _message(case: Case, message: ast.expr | None, test: ast.expr) -> str:
    """The message of an assert as a constant: the user's own, or else the condition."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return case.text(message)
    return ast.unparse(ast.Constant(" ".join(case.text(test).split())))


def _negate(case: Case, test: ast.expr) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return condition_code(case, test.operand)
    return f"torch.logical_not({condition_code(case, test)})"


def data_to_copy(case: Case) -> Lines | None:
    """Rewrite `y.data = v` as `y.detach().copy_(v)`."""
    match case.statement:
        case ast.Assign(targets=[ast.Attribute(value=owner, attr="data")], value=value):
            return _put(case, case.statement, f"{case.text(owner)}.detach().copy_({case.text(value)})")
    return None


def clone(case: Case) -> Lines | None:
    """Rewrite `copy.deepcopy(y)` as `y.detach().clone()` if y is a tensor, not a container of tensors."""
    return expression("{0}.detach().clone()")(case) if case.depth == 1 else None


@dataclass(frozen=True, slots=True)
class Printed:
    """A format string (`text`), and the code of the values to format."""

    text: str
    values: tuple[str, ...] = ()


def print_in_graph(case: Case) -> Lines | None:
    """Rewrite `print("mean", m)` as the graph node `torch._higher_order_ops.print("mean {!s}", m)`."""
    node = _print_call(case)
    if node is None or node.keywords or not node.args:
        return None
    found = kinds(case) if can_be_printed(case) else [""] * len(node.args) if node is not case.node else []
    if len(found) != len(node.args):
        return None
    parts = [_argument(case, argument, kind) for argument, kind in zip(node.args, found, strict=True)]
    known = [part for part in parts if part is not None]
    template = " ".join(part.text for part in known)
    return _call(case, node, template, known) if template and len(known) == len(parts) else None


def write_in_graph(case: Case) -> Lines | None:
    r"""Rewrite `sys.stdout.write("...\n")` as a print in the graph, which adds the newline itself."""
    node = case.node
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1 or case.callee != "sys.stdout.write":
        return None
    part = _format_parts(node.args[0])
    if part is None or not part.text.endswith("\n") or part.text == "\n":
        return None
    return _call(case, node, part.text.removesuffix("\n"), [part])


def _call(case: Case, node: ast.Call, template: str, parts: list[Printed]) -> Lines:
    arguments = [ast.unparse(ast.Constant(template)), *(value for part in parts for value in part.values)]
    return _put(case, node, f"{PRINT_OPERATOR}({', '.join(arguments)})")


def _print_call(case: Case) -> ast.Call | None:
    """The call of `print` that is, or contains, the culprit."""
    calls = (node for node in ast.walk(case.statement or ast.Pass()) if isinstance(node, ast.Call))
    prints = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print")
    return next((call for call in prints if any(case.node is inner for inner in ast.walk(call))), None)


def is_printed(case: Case) -> bool:
    """Whether the culprit is inside a `print` that can be rewritten as a graph node."""
    return case.node is not None and print_in_graph(case) is not None


def kinds(case: Case) -> list[str]:
    """TorchDynamo's kind of each argument of the call (`TensorVariable`), from its message."""
    return _KIND.findall(case.context)


def can_be_printed(case: Case) -> bool:
    """Whether torch's print operator and its reordering of prints support the kinds of all arguments."""
    node = case.node
    if not isinstance(node, ast.Call) or node.keywords:
        return False
    found = kinds(case)
    return len(found) == len(node.args) and all(kind in (*_PRINTABLE, "SizeVariable") for kind in found)


def can_be_moved(case: Case) -> bool:
    """Whether torch can move the print to the end of the graph with the same text.

    Torch drops prints in inlined functions (a module's forward, a helper, a comprehension before Python 3.12).
    """
    return not case.inlined and can_be_printed(case) and "SizeVariable" not in kinds(case)


def holds_single_values(case: Case) -> bool:
    """Whether the syntax shows that each f-string value is a single value, not a list or tuple."""
    node = case.node
    formatted = (part for part in ast.walk(node or ast.Pass()) if isinstance(part, ast.FormattedValue))
    return all(part.format_spec is not None or _is_single(part.value) for part in formatted)


def _is_single(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)):
            return name not in _TUPLES
        case ast.NamedExpr(value=value):
            return _is_single(value)
        case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.Constant():
            return True
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
    return False


def _argument(case: Case, node: ast.expr, kind: str) -> Printed | None:
    """Format one argument of `print`; None if it can't be printed in the graph."""
    if isinstance(node, ast.Starred):
        return None
    if kind == "SizeVariable":
        return Printed("{}", (f"f{'{' + ast.unparse(node) + '}'!r}",))
    if isinstance(node, ast.Constant) or (isinstance(node, ast.JoinedStr) and kind != "ConstantVariable"):
        return _format_parts(node)
    if kind in ("", "StringFormatVariable"):  # unknown kind, or already formatted text
        return None
    return Printed("{}" if kind == "ConstantVariable" else "{!s}", (case.text(node),))


def _format_parts(node: ast.expr) -> Printed | None:
    if isinstance(node, ast.Constant):
        return Printed(str(node.value).replace("{", "{{").replace("}", "}}"))
    if isinstance(node, ast.JoinedStr):
        parts = [_value(part) if isinstance(part, ast.FormattedValue) else _format_parts(part) for part in node.values]
        known = [part for part in parts if part is not None]
        values = tuple(value for part in known for value in part.values)
        return Printed("".join(part.text for part in known), values) if len(known) == len(parts) else None
    return None


def _value(part: ast.FormattedValue) -> Printed | None:
    """Format a value of an f-string, with its conversion and its format specification, which must be constant."""
    spec = _specification(part.format_spec)
    if spec is None or any(isinstance(inner, ast.JoinedStr | ast.Await | ast.Yield) for inner in ast.walk(part.value)):
        return None
    value = _without_item(part.value)
    if value is None:
        return None
    conversion = "" if part.conversion < 0 else f"!{chr(part.conversion)}"
    return Printed("{" + conversion + (f":{spec}" if spec else "") + "}", (ast.unparse(value),))


def _specification(node: ast.expr | None) -> str | None:
    if node is None:
        return ""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = [part.value for part in parts if isinstance(part, ast.Constant)]
    text = "".join(map(str, texts))
    return text if len(texts) == len(parts) and not {"{", "}"} & set(text) else None


def _without_item(node: ast.expr) -> ast.expr | None:
    """Drop `.item()`, as a tensor without dimensions is formatted as its number: `loss.mean().item()` -> `loss.mean()`.
    None for other code that needs a number, as it breaks the graph by itself.
    """
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="item")):
            return inner if is_reduction(inner) else None
    calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
    asks = ("item", "tolist", "numpy", "float", "int", "str", "repr", "format")
    return None if any(last_name(call) in asks for call in calls) else node
