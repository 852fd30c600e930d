"""Temporarily apply a suggestion to the user's function.

Settings are set and restored. For a rewrite, the file is compiled with the lines replaced, and the function's code
object is temporarily swapped. The function keeps its globals, defaults and closure.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from compiler.calls.call import closure_of, nested_codes
from compiler.capture.sources import is_installed
from compiler.record import Artifact, Record, Suggestion
from compiler.torch_api.settings import with_settings

Version = Callable[[], AbstractContextManager[None]]


class CannotApplyError(Exception):
    """A suggestion can't be applied here; the message says why."""


def version(suggestion: Suggestion, fn: Any, files: Mapping[str, str]) -> Version | None:
    """A factory of context managers that apply a suggestion; None if it has neither a rewrite nor settings.

    `files` maps file names of the record to paths. Raises CannotApplyError.
    """
    if suggestion.rewrite:
        function, code = _function_and_code(suggestion, fn, files)
        return lambda: with_code(function, code)
    if suggestion.settings:
        return lambda: with_settings(suggestion.settings)
    return None


@contextmanager
def with_code(function: FunctionType, code: CodeType) -> Iterator[None]:
    """Temporarily swap the function's code object."""
    original = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = original


def _function_and_code(suggestion: Suggestion, fn: Any, files: Mapping[str, str]) -> tuple[FunctionType, CodeType]:
    """The function that contains a suggestion's lines, and a new code object for it with these lines replaced."""
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
    place = (old.co_name, old.co_firstlineno)
    new = next((code for code in nested_codes(module) if (code.co_name, code.co_firstlineno) == place), None)
    if new is None or new.co_freevars != old.co_freevars:
        raise CannotApplyError("the function could not be compiled again from its source")
    return function, new


def _holder(functions: Iterable[FunctionType], path: str, suggestion: Suggestion) -> FunctionType | None:
    """The innermost function that contains the lines of a suggestion; None if there is none."""
    holding = [
        function
        for function in functions
        if function.__code__.co_filename == path
        and function.__code__.co_firstlineno <= suggestion.line
        and suggestion.end_line <= max((line or 0 for *_, line in function.__code__.co_lines()), default=0)
    ]
    return max(holding, key=lambda function: function.__code__.co_firstlineno, default=None)


def files_of(fn: Any) -> list[str]:
    """Source files of the user's functions that `fn` may call."""
    return list(dict.fromkeys(function.__code__.co_filename for function in _functions(fn)))


def files_by_name(record: Record, paths: Iterable[str]) -> dict[str, str]:
    """Paths of files by their names in the record; files are matched by their lines."""
    pairs = itertools.product(record.of_stage("source"), paths)
    return {artifact.title: path for artifact, path in pairs if _has_lines(artifact, linecache.getlines(path))}


def _has_lines(artifact: Artifact, lines: Sequence[str]) -> bool:
    shown = artifact.text.splitlines()
    numbers = artifact.attrs.get("numbers") or range(1, len(shown) + 1)
    pairs = [(number, text) for number, text in zip(numbers, shown, strict=False) if number]
    return bool(pairs) and all(
        number <= len(lines) and lines[number - 1].rstrip() == text.rstrip() for number, text in pairs
    )


def _functions(fn: Any) -> Iterator[FunctionType]:
    """Yield the user's functions that `fn` may call: itself, and functions that its code refers to by name."""
    todo, seen = [fn], set[int]()
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType) and not is_installed(value.__code__.co_filename):
            yield value
            todo.extend(_functions_named_by(value))
        else:
            todo.extend(_parts(value))


def _functions_named_by(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function wraps, closes over, or reads from its globals."""
    yield from _functions_held_by(function)
    for code in nested_codes(function.__code__):
        yield from (function.__globals__.get(name) for name in code.co_names)


def _functions_held_by(function: FunctionType) -> Iterator[Any]:
    yield getattr(function, "__wrapped__", None)
    yield from closure_of(function).values()


def _parts(value: Any) -> Iterator[Any]:
    """Yield the functions of a module and its submodules, of a bound method or class, or wrapped by a decorator."""
    if isinstance(value, torch.nn.Module):
        for kind in dict.fromkeys(type(module) for module in value.modules()):
            yield from _methods(kind)
    elif isinstance(value, MethodType):
        yield value.__func__
        yield value.__self__
    elif isinstance(value, FunctionType):
        yield from _functions_held_by(value)
    elif isinstance(value, type) and not is_installed(_file_of(value)):
        yield from _methods(value)


def _methods(kind: type) -> Iterator[Any]:
    for base in kind.__mro__:
        if base not in (object, torch.nn.Module):
            yield from (item for item in vars(base).values() if isinstance(item, FunctionType))


def _file_of(kind: type) -> str:
    functions = (item for item in vars(kind).values() if isinstance(item, FunctionType))
    return next((function.__code__.co_filename for function in functions), "<none>")
