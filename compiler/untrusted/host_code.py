"""Check host code of a loaded record: allow only code that Inductor writes around kernels.

Of a module, only the definitions of kernels and the functions that call them are kept; imports and aliases are written
anew. In functions, an allowlist permits allocations, calls of PyTorch's operators, and launches of kernels.
"""

from __future__ import annotations

import ast
import builtins
import re

import torch

from compiler.torch_api.host_code import ALIASES, IMPORTS
from compiler.untrusted.triton_source import RefusedSourceError, words_of

_KEPT_FUNCTIONS = re.compile(r"call|get_args|partition_\d+")
_FUNCTIONS = frozenset({
    *ALIASES, "assert_alignment", "copy_if_misaligned", "copy_misaligned", "device", "empty_strided",
    "empty_strided_cuda", "float", "get_raw_stream", "int", "len", "max", "min", "rand_strided",
})  # fmt: skip
_DOTTED_CALLS = re.compile(
    r"(torch\.ops\.(aten|prims|inductor|_quantized)|aten|inductor_ops|_quantized)\.(?!save\b|from_file\b|__)\w+(\.(?!__)\w+)?"
    r"|extern_kernels\.[a-z]\w*|torch\.cuda\.(_DeviceGuard|set_device|synchronize)|torch\.device"
    r"|(args|self\.partitions)\.clear|math\.[a-z]\w*|\w+\.(copy_|fill_|item|run|zero_)"
)
_DOTTED_VALUES = re.compile(r"self\.partitions|\w+\.(dtype|shape|device)|math\.[a-z]\w*")
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_KEPT_NAMES = _FUNCTIONS | {"async_compile", "call", "extern_kernels", "math", "runner", "self", "torch"}
"""Names of functions that the code calls, and of objects whose methods it calls. They must not be reassigned."""
_STATEMENTS = (ast.Assign, ast.AugAssign, ast.Delete, ast.Expr, ast.Pass, ast.Return, ast.With)
_EXPRESSIONS = (
    ast.Attribute, ast.BinOp, ast.Call, ast.Compare, ast.Constant, ast.IfExp, ast.List, ast.Name, ast.Starred,
    ast.Subscript, ast.Slice, ast.Tuple, ast.UnaryOp,
)  # fmt: skip


def executable_host_code(code: str) -> str:
    """The part of a module that is executed to launch kernels. Raises RefusedSourceError."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RefusedSourceError(f"the host code can't be parsed: {error or type(error).__name__}") from None
    kept = [statement for statement in tree.body if _is_kept(statement)]
    for statement in kept:
        _check(statement)
    aliases = [f"{name} = {value}" for name, value in ALIASES.items()]
    return "\n".join([IMPORTS, *aliases, *map(ast.unparse, kept)])


def _is_kept(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
        node.body = [each for each in methods if each.name in ("__init__", "call")]
        return node.name == "Runner"
    if isinstance(node, ast.FunctionDef):
        return bool(_KEPT_FUNCTIONS.fullmatch(node.name))
    if isinstance(node, ast.Assign):
        text = ast.unparse(node)
        is_runner = re.fullmatch(r"runner = Runner\(partitions=\[[\w, ]*\]\)|call = runner\.call", text)
        return bool(is_runner) or _is_kernel(node)
    return False


def _is_kernel(node: ast.Assign) -> bool:
    """Whether a statement defines a kernel: `NAME = async_compile.triton('FUNCTION', '''SOURCE''', …)`.

    Such a statement is executed with a stand-in for `async_compile`, which only keeps the source.
    """
    call, target = node.value, node.targets[0]
    if len(node.targets) != 1 or not (isinstance(call, ast.Call) and isinstance(target, ast.Name)):
        return False
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    values = [inner for value in values for inner in (value.elts if isinstance(value, ast.List) else [value])]
    is_constant = all(isinstance(value, ast.Constant) for value in values) and not _is_kept_name(target.id)
    return is_constant and bool(re.fullmatch(r"async_compile\.[a-z]\w*", ast.unparse(call.func)))


def _check(node: ast.stmt) -> None:
    if isinstance(node, ast.ClassDef):
        if node.bases or node.keywords or node.decorator_list:
            raise RefusedSourceError("the host code's class has bases or decorators", node)
        for function in node.body:
            _check(function)
    elif isinstance(node, ast.FunctionDef):
        arguments = node.args
        extra = (
            arguments.defaults, arguments.kw_defaults, arguments.kwonlyargs, arguments.vararg, arguments.kwarg,
            arguments.posonlyargs, [each for each in arguments.args if _is_kept_name(each.arg) and each.arg != "self"],
        )  # fmt: skip
        if node.decorator_list or node.returns or any(extra) or any(each.annotation for each in arguments.args):
            raise RefusedSourceError(f"the head of {node.name} in the host code", node)
        if [*map(ast.unparse, node.body)] == ["self.partitions = partitions"]:
            return
        node.body = [each for each in node.body if not _is_import_of_random(each)]
        for statement in node.body:
            _check_inside(statement)


def _is_import_of_random(node: ast.stmt) -> bool:
    return ast.unparse(node) == "from torch._dynamo.testing import rand_strided"


def _check_inside(node: ast.AST) -> None:
    is_wrong = isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS)
    if is_wrong or (isinstance(node, ast.expr) and not isinstance(node, _EXPRESSIONS)):
        raise RefusedSourceError(f"`{words_of(node)}` in the host code", node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
        raise RefusedSourceError(f"`{words_of(node)}` in the host code", node)
    if isinstance(node, ast.Call):
        _check_call(node.func)
        children: list[ast.AST] = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Attribute):
        if not (isinstance(node.ctx, ast.Load) and (_is_of_torch(node) or _DOTTED_VALUES.fullmatch(ast.unparse(node)))):
            raise RefusedSourceError(f"`{words_of(node)}` in the host code", node)
        children = []
    else:
        children = [*ast.iter_child_nodes(node)]
    if isinstance(node, ast.Name):
        name = node.id
        if hasattr(builtins, name) or name.startswith("__"):
            raise RefusedSourceError(f"the name {name} in the host code", node)
        if isinstance(node.ctx, ast.Store) and _is_kept_name(name):
            raise RefusedSourceError(f"{name} is given another meaning in the host code", node)
    for child in children:
        _check_inside(child)


def _is_kept_name(name: str) -> bool:
    return name in _KEPT_NAMES or bool(_KEPT_FUNCTIONS.fullmatch(name))


def _is_of_torch(node: ast.Attribute) -> bool:
    """Whether an attribute is a constant of torch: `torch.float32`, `torch.strided`, `torch.channels_last`."""
    return ast.unparse(node.value) == "torch" and isinstance(getattr(torch, node.attr, None), _OF_TORCH)


def _check_call(function: ast.expr) -> None:
    text = ast.unparse(function)
    is_known = text in _FUNCTIONS if isinstance(function, ast.Name) else bool(_DOTTED_CALLS.fullmatch(text))
    if not (is_known or re.fullmatch(r"self\.partitions\[\d+\]|partition_\d+", text)):
        raise RefusedSourceError(f"the call of `{text[:80]}` in the host code", function)
