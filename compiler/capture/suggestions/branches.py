"""Rewrites of conditions on tensor data: choices by torch.where, and checks inside the graph."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from typing import Any

from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.rewrites import put_code
from compiler.capture.suggestions.rule import Lines
from compiler.capture.suggestions.uses import is_boolean, last_name

_TESTS, _EARLY = ("is_so", "is_chosen", "is_taken"), ("is_early", "has_returned", "is_returned")
"""Names for a condition, and for one that decides about a value that is returned later."""


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
    return put_code(case, choice, f"torch.where({condition}, {case.text(choice.body)}, {case.text(choice.orelse)})")


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
    case: Case, owner: ast.If, choose: Callable[[str, str, str, str], str] = _choose_tensor, condition: str = ""
) -> Lines | None:
    """Rewrite an `if` whose sides only assign names; the condition is computed once, before the assignments."""
    pairs = _choices(owner)
    if not pairs or not can_combine(owner.test):
        return None
    condition, indent = condition or condition_code(case, owner.test), " " * owner.col_offset
    if len(pairs) == 1:
        return put_code(case, owner, choose(condition, *pairs[0]))
    test = _free_name(case, owner, _TESTS)
    lines = [choose(test, *pair) for pair in pairs]
    return put_code(case, owner, f"\n{indent}".join([f"{test} = {condition}", *lines]))


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
            first, _, new = put_code(case, owner, f"return {text}")
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
    """Whether a condition can be a tensor: `&` and `|` can replace `and` and `or` only between booleans.

    Unlike `and`, `&` computes both sides: not if the first one protects the second, as in `x is not None and x.any()`.
    """
    return not isinstance(test, ast.BoolOp) or (is_boolean(test) and not _protecting_operands(test))


def _protecting_operands(test: ast.BoolOp) -> list[ast.expr]:
    """The first operands of `and` and `or` that say whether later ones can be computed."""
    count = 0
    for number, value in enumerate(test.values[:-1], 1):
        subject = _checked_object(value)
        later = [part for other in test.values[number:] for part in ast.walk(other)]
        if "len" in {getattr(part, "id", "") for part in ast.walk(value)}:  # it protects items alone
            later = [part.value for part in later if isinstance(part, ast.Subscript)]
        if subject is not None and ast.dump(subject) in map(ast.dump, later):
            count = number
    return test.values[:count]


def _checked_object(node: ast.expr) -> ast.expr | None:
    """`x` of `x is None`, `isinstance(x, …)`, `hasattr(x, …)`, `len(x) > …` and their negations; else None."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _checked_object(operand)
        case ast.Compare(left=subject, ops=[ast.Is() | ast.IsNot()]):
            return subject
        case ast.Compare(left=ast.Call() as call) | (ast.Call() as call):
            is_check = last_name(call) in ("isinstance", "hasattr", "len") and bool(call.args)
            return call.args[0] if is_check else None
    return None


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
            replaced = _Replace(case.node, tensor).visit(copy.deepcopy(test))
            for part in ast.walk(replaced):
                if isinstance(part, ast.Call) and _asked_of_math(part):
                    part.func = ast.Attribute(ast.Name("torch", ast.Load()), _asked_of_math(part), ast.Load())
            return replaced
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
    return put_code(case, case.node, code) if code and case.node is not None else None


class _Replace(ast.NodeTransformer):
    """Replaces the node equal to `old`, position included, with `new`."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = ast.dump(old, include_attributes=True), new

    def visit(self, node: ast.AST) -> Any:
        return self.new if ast.dump(node, include_attributes=True) == self.old else self.generic_visit(node)


def negation(case: Case) -> Lines | None:
    """Rewrite `not c` as `torch.logical_not(c)`."""
    node = case.node
    return put_code(case, node, condition_code(case, node)) if isinstance(node, ast.UnaryOp) else None


def _expressions(case: Case) -> list[ast.AST]:
    return list(ast.walk(case.statement)) if case.statement is not None else []


def logical(case: Case) -> Lines | None:
    """Rewrite `a and b` as `(a) & (b)`, `a or b` as `(a) | (b)`, except in the header of a block."""
    if isinstance(case.statement, ast.If | ast.While | ast.Assert):
        return None
    for node in _expressions(case):
        if isinstance(node, ast.BoolOp) and case.node in (node, *node.values) and is_boolean(node):
            return put_code(case, node, condition_code(case, node))
    return None


def assert_in_graph(case: Case) -> Lines | None:
    """Rewrite `assert c, message` and `if c: raise ...` as the graph node `torch._assert_async(c, "message")`.

    `if x is not None and c: raise ...` keeps its first part: `if x is not None: torch._assert_async(c, "message")`.
    None in a `try` that may catch the exception: an assertion of the graph fails later.
    """
    if _may_be_caught(case):
        return None
    own = case.statement.test if isinstance(case.statement, ast.If) else None
    guards = _protecting_operands(own) if isinstance(own, ast.BoolOp) and isinstance(own.op, ast.And) else []
    match case.statement:
        case ast.Assert(test=test, msg=message):
            condition = condition_code(case, test)
        case ast.If(test=test, body=[ast.Raise(exc=error)], orelse=[]):
            if guards and isinstance(test, ast.BoolOp):
                rest = test.values[len(guards) :]
                test = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(ast.And(), rest), rest[0])
            condition = _negate(case, test)
            message = error.args[0] if isinstance(error, ast.Call) and error.args else None
        case _:
            return None
    if not can_combine(test):
        return None
    check = f"torch._assert_async({condition}, {_message(case, message, test)})"
    if guards:
        if case.text(case.statement).startswith("elif"):
            return None
        kept = " and ".join(map(ast.unparse, guards))
        check = f"if {kept}:\n{' ' * (case.statement.col_offset + 4)}{check}"
    return put_code(case, case.statement, check)


def _may_be_caught(case: Case) -> bool:
    """Whether the statement is in the body of a `try` that has handlers."""
    tries = (node for node in case.around if isinstance(node, ast.Try) and node.handlers)
    inside = (part for node in tries for statement in node.body for part in ast.walk(statement))
    return any(part is case.statement for part in inside)


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
    """Whether a condition compares the culprit, or asks Python's `math` whether it is finite."""
    for part in _operands(test):
        if isinstance(part, ast.Compare) and case.node in (part.left, *part.comparators):
            return True
        if _asked_of_math(part) and isinstance(part, ast.Call) and case.node is part.args[0]:
            return True
    return False


def _asked_of_math(node: ast.expr) -> str:
    """`isfinite` of `math.isfinite(x)`, and so on for `isnan` and `isinf`; "" for other code."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=[_], keywords=[]):
            return name if name in ("isfinite", "isnan", "isinf") else ""
    return ""


def choose_number(case: Case) -> Lines | None:
    """Rewrite `1.0 if n < 3 else 0.5`, where `n` is a symbol, as `torch.where` on tensors of one number.

    Also an `if` that assigns numbers to attributes, as in `if n < 3: self.scale *= 0.5`.
    """
    match case.statement:
        case ast.If(test=ast.Compare(left=left, ops=[op], comparators=[right]) as test) as owner if case.node is test:
            is_choice = assigns_numbers(case) and not case.text(owner).startswith("elif")
            return _assignments_to_where(case, owner, _choose_number, _compare(left, op, right)) if is_choice else None
    for node in _expressions(case):
        match node:
            case ast.IfExp(test=ast.Compare(left=left, ops=[op], comparators=[right]) as test) if case.node is test:
                yes, no = _number_tensor(node.body), _number_tensor(node.orelse)
                if yes is None or no is None:
                    return None
                return put_code(case, node, f"torch.where({_compare(left, op, right)}, {yes}, {no}).item()")
    return None


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
    """Code that compares a number, as a tensor, with another one."""
    tensor = ast.parse(f"torch.scalar_tensor({ast.unparse(left)}, dtype=torch.float64)", mode="eval").body
    return ast.unparse(ast.Compare(tensor, [op], [right]))


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
