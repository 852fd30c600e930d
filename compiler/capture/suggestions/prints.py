"""`print` as a node of the graph: what is printed stays the same, format specifications and conversions with it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.rule import Lines
from compiler.capture.suggestions.uses import REDUCTIONS
from compiler.torch_api.dynamo import PRINT_OPERATOR

_KIND = re.compile(r"variables\.\w+\.(\w+)'>")
_PRINTABLE = ("TensorVariable", "ConstantVariable", "SymNodeVariable", "StringFormatVariable")
"""What torch's operator can print, as TorchDynamo calls it; it raises for lists, tuples and torch.Size."""
_TUPLES = ("size", "stride", "tolist", "split", "chunk", "unbind", "keys", "values", "items")


@dataclass(frozen=True, slots=True)
class Printed:
    """A format string, and the code of the values in it."""

    text: str
    values: tuple[str, ...] = ()


def print_in_graph(case: Case) -> Lines | None:
    """`print("mean", m)` becomes `torch._higher_order_ops.print("mean {!s}", m)`, which is a node of the graph."""
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
    r"""`sys.stdout.write("...\n")` as a print in the graph: text, with the new line that print adds at its end."""
    node = case.node
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1 or case.callee != "sys.stdout.write":
        return None
    part = _format_parts(node.args[0])
    if part is None or not part.text.endswith("\n") or part.text == "\n":
        return None
    return _call(case, node, part.text.removesuffix("\n"), [part])


def _call(case: Case, node: ast.Call, template: str, parts: list[Printed]) -> Lines:
    arguments = [ast.unparse(ast.Constant(template)), *(value for part in parts for value in part.values)]
    new = f"{PRINT_OPERATOR}({', '.join(arguments)})"
    return node.lineno, node.end_lineno or node.lineno, case.replaced(node, new)


def _print_call(case: Case) -> ast.Call | None:
    """The call of `print` that the culprit is, or is in."""
    calls = (node for node in ast.walk(case.statement or ast.Pass()) if isinstance(node, ast.Call))
    prints = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print")
    return next((call for call in prints if any(case.node is inner for inner in ast.walk(call))), None)


def is_printed(case: Case) -> bool:
    """Whether the culprit is in the text of a `print` that can be written as a node of the graph."""
    return case.node is not None and print_in_graph(case) is not None


def kinds(case: Case) -> list[str]:
    """TorchDynamo's kind of each argument of the call (`TensorVariable`)."""
    return _KIND.findall(case.context)


def can_be_printed(case: Case) -> bool:
    """Whether all arguments are of kinds that torch's operator, and a print that torch moves, take."""
    node = case.node
    if not isinstance(node, ast.Call) or node.keywords:
        return False
    found = kinds(case)
    return len(found) == len(node.args) and all(kind in (*_PRINTABLE, "SizeVariable") for kind in found)


def can_be_moved(case: Case) -> bool:
    """Whether torch can move the print to the end of the graph, with the same text.

    Of a function that is inlined (a module's forward, a helper, before Python 3.12 a comprehension) it drops the print.
    """
    return not case.inlined and can_be_printed(case) and "SizeVariable" not in kinds(case)


def holds_single_values(case: Case) -> bool:
    """Whether each f-string value is a single value by its syntax, not a list or tuple."""
    node = case.node
    formatted = (part for part in ast.walk(node or ast.Pass()) if isinstance(part, ast.FormattedValue))
    return all(part.format_spec is not None or _is_single(part.value) for part in formatted)


def _is_single(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr not in _TUPLES
    if isinstance(node, ast.NamedExpr):
        return _is_single(node.value)
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Constant) or _is_of_shape(node)


def _is_of_shape(node: ast.expr) -> bool:
    """`x.shape[0]`."""
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"


def _argument(case: Case, node: ast.expr, kind: str) -> Printed | None:
    """One argument of `print`; None where there is no way to print it in the graph."""
    if isinstance(node, ast.Starred):
        return None
    if kind == "SizeVariable":
        return Printed("{}", (f"f{'{' + ast.unparse(node) + '}'!r}",))
    if isinstance(node, ast.Constant) or (isinstance(node, ast.JoinedStr) and kind != "ConstantVariable"):
        return _format_parts(node)
    if kind in ("", "StringFormatVariable"):  # of an unknown kind, or text by the time it is printed
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
    """A value in an f-string, with its conversion and its format specification, which has to be a constant."""
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
    """A tensor with no dimensions is formatted as its number: `loss.mean().item()` as `loss.mean()`. None for other
    code that asks for a number, which breaks the graph by itself.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        inner = node.func.value
        is_reduced = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not inner.args
        return inner if is_reduced and inner.func.attr in REDUCTIONS and not inner.keywords else None  # type: ignore[attr-defined]
    asks = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return None if any(_asks_for_number(call) for call in asks) else node


def _asks_for_number(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("item", "tolist", "numpy", "float", "int", "str", "repr", "format")
