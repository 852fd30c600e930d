"""Try keywords of the user's call of a package, such as a static cache of `model.generate`: make that call again.

The explored function is a model, and the user calls a method of a package that calls the model often. So the whole call
is made again with the keywords, with the model compiled.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from compiler.calls.state import State, roots_of
from compiler.torch_api import apart
from compiler.torch_api.module_calls import pause_watching, redirect_calls
from compiler.xray.bench import Bench, repeatable
from compiler.xray.call_edits import UsersCall
from compiler.xray.causes import CauseSearch
from compiler.xray.outcomes import Outcome, run_and_hear
from compiler.xray.substitution import Edit

_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Load, ast.UnaryOp, ast.USub, ast.keyword)
STATIC_CACHE = 'cache_implementation="static", disable_compile=True'
"""Keywords of `generate` of transformers: a cache of fixed size, and no compilation by transformers itself."""


@dataclass(frozen=True)
class Remade:
    """The outcome of making the user's call again, and the numbers of compilations, recompilations and graph breaks."""

    outcome: Outcome
    compilations: int
    recompilations: int
    breaks: int


@dataclass(frozen=True)
class UserCallTrial:
    """Makes the user's call of a package again, with further keywords.

    `function`, `args` and `kwargs` are the values in the call; the function calls `model`.
    """

    found: CauseSearch
    called: UsersCall
    model: torch.nn.Module
    function: Any
    args: list[Any]
    kwargs: dict[str, Any]

    @classmethod
    def of_generate(cls, found: CauseSearch) -> UserCallTrial | None:
        """The trial of the user's call of `generate` of transformers; None if it is another call or not repeatable."""
        called, model = found.users_call, found.search.call.fn
        if called is None or called.is_direct or not isinstance(model, torch.nn.Module):
            return None
        known, node = found.search.names_in(called.file), called.node
        parts = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
        names = {str(keyword.arg) for keyword in node.keywords}
        is_plain = all(isinstance(each, _PLAIN) for part in parts for each in ast.walk(part))
        if not is_plain or names & {"None", "cache_implementation", "past_key_values"}:
            return None
        try:
            function, *args = (_value(each, known) for each in (node.func, *node.args))
            kwargs = {str(each.arg): _value(each.value, known) for each in node.keywords}
        except (NameError, LookupError, AttributeError, TypeError):
            return None
        is_of_package = str(getattr(function, "__module__", "")).startswith("transformers.")
        is_generate = is_of_package and getattr(function, "__name__", "") == "generate"
        is_of_model = getattr(function, "__self__", None) is model
        return cls(found, called, model, function, args, kwargs) if is_generate and is_of_model else None

    def run(self, keywords: str) -> Remade:
        """Make the call with further keywords, with the model compiled; restore everything afterwards."""
        search = self.found.search
        more = {str(each.arg): ast.literal_eval(each.value) for each in _keywords(keywords)}
        with ExitStack() as stack:
            restore = stack.enter_context(repeatable(search.call))
            stack.callback(State.of(roots_of(None, self.args, self.kwargs)).restore)
            stack.enter_context(pause_watching())
            counter = stack.enter_context(apart.forget_compilations())
            restore()
            bench = Bench(search.call, restore, search.limit)
            compiled = bench.compile_function(dynamic=search.record.options.dynamic)

            def make() -> Any:
                with bench.in_its_modes(), redirect_calls(self.model, compiled):
                    return self.function(*self.args, **self.kwargs, **more)

            outcome = run_and_hear([make], roots_of(self.model, self.args, self.kwargs))
        return Remade(outcome, counter.compilations, counter.recompilations, counter.breaks)

    def edit(self, keywords: str) -> Edit | None:
        """The edit that adds keywords to the user's call; None if its closing bracket is not found."""
        node = self.called.node
        first, last = node.lineno, node.end_lineno or node.lineno
        lines = [linecache.getline(self.called.file, number).rstrip("\r\n") for number in range(first, last + 1)]
        data, end = lines[-1].encode(), (node.end_col_offset or 0) - 1
        head = data[:end].decode().rstrip()
        if data[end : end + 1] != b")":
            return None
        comma = "" if head.endswith(("(", ",")) else ","
        space = "" if head.endswith("(") or not head else " "
        lines[-1] = f"{head}{comma}{space}{keywords}{data[end:].decode()}"
        return Edit(self.called.file, first, last, "\n".join(lines))


def _keywords(text: str) -> list[ast.keyword]:
    call = ast.parse(f"f({text})", mode="eval").body
    return call.keywords if isinstance(call, ast.Call) else []


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of a plain expression with the user's names."""
    return eval(compile(ast.Expression(node), "<an argument of the user's call>", "eval"), dict(known))
