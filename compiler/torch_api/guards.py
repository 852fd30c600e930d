"""A cache entry's guards: the condition, check time and failure count of each, and which ones fail now.

torch holds them as a tree of managers (`torch._C._dynamo.guards`), one for each value, with the checks on that value as
leaves. torch stops at the first failure; here all leaves are checked. After it has built the tree, torch times one
check of the whole tree with cold CPU caches (`profile_guard_manager`; the compilation metric `guard_latency_us`). At
the same moment and on the same values, each leaf is timed here.

In torch's wrapper around a module (`torch._dynamo.external_utils.wrap_inline`) the arguments are `args` and `kwargs`,
and the module is `fn`. Guards are renamed to the user's names: `self` and the parameters of forward.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo.guards import GlobalStateGuard

WRAPPER = "/torch/_dynamo/external_utils.py"
Names = Mapping[str, str]
"""torch's name of a local variable (`L['args'][0]`) -> its name in forward (`L['input']`)."""

_DUPLICATE = "Duplicate tensor found"
_MARKED = "'_dynamo_dynamic_indices')"
# Until torch 2.12 the text of an ID_MATCH guard shows the object instead of its type.
_SHOWN = re.compile(r"type=<(code object|built-in|function) .*", re.DOTALL)
_TYPES = {"code object": "code", "built-in": "builtin_function_or_method", "function": "function"}


def kind_of(guard: Any) -> str:
    """The kind of a leaf guard. NO_HASATTR guards on dimension marks (before torch 2.13) get their later name."""
    kind = type(guard).__name__
    marks = kind == "NO_HASATTR" and any(_MARKED in part for part in guard.verbose_code_parts())
    return "DIMENSION_DYNAMIC_MARKING_GUARD" if marks else kind


def with_types(parts: Iterable[str]) -> Iterator[str]:
    """Guard conditions as Python; an ID_MATCH shows the object's type, not the object."""
    for part in parts:
        condition, hashes, place = part.partition("  #")
        yield _SHOWN.sub(lambda match: f"type=<class '{_TYPES[match[1]]}'>", condition) + hashes + place


# These guards compare values with each other and keep state meanwhile, so they can't be checked one by one.
DICTS = "DictGuardManager"
RELATIONAL = ("NO_TENSOR_ALIASING", "OBJECT_ALIASING", "STORAGE_OVERLAPPING")


@dataclass(frozen=True, slots=True)
class FailedGuard:
    """One failing guard. `value` is the current value. `owner` is the function whose closure has `source`, or None.

    `of_module` is whether `source` is reached through an nn.Module.
    """

    kind: str
    source: str
    code: tuple[str, ...]
    value: Any
    owner: Any = None
    of_module: bool = False

    def rename(self, names: Names) -> FailedGuard:
        """Rename local variables in the guard."""
        code = tuple(rename(part, names) for part in self.code)
        return replace(self, source=rename(self.source, names), code=code)


DROPPED = "DROPPED"
"""The guard kind for a cache entry that torch dropped because a guarded object was deallocated."""
_GONE = re.compile(r"Cache line invalidated because (.*) got deallocated")


def dropped_entry(reason: str) -> list[FailedGuard]:
    """The failed guard of a dropped entry, if torch's `reason` names a deallocated object; else []."""
    found = _GONE.fullmatch(reason)
    return [FailedGuard(DROPPED, found[1], (), None)] if found else []


def global_state() -> str:
    """The global state that guards check (grad mode, autocast, default dtype …), as JSON."""
    return str(GlobalStateGuard().__getstate__())


def cache_entries(argument: Any) -> list[Any]:
    """Cache entries as a list; older torch releases pass a linked list."""
    if isinstance(argument, list | tuple):
        return list(argument)
    found = []
    while argument is not None:
        found.append(argument)
        argument = getattr(argument, "next", None)
    return found


def failed_guards(entry: Any, f_locals: Mapping[str, Any], lengths: Mapping[str, int]) -> list[FailedGuard]:
    """The guards of an entry that fail for a function's locals, in torch's order.

    `lengths` are the dict lengths that the entry checks, by source: these checks are no leaves of the tree.
    """
    wrapper = entry.guard_manager
    scope = {**(wrapper.closure_vars or {}), "L": dict(f_locals), "G": wrapper.global_scope["G"]}
    parts = wrapper.check_verbose(scope["L"]).verbose_code_parts
    # Only torch's own check detects duplicate tensors.
    same = [FailedGuard("NO_TENSOR_ALIASING", "", (part,), None) for part in parts if part.startswith(_DUPLICATE)]
    found = [*same, *_find_failing(wrapper.root, scope, lengths)]
    for guard in getattr(wrapper.root, "get_epilogue_lambda_guards", tuple)():
        found.extend(_false_parts(guard, scope))
    same_object = {tuple(guard.verbose_code_parts()): guard for guard in _same_object_guards(wrapper.root)}
    for guard in same_object.values():
        found.extend(_false_parts(guard, scope))
    return found


def _same_object_guards(manager: Any) -> Iterator[Any]:
    """Guards that two sources are the same object; torch 2.15 keeps them at both sources."""
    yield from (guard for guard in manager.get_leaf_guards() if type(guard).__name__ == "OBJECT_ALIASING")
    for child in children(manager):
        yield from _same_object_guards(child)


def length_check(source: str, length: int) -> str:
    """The check of a dict's length, as Python."""
    return f"len({source}) == {length}"


def _find_failing(
    manager: Any, scope: dict[str, Any], lengths: Mapping[str, int], *, of_module: bool = False
) -> Iterator[FailedGuard]:
    """Failing guards, depth first. Children are skipped if the value is absent or has another type.

    `of_module` is whether the manager's value is reached through an nn.Module.
    """
    source, value = source_of(manager), _value(manager, scope)
    guards = [guard for guard in manager.get_leaf_guards() if type(guard).__name__ not in RELATIONAL]
    if value is _ABSENT:
        if guards:
            yield FailedGuard("ABSENT", source, tuple(guards[0].verbose_code_parts()), None)
        return
    failing = [replace(guard, of_module=of_module) for guard in _find_failing_here(guards, source, value, scope)]
    if isinstance(value, dict) and len(value) != lengths.get(source, len(value)):
        failing.append(FailedGuard("DICT_LENGTH", source, (length_check(source, lengths[source]),), value))
    yield from failing
    if not any(guard.kind in ("TYPE_MATCH", "ID_MATCH", "NONE_MATCH", "CLASS_MATCH") for guard in failing):
        for child in children(manager):
            inside = of_module or isinstance(value, torch.nn.Module)
            yield from _find_failing(child, scope, lengths, of_module=inside)


def children(manager: Any) -> Iterator[Any]:
    """The child managers of a guard manager; for a dict also the managers of its keys and values."""
    pairs = manager.get_key_value_managers() if hasattr(manager, "get_key_value_managers") else {}
    for pair in pairs.values():
        yield from (child for child in pair if child is not None)
    yield from manager.get_child_managers()


def _find_failing_here(guards: list[Any], source: str, value: Any, scope: dict[str, Any]) -> Iterator[FailedGuard]:
    head, is_of_closure, _ = source.rpartition(".__closure__[")
    owner = eval(head, scope) if is_of_closure else None  # the function that owns the closure
    for guard in guards:
        if type(guard).__name__ == "LAMBDA_GUARD":
            yield from _false_parts(guard, scope)
        elif not guard(value):
            why = guard.check_verbose(value).verbose_code_parts if hasattr(guard, "check_verbose") else ()
            code = tuple(with_types((*guard.verbose_code_parts(), *why)))
            yield FailedGuard(kind_of(guard), source, code, value, owner)


def _false_parts(guard: Any, scope: dict[str, Any]) -> Iterator[FailedGuard]:
    """The false conditions of a lambda guard, which checks many sizes at once."""
    for part in guard.verbose_code_parts():
        condition = part.split("  #", 1)[0].strip()
        try:
            holds = eval(condition, scope)
        except Exception:  # noqa: BLE001, S112 - some conditions of a lambda guard are no Python expressions
            continue
        if not holds:
            yield FailedGuard("LAMBDA_GUARD", "", (part,), None)


ROUNDS, CALLS = 3, 10


@dataclass(frozen=True, slots=True)
class GuardFacts:
    """One leaf guard.

    `seconds` is the time of one check with warm caches; None if it can't be checked alone.
    `fails` counts the calls that failed at any guard on the same value: torch does not count per guard.
    `of_wrapper` marks guards on the arguments of torch's own wrapper around a module.
    """

    kind: str
    source: str
    code: tuple[str, ...]
    seconds: float | None = None
    fails: int = 0
    of_wrapper: bool = False

    def rename(self, names: Names) -> GuardFacts:
        code = tuple(rename(part, names) for part in self.code)
        of_wrapper = bool(names) and self.source in ("L['args']", "L['kwargs']")
        return replace(self, source=rename(self.source, names), code=code, of_wrapper=of_wrapper)


@dataclass(frozen=True, slots=True)
class GuardTree:
    """The guards of one compilation.

    `seconds` is torch's time of one check of the whole tree, with cold caches; None if torch did not time it.
    `lengths` are the dict lengths that the tree checks, by source.
    """

    guards: tuple[GuardFacts, ...]
    seconds: float | None = None
    lengths: dict[str, int] = field(default_factory=dict)

    def rename(self, names: Names) -> GuardTree:
        """Rename local variables in all guards."""
        return replace(self, guards=tuple(guard.rename(names) for guard in self.guards)) if names else self


def timed_tree(root: Any, f_locals: Mapping[str, Any], f_globals: Mapping[str, Any], microseconds: float) -> GuardTree:
    """The guards under `root`, each with its time; `microseconds` is torch's time of the whole tree.

    Calling a check from Python takes longer than most checks. The call overhead, estimated by the fastest check (it
    compares two pointers), is subtracted.
    """
    scope = {"L": f_locals, "G": f_globals}
    lengths: dict[str, int] = {}
    found = list(_leaves(root, lambda manager: _value(manager, scope), lengths))
    call = min((fact.seconds for fact in found if fact.seconds is not None), default=0.0)
    guards = (fact if fact.seconds is None else replace(fact, seconds=round(fact.seconds - call, 9)) for fact in found)
    return GuardTree(tuple(guards), microseconds * 1e-6, lengths)


def plain_tree(root: Any) -> GuardTree:
    """The guards under `root`, without times."""
    return GuardTree(tuple(_leaves(root, lambda _: _ABSENT, {})))


def count_failures(tree: GuardTree, root: Any) -> GuardTree:
    """A copy of the tree in which each guard has the number of calls that failed at its value."""
    fails = dict(_own_fails(root))
    return replace(tree, guards=tuple(replace(fact, fails=fails.get(fact.source, 0)) for fact in tree.guards))


_ABSENT = object()


def _leaves(manager: Any, value_of: Callable[[Any], Any], lengths: dict[str, int]) -> Iterator[GuardFacts]:
    value, source = value_of(manager), source_of(manager)
    for guard in manager.get_leaf_guards():
        yield _fact(guard, source, value)
    if type(manager).__name__ == DICTS and isinstance(value, dict):  # the length check is no leaf
        lengths[source] = len(value)
        yield GuardFacts("DICT_LENGTH", source, (length_check(source, len(value)),))
    for child in children(manager):
        yield from _leaves(child, value_of, lengths)
    for guard in getattr(manager, "get_epilogue_lambda_guards", tuple)():
        yield _fact(guard, source, value)


def _fact(guard: Any, source: str, value: Any) -> GuardFacts:
    seconds = _seconds(guard, value) if callable(guard) and value is not _ABSENT else None
    return GuardFacts(kind_of(guard), source, tuple(with_types(guard.verbose_code_parts())), seconds)


def _seconds(guard: Callable[[Any], bool], value: Any) -> float:
    """Time of one check in seconds, from the fastest round. The guard must be stateless."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            guard(value)
        best = min(best, time.perf_counter_ns() - start)
    return best / CALLS * 1e-9


def source_of(manager: Any) -> str:
    """The source that a manager guards, as Python: `L['x']`."""
    return str(manager.get_source()) if hasattr(manager, "get_source") else ""


def _value(manager: Any, scope: dict[str, Any]) -> Any:
    source = source_of(manager)
    if source in ("", "L"):
        return scope["L"]
    try:
        return eval(source, scope)
    except Exception:  # noqa: BLE001 - the user's __getattr__ may raise anything; some sources use torch's internal names
        return _ABSENT


def _own_fails(manager: Any) -> Iterator[tuple[str, int]]:
    """Failed calls by source: a manager's count minus the counts of its child managers."""
    below = list(children(manager))
    yield source_of(manager), max(0, _fails(manager) - sum(map(_fails, below)))
    for child in below:
        yield from _own_fails(child)


def _fails(manager: Any) -> int:
    return int(manager.fail_count()) if hasattr(manager, "fail_count") else 0


def forward_names(code: CodeType, f_locals: Mapping[str, Any]) -> Names:
    """The user's names for the locals of torch's wrapper around a module; {} for any other code."""
    module = f_locals.get("fn")
    if not code.co_filename.replace("\\", "/").endswith(WRAPPER) or not isinstance(module, torch.nn.Module):
        return {}
    return dict(_names(module, len(f_locals.get("args", ())), f_locals.get("kwargs", {})))


def _names(module: torch.nn.Module, count: int, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "L['fn']", "L['self']"
    parameters = inspect.signature(module.forward).parameters.values()
    positional = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    for index, name in zip(range(count), positional, strict=False):
        yield f"L['args'][{index}]", f"L['{name}']"
    for name in kwargs:
        yield f"L['kwargs']['{name}']", f"L['{name}']"


def rename(text: str, names: Names) -> str:
    """Replace torch's variable names in code by the user's."""
    if not names or "L['" not in text:
        return text
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)
