"""Check the source of a loaded record's Triton kernels. It is parsed, and not executed here.

To compile a kernel, its source is executed as a Python module, and Triton calls Python functions while it reads a
function under `@triton.jit`. So only code that Inductor and our own backend write is allowed: known imports, jit
functions and constants; in functions, calls of Triton's own functions and of functions of the module.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from compiler.torch_api.triton_kernels import DECORATORS, HELPERS, hint_names

_RUNTIME = HELPERS.rpartition(".")[0]
_HINTS = f"{_RUNTIME}.hints"
_LANGUAGE = ("core", "math", "random", "standard", "extra", "extra.libdevice", "extra.cuda", "extra.cuda.libdevice",
             "extra.hip", "extra.hip.libdevice")  # fmt: skip
_MODULES = {
    "triton": ("cdiv", "next_power_of_2", "language"),
    "triton.language": (),
    **dict.fromkeys((f"triton.language.{name}" for name in _LANGUAGE), ()),
    HELPERS: (),
    f"{_RUNTIME}.triton_compat": (),
}
"""Modules that kernels may use, and their allowed members; () allows all functions for kernels."""
_FROM_RUNTIME = ("triton_helpers", "triton_heuristics")
_BUILTINS = frozenset({
    "abs", "bool", "float", "int", "isinstance", "len", "max", "min", "print", "range", "str", "tuple",
})  # fmt: skip
_REFUSED = frozenset({"dispatch", "extern_elementwise", "str_to_ty"})
"""Functions of Triton that link a file or evaluate a string."""
_ON_VALUES = frozenset({"T", "dtype", "element_ty", "name", "numel", "scalar", "shape", "type", "value"})
_STATEMENTS = (
    ast.AnnAssign, ast.Assert, ast.Assign, ast.AugAssign, ast.Break, ast.Continue, ast.Expr, ast.For, ast.If, ast.Pass,
    ast.Return, ast.While,
)  # fmt: skip
_EXPRESSIONS = (
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.FormattedValue, ast.IfExp,
    ast.JoinedStr, ast.List, ast.Name, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp,
)  # fmt: skip
_PLAIN_WORDS = re.compile(r"\**[\w.:/\- ]*|tensordesc<\w+\[[\d, ]*\]>")
_ARITHMETIC = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Name, ast.operator, ast.unaryop,
               ast.cmpop, ast.expr_context)  # fmt: skip
_ASSEMBLY = "inline_asm_elementwise"
_ASSEMBLER_READS = re.compile(r"\.inc|\\|\$(?![\d$]|\{\d)", re.IGNORECASE)
"""Directives that include a file, and syntax that could form such a directive: macro arguments, alternatives."""
_MOST_CHARACTERS = 2_000_000


class RefusedSourceError(ValueError):
    """A source has code that no code generator writes; the message names the code and its line."""

    def __init__(self, what: str, node: ast.AST | None = None) -> None:
        line = getattr(node, "lineno", 0)
        super().__init__(f"line {line}: {what}" if line else what)
        self.line = line


def check_triton(source: str) -> None:
    """Check a module of Triton kernels. Raises RefusedSourceError."""
    if len(source) > _MOST_CHARACTERS:
        raise RefusedSourceError(f"the source has {len(source):,} characters; at most {_MOST_CHARACTERS:,} are read")
    try:
        tree = ast.parse(source)
        _Module().check(tree)
    except SyntaxError as error:
        raise RefusedSourceError(f"line {error.lineno or 0}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, RefusedSourceError):
            raise
        raise RefusedSourceError(f"it can't be parsed: {error or type(error).__name__}") from None


class _Module:
    """Checks a module statement by statement. `names` are the names that are defined so far."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        """By name: an imported module or function; None for a definition of the checked module."""

    def check(self, tree: ast.Module) -> None:
        functions = []
        for place, statement in enumerate(tree.body):
            if isinstance(statement, ast.FunctionDef):
                self.define(statement)
                functions.append(statement)
            elif not (place == 0 and _is_text(statement)):
                self.statement(statement)
        for function in functions:
            _Function(self, function).check()

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name, value = _imports(node, alias)
                self.names[name] = value
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self.assign(node)
        elif not _is_driver_call(node):
            raise RefusedSourceError(f"`{words_of(node)}` at module level is no definition", node)

    def assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        """Check `BLOCK = 64`, `SCALE: tl.constexpr = tl.constexpr(3)`, `float32 = tl.float32`, aliases."""
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if (isinstance(node, ast.Assign) and len(node.targets) != 1) or not isinstance(target, ast.Name):
            raise RefusedSourceError("an assignment at module level to more than one name", node)
        if isinstance(node, ast.AnnAssign):
            self.annotation(node.annotation)
        value = self.without_constexpr(node.value)
        known = isinstance(value, ast.Name) and value.id in self.names and self.names[value.id] is None
        if self.is_assembly(value):
            raise RefusedSourceError(f"another name for {_ASSEMBLY}", node)
        if value is not None and not (known or self.is_resolved(value) or _is_literal(value)):
            raise RefusedSourceError(f"`{words_of(value)}` is no constant", node)
        self.bind(target.id, node)

    def bind(self, name: str, node: ast.AST) -> None:
        if name.startswith("__") or self.names.get(name) is not None or name in _BUILTINS:
            raise RefusedSourceError(f"{name} stands for something else already", node)
        self.names[name] = None

    def without_constexpr(self, node: ast.expr | None) -> ast.expr | None:
        """Unwrap `tl.constexpr(3)` to `3`; other expressions are unchanged."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords):
            return node
        kind = self.resolve(node.func)
        return node.args[0] if getattr(kind, "__name__", "") == "constexpr" and len(node.args) == 1 else node

    def is_resolved(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Attribute) and self.resolve(value) is not None

    def is_assembly(self, node: ast.expr | None) -> bool:
        """Whether an expression is `inline_asm_elementwise`."""
        found = self.names.get(node.id) if isinstance(node, ast.Name) else None
        found = self.resolve(node) if isinstance(node, ast.Attribute) else found
        return getattr(found, "__name__", "") == _ASSEMBLY

    def define(self, node: ast.FunctionDef) -> None:
        """Check a function's decorators, default values and annotations, which Python executes; define its name."""
        if not node.decorator_list:
            raise RefusedSourceError(f"the function {node.name} is not under @triton.jit", node)
        for decorator in node.decorator_list:
            self.decorator(decorator)
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.annotation is not None:
                self.annotation(argument.annotation)
        if arguments.vararg or arguments.kwarg or node.returns is not None:
            raise RefusedSourceError(f"the arguments of {node.name} are none of a kernel's", node)
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None and not _is_literal(default):
                raise RefusedSourceError(f"the default value `{words_of(default)}` is no constant", default)
        self.bind(node.name, node)

    def decorator(self, node: ast.expr) -> None:
        name = self.dotted_name(node.func if isinstance(node, ast.Call) else node)
        root, _, member = name.partition(".")
        is_triton = isinstance(self.names.get("triton"), ModuleType) and root == "triton"
        plain = (
            isinstance(node, ast.Call)
            and not node.args
            and all(keyword.arg and _is_literal(keyword.value) for keyword in node.keywords)
        )
        if not isinstance(node, ast.Call):
            allowed = is_triton and member in ("jit", "constexpr_function")
        elif is_triton:
            allowed = member == "jit" and plain
        else:
            allowed = self.names.get(root) is _KNOWN and root == "triton_heuristics" and member in DECORATORS
            allowed = allowed and all(map(_is_no_other_file, node.keywords))
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)) if allowed else ():
                self.metadata(argument)
        if not allowed:
            raise RefusedSourceError(f"the decorator `{words_of(node)}` is none of a kernel's", node)

    def metadata(self, node: ast.expr) -> None:
        """Check Inductor's metadata: literals, hints, GPU properties, and strings, which Inductor may evaluate."""
        if isinstance(node, ast.Dict):
            self.metadata_of_dict(node)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            for element in node.elts:
                self.metadata(element)
        elif isinstance(node, ast.Call):
            self.hint_call(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not _is_harmless_text(node.value):
                raise RefusedSourceError(f"the text {node.value[:80]!r} in a kernel's metadata is no arithmetic", node)
        elif not (_is_literal(node) or self.is_hint(node)):
            raise RefusedSourceError(f"`{words_of(node)}` in a kernel's metadata is no constant", node)

    def metadata_of_dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise RefusedSourceError("`**` in a kernel's metadata", node)
            self.metadata(key)
            if not (isinstance(key, ast.Constant) and key.value == "cpp"):  # only the C++ code generator reads it
                self.metadata(value)

    def hint_call(self, node: ast.Call) -> None:
        """Check a call in metadata: `DeviceProperties(type='cuda', …)`, `float('inf')`, `set()`."""
        name = self.dotted_name(node.func)
        if name == "set" and not node.args and not node.keywords:
            return
        if name == "float" and len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Constant):
            return
        if name != "DeviceProperties" or self.names.get(name) is not _KNOWN:
            raise RefusedSourceError(f"the call `{words_of(node)}` in a kernel's metadata", node)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.metadata(argument)

    def is_hint(self, node: ast.expr) -> bool:
        """Whether an expression is a hint (`ReductionHint.INNER`), a dtype (`tl.int8`, `torch.int8`) or `__file__`."""
        name = self.dotted_name(node)
        kind, _, member = name.rpartition(".")
        is_dtype = kind == "torch" and re.fullmatch(r"(u?int|b?float|float8_\w+|complex|bool)\d*\w*", member)
        is_member = name in hint_names() and self.names.get(kind) is _KNOWN
        return name == "__file__" or is_member or bool(is_dtype) or self.is_resolved(node)

    def annotation(self, node: ast.expr) -> None:
        name = self.dotted_name(node)
        plain = {"int", "float", "bool", "str", "builtins.int", "builtins.float", "builtins.bool", "builtins.str"}
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | None)
        if not (is_text or name in plain or self.is_resolved(node) or self.names.get(name) is not None):
            raise RefusedSourceError(f"the annotation `{words_of(node)}` is none of a kernel's", node)

    def dotted_name(self, node: ast.expr) -> str:
        """`a.b.c` as text, "" for any other expression."""
        if isinstance(node, ast.Name):
            return node.id
        inner = self.dotted_name(node.value) if isinstance(node, ast.Attribute) else ""
        return f"{inner}.{node.attr}" if inner and isinstance(node, ast.Attribute) else ""

    def resolve(self, node: ast.Attribute) -> Any:
        """The value of an imported module's attribute; None for other expressions. Raises RefusedSourceError."""
        root, *names = self.dotted_name(node).split(".")
        value = self.names.get(root)
        if not isinstance(value, ModuleType):
            return None
        for name in names:
            value = _member(value, name, node)
        return value


class _Function:
    """Checks a function's body, which Triton compiles and its interpreter executes."""

    def __init__(self, module: _Module, node: ast.FunctionDef) -> None:
        self.module, self.node = module, node
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        self.called: set[ast.expr] = set()
        """Function expressions of assembly calls that were checked."""
        self.local = {argument.arg for argument in arguments}
        self.local |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)
                       and isinstance(name.ctx, ast.Store)}  # fmt: skip

    def check(self) -> None:
        for name in self.local:
            if name.startswith("__") or name in _BUILTINS or self.module.names.get(name) is not None:
                raise RefusedSourceError(f"{name} stands for something else already", self.node)
        for statement in self.node.body:
            self.visit(statement)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
            raise RefusedSourceError(f"`{words_of(node)}` in a kernel", node)
        if isinstance(node, ast.expr) and not isinstance(node, _EXPRESSIONS):
            raise RefusedSourceError(f"`{words_of(node)}` in a kernel", node)
        if isinstance(node, ast.AnnAssign):
            self.module.annotation(node.annotation)
        self.look_at(node)
        for child in self.children(node):
            self.visit(child)

    def children(self, node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.AnnAssign):
            yield from filter(None, (node.target, node.value))
        elif not (isinstance(node, ast.Attribute) and self.is_of_module(node)):
            yield from ast.iter_child_nodes(node)

    def is_of_module(self, node: ast.Attribute) -> bool:
        root = self.module.dotted_name(node).partition(".")[0]
        return root not in self.local and isinstance(self.module.names.get(root), ModuleType)

    def look_at(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self.name(node)
        elif isinstance(node, ast.Attribute):
            self.attribute(node)
        elif isinstance(node, ast.Call):
            self.call(node)

    def call(self, node: ast.Call) -> None:
        if not isinstance(node.func, ast.Name | ast.Attribute):
            raise RefusedSourceError(f"`{words_of(node.func)}` is called", node)
        if self.is_assembly(node.func):
            texts = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg in ("asm", None))]
            if len(texts) != 1 or not isinstance(texts[0], ast.Constant) or not isinstance(texts[0].value, str):
                raise RefusedSourceError("assembly that is no text", node)
            if _ASSEMBLER_READS.search(texts[0].value):
                raise RefusedSourceError("an assembler's directive that reads a file", node)
            self.called.add(node.func)

    def is_assembly(self, node: ast.Name | ast.Attribute) -> bool:
        is_local = isinstance(node, ast.Name) and node.id in self.local
        return (
            not is_local and (isinstance(node, ast.Name) or self.is_of_module(node)) and self.module.is_assembly(node)
        )

    def name(self, node: ast.Name) -> None:
        if self.is_assembly(node) and node not in self.called:
            raise RefusedSourceError(f"another name for {_ASSEMBLY}", node)
        known = node.id in self.local or node.id in self.module.names or node.id in _BUILTINS
        if not known:
            raise RefusedSourceError(f"the name {node.id} is none of a kernel's", node)

    def attribute(self, node: ast.Attribute) -> None:
        if self.is_assembly(node) and node not in self.called:
            raise RefusedSourceError(f"another name for {_ASSEMBLY}", node)
        if self.is_of_module(node):
            self.module.resolve(node)
        elif not isinstance(node.ctx, ast.Load) or node.attr not in _value_attributes():
            raise RefusedSourceError(f"the attribute {node.attr} is none of a kernel's", node)


@cache
def _value_attributes() -> frozenset[str]:
    """Attributes of tensors, constants and dtypes that kernels may read."""
    import triton.language as tl

    kinds = [getattr(tl, name, None) for name in ("tensor", "constexpr", "dtype", "tensor_descriptor")]
    return _ON_VALUES | {name for kind in kinds if kind for name in dir(kind) if not name.startswith("_")} - {"handle"}


def _imports(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> tuple[str, Any]:
    """The name that an import binds, and its value. Raises RefusedSourceError."""
    if isinstance(node, ast.Import):
        if alias.name not in (*_MODULES, "torch") or ("." in alias.name and not alias.asname):
            raise RefusedSourceError(f"the module {alias.name} is imported", node)
        return alias.asname or alias.name, import_module(alias.name)
    module, name = node.module or "", alias.name
    if node.level or (alias.asname or name).startswith("__"):
        raise RefusedSourceError(f"{name} is imported from {'.' * node.level}{module}", node)
    known = (
        (module == _RUNTIME and name in _FROM_RUNTIME)
        or (module == _HINTS and name in {hint.partition(".")[0] for hint in hint_names()} | {"DeviceProperties"})
        or f"{module}.{name}" == "triton.compiler.compiler.AttrsDescriptor"
    )
    if known:
        return alias.asname or name, import_module(HELPERS) if name == "triton_helpers" else _KNOWN
    if module not in _MODULES:
        raise RefusedSourceError(f"{name} is imported from {module}", node)
    return alias.asname or name, _member(import_module(module), name, node)


_KNOWN = object()
"""The value of imported names that only decorators may use."""


def _member(owner: Any, name: str, node: ast.AST) -> Any:
    """A member of a module or enumeration that kernels may use. Raises RefusedSourceError."""
    if getattr(owner, "__name__", "") in ("PropagateNan", "PROPAGATE_NAN") and name in ("ALL", "NONE"):
        return getattr(owner, name)
    value = getattr(owner, name, None) if isinstance(owner, ModuleType) and not name.startswith("_") else None
    if isinstance(owner, ModuleType) and _is_kernel_name(owner, name, value):
        return value
    whole = f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"
    raise RefusedSourceError(f"{whole} is no function of kernels", node)


def _is_kernel_name(owner: ModuleType, name: str, value: Any) -> bool:
    if value is None or name in _REFUSED or owner.__name__ not in _MODULES:
        return False
    if only := _MODULES[owner.__name__]:
        return name in only
    if isinstance(value, ModuleType):
        return value.__name__ in _MODULES and value.__name__ != "triton"
    home = getattr(value, "__module__", "") or type(value).__module__
    return name == "PropagateNan" or home.startswith(("triton.language", HELPERS)) or isinstance(value, int | float)


def _is_driver_call(node: ast.stmt) -> bool:
    """Whether a statement is `triton_helpers.set_driver_to_gpu()` or `set_driver_to_cpu()`."""
    call = node.value if isinstance(node, ast.Expr) else None
    names = ("triton_helpers.set_driver_to_gpu", "triton_helpers.set_driver_to_cpu")
    return isinstance(call, ast.Call) and not call.args and not call.keywords and ast.unparse(call.func) in names


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_no_other_file(keyword: ast.keyword) -> bool:
    """Whether an argument names no other file: Inductor writes autotuning results next to the file `filename`."""
    return keyword.arg != "filename" or ast.unparse(keyword.value) == "__file__"


def _is_literal(node: ast.expr) -> bool:
    """Whether an expression is a number, a string, or a collection of literals."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd | ast.Not) and isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return all(map(_is_literal, node.elts))
    if isinstance(node, ast.Dict):
        return all(key is not None and _is_literal(key) for key in node.keys) and all(map(_is_literal, node.values))
    return isinstance(node, ast.Constant)


def _is_harmless_text(text: str) -> bool:
    """Whether a string is safe for Inductor to evaluate: plain words, or arithmetic on names."""
    if _PLAIN_WORDS.fullmatch(text):
        return True
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_arithmetic(node) for node in ast.walk(tree))


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("max", "min") and not node.keywords
    if isinstance(node, ast.Pow | ast.LShift):
        return False
    if isinstance(node, ast.Name):
        return node.id in ("max", "min") or not hasattr(builtins, node.id)
    return isinstance(node, _ARITHMETIC) or (isinstance(node, ast.Constant) and isinstance(node.value, int | float))


def words_of(node: ast.AST) -> str:
    """The first line of a node's source, cut to 80 characters."""
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 80 else f"{text[:77]}..."
