"""`status`: whether functions are compiled, or silently run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compiler.record.plain_text import one_line, pluralize
from explorer.reading.plain_text import clip, columns

if TYPE_CHECKING:
    from compiler.torch_api.function_states import FunctionState

State = Literal["compiled", "partly", "eager", "never called"]
_LIMITS = ("recompile limit", "cache limit", "cache_size_limit")
_REASON = 100


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """Whether a function is compiled.

    "compiled": one graph, in each compiled version. "partly": compiled up to a graph break, or new inputs run eagerly.
    "eager": torch.compile gave it up, or there is nothing to compile. "never called": not called under torch.compile
    since the process started, or since `torch._dynamo.reset()`. `versions` is the number of compiled versions, `breaks`
    the number of places at which its graphs end.
    """

    function: str
    file: str
    line: int
    state: State
    words: str
    versions: int = 0
    breaks: int = 0

    def __str__(self) -> str:
        return f"{self.function} ({Path(self.file).name}:{self.line}): {self.words}"


class Statuses(tuple[FunctionStatus, ...]):
    """Statuses of functions; prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self:
            return "torch.compile has compiled nothing in this process"
        rows = [(each.state, each.function, f"{Path(each.file).name}:{each.line}", each.words) for each in self]
        return "\n".join(line.rstrip() for line in columns([("state", "function", "where", ""), *rows]))


def status(*functions: Callable[..., Any]) -> Statuses:
    """Whether functions or modules are compiled, or silently fell back to eager mode.

    >>> tcompile.status(model)     # a function or a module, compiled or not
    >>> tcompile.status()          # all that torch.compile has seen in this process

    Read from torch's own state: nothing is called, compiled or changed. Raises TypeError for what has no Python code.
    """
    from compiler.torch_api.function_states import RESUME, code_of, function_states, state_of

    if functions:
        return Statuses(_status(state_of(function, _code(function, code_of(function)))) for function in functions)
    states = [state for state in function_states() if not state.code.co_name.startswith(RESUME)]
    return Statuses(map(_status, states))


def _code(function: Callable[..., Any], code: Any) -> Any:
    if code is None:
        raise TypeError(f"{function!r} has no Python code that torch.compile could compile")
    return code


def _status(state: FunctionState) -> FunctionStatus:
    from compiler.torch_api.function_states import resume_states

    code = state.code
    rest = resume_states(code) if state.broken else []
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    kind, words = _in_words(state, rest)
    return FunctionStatus(
        name, code.co_filename, code.co_firstlineno, kind, words, state.compiled, len(rest) or min(state.broken, 1)
    )


def _in_words(state: FunctionState, rest: Sequence[FunctionState]) -> tuple[State, str]:
    last = state.metrics[-1] if state.metrics else {}
    reason = clip(one_line(str(last.get("fail_reason") or "").partition("\n  Explanation:")[0]), _REASON)
    versions = pluralize(state.compiled, "version")
    if state.compiled and _is_limit(str(last.get("fail_reason"))):
        why = str(last.get("recompile_reason") or "").partition(": ")[2]
        again = f"; last: {clip(one_line(why), _REASON)}" if why else ""
        return "partly", f"fell back to eager at the recompile limit, after {versions}: new inputs run eagerly{again}"
    if state.broken:
        ended = "" if all(each.compiled for each in rest) else ", of which some run eagerly"
        parts = pluralize(max(1, len(rest)), "graph break")
        return "partly", f"compiled with {parts}{ended} ({versions})"
    if state.with_graph:
        return "compiled", f"compiled as one graph ({versions})"
    if state.compiled:
        return "eager", _without_graph(state, last)
    if reason and not state.is_shared:
        return "eager", f"given up, runs eagerly: {reason}"
    if state.is_shared and state.was_seen:
        return "eager", "not compiled: never called, or skipped (other modules with its code were called)"
    if state.was_seen:
        return "eager", "called under torch.compile, and skipped: it runs eagerly"
    return "never called", "never called under torch.compile"


def _without_graph(state: FunctionState, last: Mapping[str, Any]) -> str:
    """Why a function that was compiled has no graph. Modules share torch's code, and with it the reasons."""
    restarts = [] if state.is_shared else [str(reason) for reason in last.get("restart_reasons") or ()]
    if restarts:
        why = clip(restarts[-1].partition("\n")[0], _REASON)
        return f"no graph: it breaks before its first tensor operation: {why}"
    breaks = ", or it breaks before the first" if state.is_shared else ""
    return f"called, and it has no tensor operation to compile{breaks}"


def _is_limit(reason: str) -> bool:
    return any(words in reason for words in _LIMITS)
