"""Run Inductor's output code on the CPU, with every Triton launch passed to a `Host`.

The module that Inductor generated is executed with replacements for functions that need a GPU. Known results of ATen
calls are not recomputed: the `Host` provides them.
"""

from __future__ import annotations

import ast
import contextlib
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch

_FUNCTION = re.compile(r"call|partition_\d+")
_NAMES, _COMPUTED, _FILLED = "_names_", "_computed_", "_filled_"


class Host(Protocol):
    """Callbacks of the output code."""

    def launch(self, kernel: str, function: str, source: str, names: Sequence[str], arguments: Sequence[Any]) -> None:
        """Launch the kernel in the variable `kernel`: the function `function` of `source`.

        `names` are the variables of the arguments, "" for an argument that is no variable.
        """

    def compute_value(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the value of the variable `name`, which the ATen call `compute` returns."""

    def fill_buffer(self, name: str, buffer: torch.Tensor, compute: Callable[[], Any]) -> None:
        """Fill the buffer `name`, which the ATen call `compute` writes."""


def runner(code: str, host: Host, externs: Collection[str]) -> Callable[[list[Any]], Any]:
    """Execute the output code, and return its `call` function, which takes a list of inputs and clears it.

    `externs` are the variables that hold results of ATen calls. Raises errors of the code.
    """
    hooks = {_COMPUTED: host.compute_value, _FILLED: host.fill_buffer}
    call: Callable[[list[Any]], Any] = _execute(code, host.launch, externs, hooks)["call"]
    return call


def random_inputs(code: str) -> list[Any]:
    """Random inputs with the sizes, strides and dtypes that the code expects. Raises KeyError without a `get_args`."""
    return list(_execute(code, None)["get_args"]())


def _execute(
    code: str, launch: Callable[..., None] | None, externs: Collection[str] = (), hooks: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    stand_ins = {**_stand_ins(), "async_compile": _AsyncCompile(launch), **(hooks or {})}
    tree = _Rewriting(set(stand_ins), set(externs)).visit(ast.parse(code))
    module = types.ModuleType("output_code")
    vars(module).update(stand_ins)
    exec(compile(ast.fix_missing_locations(tree), "<output code>", "exec"), vars(module))
    return vars(module)


def _stand_ins() -> dict[str, Any]:
    def cpu(*_args: Any, **_kwargs: Any) -> torch.device:
        return torch.device("cpu")

    def ignore(*_args: Any) -> None:
        pass

    cuda = _StandIn(torch.cuda, _DeviceGuard=contextlib.nullcontext, set_device=ignore, synchronize=ignore)
    return {
        "torch": _StandIn(torch, cuda=cuda, device=cpu),
        "device": cpu,
        "get_raw_stream": lambda _index: 0,
        "empty_strided_cuda": _empty,
        "assert_alignment": ignore,
        "rand_strided": _random,
    }


def _empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A new tensor, filled with `fill_value` to reveal elements that no kernel writes."""
    made = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype)
    torch.empty(0, dtype=dtype).set_(made.untyped_storage()).fill_(fill_value(dtype))
    return made


def fill_value(dtype: torch.dtype) -> Any:
    """The value that marks unwritten elements: NaN, True, or the largest integer."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _random(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, **_device: Any) -> torch.Tensor:
    return torch.empty_strided(tuple(size), tuple(stride), dtype=dtype).copy_(random_values(size, dtype))


def random_values(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Random values like torch._dynamo.testing.rand_strided; integers are 0 or 1, as they may be indices."""
    return torch.randn(tuple(size)) if dtype.is_floating_point else torch.randint(0, 2, tuple(size))


class _StandIn(types.ModuleType):
    """A module with some attributes replaced."""

    def __init__(self, module: types.ModuleType, **attributes: Any) -> None:
        super().__init__(module.__name__)
        self._module = module
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _AsyncCompile:
    """Replaces Inductor's AsyncCompile in output code; without `launch` no kernel can run."""

    def __init__(self, launch: Callable[..., None] | None) -> None:
        self._launch = launch

    def triton(self, name: str, source: str, **_options: Any) -> types.SimpleNamespace:
        def run(*arguments: Any, _names_: Sequence[str] = (), **_stream: Any) -> None:
            kernel, *names = _names_
            assert self._launch is not None
            self._launch(kernel, name, source, names, arguments)

        return types.SimpleNamespace(run=run)

    def wait(self, _scope: dict[str, Any]) -> None:
        pass

    def __getattr__(self, language: str) -> Callable[..., Any]:
        def refuse(*_args: Any, **_kwargs: Any) -> None:
            raise NotImplementedError(f"a kernel in {language.removesuffix('_pybinding')} is not run here")

        return lambda *_args, **_kwargs: refuse


class _Rewriting(ast.NodeTransformer):
    """Removes definitions that are replaced, and adds variable names to launches and ATen calls."""

    def __init__(self, stand_ins: set[str], externs: set[str]) -> None:
        self._stand_ins = stand_ins
        self._externs = externs
        self._in_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self._in_function = self._in_function, bool(_FUNCTION.fullmatch(node.name))
        changed = self.generic_visit(node)
        self._in_function = before
        return changed

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> ast.AST | None:
        node.names = [alias for alias in node.names if (alias.asname or alias.name) not in self._stand_ins]
        return node if node.names else None

    visit_ImportFrom = visit_Import  # noqa: N815 - ast's name

    def visit_Delete(self, node: ast.Delete) -> ast.AST | None:
        kept = [target for target in node.targets if _name(target) not in self._stand_ins]
        return ast.Delete(kept) if kept else None

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        target = _name(node.targets[0])
        if not self._in_function:
            return None if target in self._stand_ins else self.generic_visit(node)
        if target in self._externs and not _is_memory(node.value):
            node.value = _call(_COMPUTED, node.value, ast.Constant(target))
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if not self._in_function or not isinstance(call, ast.Call):
            return node
        if isinstance(call.func, ast.Attribute) and call.func.attr == "run" and _name(call.func.value):
            variables = [_name(call.func.value), *map(_variable, call.args)]
            names: list[ast.expr] = [ast.Constant(variable) for variable in variables]
            call.keywords.append(ast.keyword(_NAMES, ast.Tuple(names, ast.Load())))
            return node
        out = next((_name(keyword.value) for keyword in call.keywords if keyword.arg == "out"), "")
        if out:
            node.value = _call(_FILLED, call, ast.Constant(out), ast.Name(out, ast.Load()))
        return node


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _variable(node: ast.expr) -> str:
    """The variable of an argument: `buf0`, also for `reinterpret_tensor(buf0, …)`; "" if there is none."""
    if isinstance(node, ast.Call) and node.args:
        return _variable(node.args[0])
    return _name(node)


def _is_memory(value: ast.expr) -> bool:
    """Whether an expression only allocates or aliases memory."""
    return isinstance(value, ast.Name) or (
        isinstance(value, ast.Call)
        and _name(value.func).startswith(("empty_strided", "reinterpret_tensor", "alloc_from_pool"))
    )


def _call(function: str, value: ast.expr, *arguments: ast.expr) -> ast.Call:
    """The expression `function(*arguments, lambda: value)`."""
    compute = ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)
    return ast.Call(ast.Name(function, ast.Load()), [*arguments, compute], [])
