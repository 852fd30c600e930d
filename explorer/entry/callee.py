"""Decide which callables are the user's and can be compiled, with the reasons for refusing others."""

from __future__ import annotations

import inspect
import site
import sysconfig
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch

import compiler
from compiler.capture.sources import package_folders_on_path, torch_folder

TORCHSCRIPT = "is TorchScript, which runs outside Python and which TorchDynamo does not trace"
PACKAGE = "is a package of AOTInductor, which is already compiled and which TorchDynamo does not trace"
ORIGINALS = {
    TORCHSCRIPT: "explore the original model or function, before torch.jit.script or torch.jit.trace",
    PACKAGE: "explore the model that the package was made from",
}
"""What to explore instead, by the reason for refusing compiled code."""
OWN_FOLDERS = (Path(__file__).parents[1], Path(compiler.__file__).parent)


def refusal(callee: object) -> str:
    """The reason not to compile `callee` by default, without `--fn`; "" if there is none.

    Functions of libraries are refused, unless they run a module; so is everything that `named_refusal` refuses.
    """
    function = None if reason_compiled(callee) else python_function(callee)
    if function is not None and not isinstance(callee, torch.nn.Module) and not runs_a_module(callee):
        owner = owner_of(function)
        if owner:
            return f"belongs to {owner}"
    return named_refusal(callee)


def named_refusal(callee: object) -> str:
    """The reason why `callee` can't be compiled, even if `--fn` names it; "" if it can be compiled."""
    if why := reason_compiled(callee):
        return why
    if isinstance(callee, torch.nn.Module):
        return ""
    if inspect.isclass(callee):
        return "is a class: calling it makes an object, and it is the object's call that can be compiled"
    function = python_function(callee)
    if function is None:
        return "is built in"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async, which torch.compile does not support"
    return "is a generator, which torch.compile leaves as it is" if inspect.isgeneratorfunction(function) else ""


def reason_compiled(callee: object) -> str:
    """The reason to refuse compiled code: TorchScript, AOTInductor's package, or a method of one; "" for other code."""
    owner = callee.__self__ if isinstance(callee, MethodType) else callee
    if isinstance(owner, torch.jit.ScriptModule | torch.jit.ScriptFunction | torch.ScriptMethod):
        return TORCHSCRIPT
    return PACKAGE if type(owner).__name__ == "AOTICompiledModel" else ""


def python_function(callee: Any) -> FunctionType | None:
    """The Python function that a call of `callee` runs, or None if there is none (a class, a builtin)."""
    if isinstance(callee, FunctionType):
        return callee
    if isinstance(callee, partial):
        return python_function(callee.func)
    if isinstance(callee, MethodType):
        return python_function(callee.__func__)
    if inspect.isclass(callee) or not callable(callee):
        return None
    call = type(callee).__call__
    return call if isinstance(call, FunctionType) else None


def compile_callee(callee: Any, compile_one: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """Compile `callee` with `compile_one`, which takes modules, functions and bound methods; unwraps partials."""
    if isinstance(callee, partial):
        return partial(compile_callee(callee.func, compile_one), *callee.args, **callee.keywords)
    if isinstance(callee, torch.nn.Module | FunctionType | MethodType):
        return compile_one(callee)
    return compile_one(callee.__call__)


def runs_a_module(callee: object) -> bool:
    """Whether this is a module's method from an installed package other than torch: `model.generate`."""
    if not isinstance(callee, MethodType) or not isinstance(callee.__self__, torch.nn.Module):
        return False
    return isinstance(callee.__func__, FunctionType) and owner_of(callee.__func__) not in ("", "torch")


def same(first: object, second: object) -> bool:
    """Whether two callees are the same; bound methods are compared by equality."""
    return first is second or (isinstance(first, MethodType) and first == second)


def is_own_or_torch(file: str) -> bool:
    """Whether code in this file is tcompile's or PyTorch's."""
    return _owner_of_file(file) in ("tcompile", "torch")


def owner_of(function: FunctionType) -> str:
    """The package that a function belongs to: "torch", "the standard library", …; "" for the user's own.

    A wrapper (`torch.no_grad()`, `functools.wraps`) belongs to the package of the wrapped function.
    """
    inner: Any = inspect.unwrap(function)
    if isinstance(inner, torch.nn.Module):  # torch.vmap(model) wraps a model
        inner = inner.forward
    called = python_function(inner) or function
    return _owner_of_file(called.__code__.co_filename)


@cache
def _owner_of_file(name: str) -> str:
    if name.startswith("<frozen "):
        return "the standard library"
    path = Path(name)
    if path.resolve().is_relative_to(torch_folder()):
        return "torch"
    for folder in _package_folders():
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0].removesuffix(".py")
    if any(path.is_relative_to(folder) for folder in OWN_FOLDERS):
        return "tcompile"
    return "the standard library" if any(path.is_relative_to(folder) for folder in _standard_folders()) else ""


@cache
def _package_folders() -> tuple[Path, ...]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    sites = [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(map(Path, dict.fromkeys([*folders, *sites, *package_folders_on_path()])))


@cache
def _standard_folders() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
