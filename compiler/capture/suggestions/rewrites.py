"""Rewrites of the user's own lines: each returns the new text, or None.

A `print` becomes a graph node that prints the same text, including format specifications and conversions.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.rule import Lines, Rewrite
from compiler.capture.suggestions.uses import is_reduction, last_name, loop_over, needs_number, needs_python

_KIND = re.compile(r"variables\.\w+\.(\w+)'>")
_PRINTABLE = ("TensorVariable", "ConstantVariable", "SymNodeVariable", "StringFormatVariable")
"""Kinds of values, in TorchDynamo's names, that torch's operator can print; it fails for lists, tuples, torch.Size."""
_FUNCTIONS_OF_NUMBERS = (
    "sqrt", "square", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "abs", "sign", "floor", "ceil",
)  # fmt: skip
_TUPLES = ("size", "stride", "tolist", "split", "chunk", "unbind", "keys", "values", "items")


IS_OF_TENSOR = re.compile(r"in __torch_function__\)")
"""In the message of a data-dependent error of torch.export: Python asked a tensor, and not a number taken from one."""


def put_code(case: Case, old: ast.expr | ast.stmt, new: str) -> Lines:
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
            return put_code(case, node, template.format(*arguments, self=owner, arguments=given))
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
            return put_code(case, case.node, _as_number(case, tensor))
    return None


def converted_in_graph(case: Case) -> Lines | None:
    """Rewrite `int(y.item())`, and `int(y)` of a tensor, as `y.long().item()`; `float` is `y.double().item()`."""
    match case.node:
        case ast.Call(func=ast.Name(id="int" | "float" as name), args=[number], keywords=[]):
            match number:
                case ast.Call(func=ast.Attribute(value=tensor, attr="item"), args=[]):
                    pass
                case tensor if not IS_OF_TENSOR.search(case.context):
                    return None
            converted = {"int": "long", "float": "double"}[name]
            return put_code(case, case.node, f"{in_parentheses(case, tensor)}.{converted}().item()")
    return None


def in_torch(case: Case) -> Lines | None:
    """Rewrite `np.sqrt(y.sum().item())`, or `math.sqrt`, as `torch.sqrt(y.sum().detach())`; also `-y.sum().item()`."""
    match case.node:
        case ast.Call(func=ast.Attribute(value=tensor, attr="item"), args=[], keywords=[]) if case.statement:
            for call in ast.walk(case.statement):
                name = _function_of_number(call)
                if name and isinstance(call, ast.Call) and _only_number_in(call.args[0]) is case.node:
                    of_call = replace(case, node=call)
                    code = case.text(call.args[0]).replace(case.text(case.node), _as_number(case, tensor))
                    is_free = not needs_python(of_call) and not needs_number(of_call)
                    return put_code(case, call, f"torch.{name}({code})") if is_free else None
    return None


def _only_number_in(node: ast.expr) -> ast.expr:
    """The expression in arithmetic with constants: `x` of `-x / 2`."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _only_number_in(inner)
        case ast.BinOp(left=inner, right=ast.Constant()) | ast.BinOp(left=ast.Constant(), right=inner):
            return _only_number_in(inner)
    return node


def _function_of_number(node: ast.AST) -> str:
    """The name of a function of one number that `math` or NumPy has, and torch too; "" for any other node."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math" | "np" | "numpy"), attr=name), args=[_], keywords=[]):
            return name if name in _FUNCTIONS_OF_NUMBERS else ""
    return ""


def _as_number(case: Case, tensor: ast.expr) -> str:
    """Code for a tensor in place of its number: detached, and reshaped to zero dimensions unless it is a reduction."""
    text = in_parentheses(case, tensor)
    return f"{text}.detach()" if is_reduction(tensor) else f"{text}.detach().reshape(())"


def in_parentheses(case: Case, node: ast.expr) -> str:
    """Code of a node, in parentheses if an attribute access can't follow it directly."""
    is_one = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return case.text(node) if is_one else f"({case.text(node)})"


def without_statement(case: Case) -> Lines | None:
    """Replace the whole statement with `pass`, if it consists only of the culprit's call."""
    match case.statement:
        case ast.Expr(value=value) if value is case.node:
            return put_code(case, case.statement, "pass")
    return None


def select_by_tensor(case: Case) -> Lines | None:
    """Rewrite `x[i]`, where `i` is a tensor of one number, as `x[i.reshape(1)].squeeze(0)`."""
    match case.node:
        case ast.Subscript(value=value, slice=index, ctx=ast.Load()) if not isinstance(index, ast.Slice | ast.Tuple):
            return put_code(case, case.node, f"{case.text(value)}[{in_parentheses(case, index)}.reshape(1)].squeeze(0)")
    return None


def numbers_by_item(case: Case) -> Lines | None:
    """Rewrite `x.tolist()` as `[number.item() for number in x]`, which is the same for a tensor of one dimension."""
    match case.node:
        case ast.Call(func=ast.Attribute(value=tensor, attr="tolist"), args=[], keywords=[]):
            return put_code(case, case.node, f"[number.item() for number in {case.text(tensor)}]")
    return None


def all_indices(case: Case) -> Lines | None:
    """Rewrite `m.nonzero()`, if a loop goes over its rows, as the indices of all entries of `m`, as Python ints.

    Only for a loop that gathers by `where(mask[row])` and writes to what it gathered, as experts do: for an entry that
    is zero, it then gathers and writes nothing.
    """
    match case.node:
        case ast.Call(func=ast.Attribute(value=mask, attr="nonzero"), args=[], keywords=[]):
            pass
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="nonzero"), args=[mask], keywords=[]):
            pass
        case _:
            return None
    loop = loop_over(case)
    if loop is None or not _only_writes_what_it_gathers(loop, {*_names_in(mask)}):
        return None
    function = next((node for node in reversed(case.around) if isinstance(node, ast.FunctionDef)), loop)
    taken = _names_in(function)
    name = next(name for name in ("index", "entry", "number") if name not in taken)
    return put_code(case, case.node, f"[({name},) for {name} in range(len({case.text(mask)}))]")


def _only_writes_what_it_gathers(loop: ast.For, masks: set[str]) -> bool:
    """Whether a loop only assigns local names, and writes to tensors at the entries of `where(mask[row])`."""
    rows, gathered = _names_in(loop.target), set[str]()
    for statement in loop.body:
        match statement:
            case ast.If(body=[ast.Continue()], orelse=[]):
                pass
            case ast.Assign(targets=[ast.Name() | ast.Tuple() as target], value=value):
                is_where = isinstance(value, ast.Call) and last_name(value) in ("where", "nonzero")
                if is_where and rows & _names_in(value) and masks & _names_in(value):
                    gathered |= _names_in(target)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="index_add_"), args=[_, ast.Name(id=name), *_])):
                if name not in gathered:
                    return False
            case ast.Assign(targets=[ast.Subscript(slice=place)]) | ast.AugAssign(target=ast.Subscript(slice=place)):
                if not gathered & _names_in(place):
                    return False
            case _:
                return False
    return bool(gathered)


def _names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - {"torch"}


def is_pick(case: Case) -> bool:
    """Whether the culprit picks an item by one index."""
    return select_by_tensor(case) is not None


def data_to_copy(case: Case) -> Lines | None:
    """Rewrite `y.data = v` as `y.detach().copy_(v)`."""
    match case.statement:
        case ast.Assign(targets=[ast.Attribute(value=owner, attr="data")], value=value):
            return put_code(case, case.statement, f"{case.text(owner)}.detach().copy_({case.text(value)})")
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
    return put_code(case, node, f"torch._higher_order_ops.print({', '.join(arguments)})")


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
