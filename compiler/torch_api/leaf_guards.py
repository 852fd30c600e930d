"""The guards of a cache entry: what each checks, how long that takes, how often it has failed.

torch holds them as a tree of managers (`torch._C._dynamo.guards`), one for each value, with the checks on that value
as leaves. It measures one thing itself, when it has made the tree: one check of all of it, with the CPU's caches
emptied before (`profile_guard_manager`; the compilation metric `guard_latency_us`). Each leaf is timed here, at the
same moment and on the same values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.torch_api.guard_failures import DICTS, children, length_check
from compiler.torch_api.guard_texts import code_of, kind_of
from compiler.torch_api.wrapped_modules import Names, renamed

ROUNDS, CALLS = 3, 10


@dataclass(frozen=True, slots=True)
class GuardFacts:
    """One leaf guard. `seconds` is what one check takes, the value at hand and all caches warm; None where it can't be
    checked alone. `fails` is how many calls have failed at its value, whichever of the checks on it: torch counts no
    further. `of_wrapper` marks checks on how torch's own wrapper around a module was called.
    """

    kind: str
    source: str
    code: tuple[str, ...]
    seconds: float | None = None
    fails: int = 0
    of_wrapper: bool = False

    def renamed(self, names: Names) -> GuardFacts:
        code = tuple(renamed(part, names) for part in self.code)
        of_wrapper = bool(names) and self.source in ("L['args']", "L['kwargs']")
        return replace(self, source=renamed(self.source, names), code=code, of_wrapper=of_wrapper)


@dataclass(frozen=True, slots=True)
class GuardTree:
    """The guards of one compilation. `seconds` is one check of all of them as torch measured it, caches cold; None
    where it did not. `lengths` are those that it asks of dicts, by source.
    """

    guards: tuple[GuardFacts, ...]
    seconds: float | None = None
    lengths: dict[str, int] = field(default_factory=dict)

    def renamed(self, names: Names) -> GuardTree:
        """The tree with other names of local variables."""
        return replace(self, guards=tuple(guard.renamed(names) for guard in self.guards)) if names else self


def timed_tree(root: Any, f_locals: Mapping[str, Any], f_globals: Mapping[str, Any], microseconds: float) -> GuardTree:
    """The guards under `root` with what each takes. The call of a check from Python takes longer than most checks: it
    is taken to be what the fastest takes (two pointers compared), and left out.
    """
    scope = {"L": f_locals, "G": f_globals}
    lengths: dict[str, int] = {}
    found = list(_leaves(root, lambda manager: _value(manager, scope), lengths))
    call = min((fact.seconds for fact in found if fact.seconds is not None), default=0.0)
    guards = (fact if fact.seconds is None else replace(fact, seconds=round(fact.seconds - call, 9)) for fact in found)
    return GuardTree(tuple(guards), microseconds * 1e-6, lengths)


def plain_tree(root: Any) -> GuardTree:
    """The guards under `root`, not timed."""
    return GuardTree(tuple(_leaves(root, lambda _: _ABSENT, {})))


def counted(tree: GuardTree, root: Any) -> GuardTree:
    """The tree with how often a call has failed at each value by now."""
    fails = dict(_own_fails(root))
    return replace(tree, guards=tuple(replace(fact, fails=fails.get(fact.source, 0)) for fact in tree.guards))


_ABSENT = object()


def _leaves(manager: Any, value_of: Callable[[Any], Any], lengths: dict[str, int]) -> Iterator[GuardFacts]:
    value, source = value_of(manager), source_of(manager)
    for guard in manager.get_leaf_guards():
        yield _fact(guard, source, value)
    if type(manager).__name__ == DICTS and isinstance(value, dict):  # a check that is no leaf
        lengths[source] = len(value)
        yield GuardFacts("DICT_LENGTH", source, (length_check(source, len(value)),))
    for child in children(manager):
        yield from _leaves(child, value_of, lengths)
    for guard in getattr(manager, "get_epilogue_lambda_guards", tuple)():
        yield _fact(guard, source, value)


def _fact(guard: Any, source: str, value: Any) -> GuardFacts:
    seconds = _seconds(guard, value) if callable(guard) and value is not _ABSENT else None
    return GuardFacts(kind_of(guard), source, code_of(guard), seconds)


def _seconds(guard: Callable[[Any], bool], value: Any) -> float:
    """The fastest of some rounds. Guards that remember what they were shown can't be called, and are not."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            guard(value)
        best = min(best, time.perf_counter_ns() - start)
    return best / CALLS * 1e-9


def source_of(manager: Any) -> str:
    """What a manager guards, as Python: `L['x']`."""
    return str(manager.get_source()) if hasattr(manager, "get_source") else ""


def _value(manager: Any, scope: dict[str, Any]) -> Any:
    source = source_of(manager)
    if source in ("", "L"):
        return scope["L"]
    try:
        return eval(source, scope)
    except Exception:  # noqa: BLE001 - the user's __getattr__ may raise anything; torch has names of its own in some
        return _ABSENT


def _own_fails(manager: Any) -> Iterator[tuple[str, int]]:
    """A manager counts the calls that failed at its value or below it: less those below, they failed here."""
    below = list(children(manager))
    yield source_of(manager), max(0, _fails(manager) - sum(map(_fails, below)))
    for child in below:
        yield from _own_fails(child)


def _fails(manager: Any) -> int:
    return int(manager.fail_count()) if hasattr(manager, "fail_count") else 0
