"""Find the user's call of the explored function in the source, and insert statements above it."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compiler.calls.call import Call
from compiler.capture.assignments import covers, source_of_file
from compiler.capture.sources import is_installed
from compiler.torch_api.dynamo import inner_function
from compiler.xray.substitution import Edit

_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Load)
_UNKNOWN = object()
_VARARGS, _VARKEYWORDS = 0x04, 0x08


@dataclass(frozen=True)
class Parameters:
    """Names of the positional parameters of a function, without `self`; `extra` is that of `*args`.

    `keywords` is the name of `**kwargs`. Both are "" if there is none. `skipped` is 1 if `*args` has `self` too.
    """

    names: tuple[str, ...] = ()
    extra: str = ""
    keywords: str = ""
    skipped: int = 0

    @classmethod
    def of(cls, function: Any) -> Parameters:
        """The parameters of a function or module."""
        run = type(function).forward if isinstance(function, torch.nn.Module) else function
        code = getattr(getattr(run, "__func__", run), "__code__", None)
        if code is None:
            return cls()
        first = 1 if run is not function or hasattr(run, "__self__") else 0
        rest = list(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
        extra = rest.pop(0) if code.co_flags & _VARARGS else ""
        keywords = rest.pop(0) if code.co_flags & _VARKEYWORDS else ""
        skipped = first if extra and not code.co_argcount else 0
        return cls(code.co_varnames[first : code.co_argcount], extra, keywords, skipped)

    def name_of(self, where: int | str) -> str:
        """Path to the argument at a position or of a keyword: `x`, or `args[1]` if only `*args` takes it."""
        if isinstance(where, str):
            return where
        if where < len(self.names):
            return self.names[where]
        return f"{self.extra or 'args'}[{where - len(self.names) + self.skipped}]"

    def path_without_kwargs(self, path: str) -> str:
        """A path in a guard, with `kwargs['x']` as `x`."""
        return re.sub(rf"^{self.keywords}\['(\w+)'\]", r"\1", path) if self.keywords else path

    def places_of(self, path: str) -> list[int | str]:
        """Positions or keywords that may pass the argument at the start of a path."""
        extra = re.match(rf"{self.extra}\[(\d+)\]", path) if self.extra else None
        if extra is not None:
            return [len(self.names) + int(extra[1]) - self.skipped]
        name = re.match(r"\w*", path)
        found = name[0] if name else ""
        return [self.names.index(found), found] if found in self.names else [found]


@dataclass(frozen=True)
class UsersCall:
    """The call in the user's source that led to a call of the explored function.

    `is_direct`: it calls the explored function itself. If it only gets the function as an argument, as
    in `tcompile.explore(f, x)`, `is_passed` is set. Otherwise, it calls code of a package that calls the function.
    """

    file: str
    node: ast.Call
    is_direct: bool
    is_passed: bool = False

    def argument(self, where: int | str) -> ast.expr | None:
        """The argument at a position or of a keyword; None if the call does not pass it, or is not direct."""
        if not self.is_direct:
            return None
        if isinstance(where, int):
            return self.node.args[where] if where < len(self.node.args) else None
        return next((each.value for each in self.node.keywords if each.arg == where), None)

    def code_of(self, where: int | str) -> str:
        """Code of an argument that can be read again: names, attributes and items of them; "" for anything else."""
        found = self.argument(where)
        is_plain = found is not None and all(isinstance(part, _PLAIN) for part in ast.walk(found))
        return ast.unparse(found) if found is not None and is_plain else ""

    def insert_above(self, lines: Sequence[str]) -> Edit | None:
        """An edit that inserts lines above the call's statement; None if another statement precedes it in its line."""
        source = source_of_file(self.file)
        statement = source.statement(self.node) if source else None
        is_simple = isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return)
        if statement is None or not is_simple:
            return None
        own = linecache.getline(self.file, statement.lineno)
        indent = own[: len(own) - len(own.lstrip())]
        if len(indent.encode()) != statement.col_offset:
            return None
        text = "\n".join([*(f"{indent}{line}" for line in lines), own.rstrip("\r\n")])
        return Edit(self.file, statement.lineno, statement.lineno, text)


def find_users_call(call: Call, known: Mapping[str, Any]) -> UsersCall | None:
    """Find the call in the user's source that led to `call`; `known` are the globals of the user's module."""
    site = next((frame for frame in reversed(call.site) if not is_installed(frame.file)), None)
    source = source_of_file(site.file) if site is not None else None
    if site is None or source is None:
        return None
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and covers(node, site.line)]
    direct = list(_direct_calls(calls, call, known))
    found = direct[0] if len(direct) == 1 else next(iter(calls), None)
    if found is None:
        return None
    is_passed = any(_is_function(_value_of(each, known), call) for each in found.args)
    return UsersCall(site.file, found, len(direct) == 1, is_passed)


def _direct_calls(calls: Sequence[ast.Call], call: Call, known: Mapping[str, Any]) -> Iterator[ast.Call]:
    """Yield the calls that may call the explored function itself: with as many arguments, and of no other function."""
    fits = [node for node in calls if _is_same_form(node, call)]
    values = {node: _value_of(node.func, known) for node in fits}
    sure = [node for node, value in values.items() if _is_function(value, call)]
    yield from sure or (node for node, value in values.items() if value is _UNKNOWN)


def _is_same_form(node: ast.Call, call: Call) -> bool:
    is_starred = any(isinstance(each, ast.Starred) for each in node.args)
    names = [each.arg for each in node.keywords]
    return not is_starred and len(node.args) == len(call.args) and sorted(map(str, names)) == sorted(call.kwargs)


def _is_function(value: Any, call: Call) -> bool:
    own = inner_function(call.fn) or call.fn
    module = getattr(own, "__self__", own)
    return value == call.fn or value == own or value is module or getattr(value, "__self__", None) is module


def _value_of(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of a dotted name in the user's module; `_UNKNOWN` if it is none, or a local variable."""
    match node:
        case ast.Name(id=name):
            return known.get(name, _UNKNOWN)
        case ast.Attribute(value=owner, attr=name):
            value = _value_of(owner, known)
            return _UNKNOWN if value is _UNKNOWN else getattr(value, name, _UNKNOWN)
    return _UNKNOWN
