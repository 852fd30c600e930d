"""The user's function as a suggestion would have it, for the length of a block: nothing of it stays.

Settings are set and put back. A rewrite gives the function that holds the lines other code, made from its own file with
these lines replaced; its globals, defaults and what it closes over are its own.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from compiler.capture.sources import is_installed
from compiler.record import Suggestion
from compiler.torch_api.changed_settings import with_settings

Version = Callable[[], AbstractContextManager[None]]


class CannotApplyError(Exception):
    """Why a suggestion can't be applied here, in the user's terms."""


def version(suggestion: Suggestion, fn: Any, files: Mapping[str, str]) -> Version | None:
    """What puts a suggestion into force, None for one that is words only. `files` are paths by the record's names.

    Raises CannotApplyError.
    """
    if suggestion.rewrite:
        function, code = _recoded(suggestion, fn, files)
        return lambda: with_code(function, code)
    if suggestion.settings:
        return lambda: with_settings(suggestion.settings)
    return None


@contextmanager
def with_code(function: FunctionType, code: CodeType) -> Iterator[None]:
    """The function has this code in the block."""
    original = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = original


def _recoded(suggestion: Suggestion, fn: Any, files: Mapping[str, str]) -> tuple[FunctionType, CodeType]:
    """The function that holds the lines, and its code with them replaced."""
    path = files.get(suggestion.file, "")
    function = _holder(_functions(fn), path, suggestion)
    if function is None:
        raise CannotApplyError("the function with this line is out of reach: no version without this break to time")
    lines = [line.rstrip("\n") for line in linecache.getlines(path)]
    lines[suggestion.line - 1 : suggestion.end_line] = suggestion.rewrite.split("\n")
    try:
        module = compile("\n".join(lines) + "\n", path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CannotApplyError(f"its file can't be compiled with the advice applied: {error.msg}") from None
    old = function.__code__
    same = (code for code in _codes(module) if (code.co_name, code.co_firstlineno) == (old.co_name, old.co_firstlineno))
    new = next(same, None)
    if new is None or new.co_freevars != old.co_freevars:
        raise CannotApplyError("the function could not be made anew from its source")
    return function, new


def _holder(functions: Iterable[FunctionType], path: str, suggestion: Suggestion) -> FunctionType | None:
    """The function whose own lines these are; the innermost, where one is in another."""
    holding = [
        function
        for function in functions
        if function.__code__.co_filename == path
        and function.__code__.co_firstlineno <= suggestion.line
        and suggestion.end_line <= max((line or 0 for *_, line in function.__code__.co_lines()), default=0)
    ]
    return max(holding, key=lambda function: function.__code__.co_firstlineno, default=None)


def files_of(fn: Any) -> list[str]:
    """The files of the user's functions that `fn` can call."""
    return list(dict.fromkeys(function.__code__.co_filename for function in _functions(fn)))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _functions(fn: Any) -> Iterator[FunctionType]:
    """The functions of the user's that `fn` can call: its own, and those of the names in its code."""
    todo, seen = [fn], set[int]()
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType) and not is_installed(value.__code__.co_filename):
            yield value
            todo.extend(_named(value))
        else:
            todo.extend(_parts(value))


def _named(function: FunctionType) -> Iterator[Any]:
    """What a function wraps, closes over, and names among its globals."""
    yield from _held(function)
    for code in (function.__code__, *_codes(function.__code__)):
        yield from (function.__globals__.get(name) for name in code.co_names)


def _held(function: FunctionType) -> Iterator[Any]:
    yield getattr(function, "__wrapped__", None)
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _parts(value: Any) -> Iterator[Any]:
    """The functions of a module and of all in it; that of a bound method; what a decorator has wrapped."""
    if isinstance(value, torch.nn.Module):
        for kind in dict.fromkeys(type(module) for module in value.modules()):
            yield from _methods(kind)
    elif isinstance(value, MethodType):
        yield value.__func__
        yield value.__self__
    elif isinstance(value, FunctionType):
        yield from _held(value)
    elif isinstance(value, type) and not is_installed(_file_of(value)):
        yield from _methods(value)


def _methods(kind: type) -> Iterator[Any]:
    for base in kind.__mro__:
        if base not in (object, torch.nn.Module):
            yield from (item for item in vars(base).values() if isinstance(item, FunctionType))


def _file_of(kind: type) -> str:
    functions = (item for item in vars(kind).values() if isinstance(item, FunctionType))
    return next((function.__code__.co_filename for function in functions), "<none>")
