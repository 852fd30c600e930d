"""Which guards of a cache entry fail for a call, all of them: torch itself stops at the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch._C._dynamo.guards import GlobalStateGuard

from compiler.torch_api.guard_texts import code_of, kind_of, with_types
from compiler.torch_api.wrapped_modules import Names, renamed

# They compare values with each other and keep state while they do: not to be asked one by one.
DICTS = "DictGuardManager"
RELATIONAL = ("NO_TENSOR_ALIASING", "OBJECT_ALIASING", "STORAGE_OVERLAPPING")


@dataclass(frozen=True, slots=True)
class FailedGuard:
    """One guard that does not hold. `value` is what is there now, `owner` what `source` is a part of."""

    kind: str
    source: str
    code: tuple[str, ...]
    value: Any
    owner: Any = None

    def renamed(self, names: Names) -> FailedGuard:
        """The guard with other names of local variables."""
        code = tuple(renamed(part, names) for part in self.code)
        return replace(self, source=renamed(self.source, names), code=code)


def global_state() -> str:
    """Grad mode, autocast, default dtype and so on as JSON, the form in which guards hold it."""
    return str(GlobalStateGuard().__getstate__())


def cache_entries(argument: Any) -> list[Any]:
    """Cache entries as a list; a chain of them in older releases."""
    if isinstance(argument, list | tuple):
        return list(argument)
    found = []
    while argument is not None:
        found.append(argument)
        argument = getattr(argument, "next", None)
    return found


def failed_guards(entry: Any, f_locals: Mapping[str, Any], lengths: Mapping[str, int]) -> list[FailedGuard]:
    """The guards of an entry that fail for these locals of the function, in the order in which torch checks them.
    `lengths` are what it asks of dicts, by source: that is no leaf of the tree of guards.
    """
    wrapper = entry.guard_manager
    scope = {**(wrapper.closure_vars or {}), "L": dict(f_locals), "G": wrapper.global_scope["G"]}
    found = [*_first(wrapper, scope), *_failing(wrapper.root, scope, lengths)]
    for guard in getattr(wrapper.root, "get_epilogue_lambda_guards", tuple)():
        found.extend(_false_parts(guard, scope))
    return found


def _first(wrapper: Any, scope: dict[str, Any]) -> Iterator[FailedGuard]:
    """What torch finds first, where only torch can: which tensors are the same."""
    for part in wrapper.check_verbose(scope["L"]).verbose_code_parts:
        if part.startswith("Duplicate tensor found"):
            yield FailedGuard("NO_TENSOR_ALIASING", "", (part,), None)


def length_check(source: str, length: int) -> str:
    """What is asked of a dict, as Python."""
    return f"len({source}) == {length}"


def _failing(manager: Any, scope: dict[str, Any], lengths: Mapping[str, int]) -> Iterator[FailedGuard]:
    """Depth first. What is not there, or is of another type, has no parts to look at."""
    source = str(manager.get_source()) if hasattr(manager, "get_source") else ""
    guards = [guard for guard in manager.get_leaf_guards() if type(guard).__name__ not in RELATIONAL]
    try:
        value = scope["L"] if source in ("", "L") else eval(source, scope)
    except Exception:  # noqa: BLE001 - the user's __getattr__ and __getitem__ may raise anything
        if guards:
            yield FailedGuard("ABSENT", source, tuple(guards[0].verbose_code_parts()), None)
        return
    failing = list(_failing_here(guards, source, value, scope))
    if isinstance(value, dict) and len(value) != lengths.get(source, len(value)):
        failing.append(FailedGuard("DICT_LENGTH", source, (length_check(source, lengths[source]),), value))
    yield from failing
    if not any(guard.kind in ("TYPE_MATCH", "ID_MATCH", "NONE_MATCH", "CLASS_MATCH") for guard in failing):
        for child in children(manager):
            yield from _failing(child, scope, lengths)


def children(manager: Any) -> Iterator[Any]:
    """The managers of a value's parts; of a dict those of its keys and values too."""
    pairs = manager.get_key_value_managers() if hasattr(manager, "get_key_value_managers") else {}
    for pair in pairs.values():
        yield from (child for child in pair if child is not None)
    yield from manager.get_child_managers()


def _failing_here(guards: list[Any], source: str, value: Any, scope: dict[str, Any]) -> Iterator[FailedGuard]:
    owner = _owner(source, scope)
    for guard in guards:
        if type(guard).__name__ == "LAMBDA_GUARD":
            yield from _false_parts(guard, scope)
        elif not guard(value):
            why = guard.check_verbose(value).verbose_code_parts if hasattr(guard, "check_verbose") else ()
            yield FailedGuard(kind_of(guard), source, (*code_of(guard), *with_types(why)), value, owner)


def _owner(source: str, scope: dict[str, Any]) -> Any:
    """The function whose closure a source looks into."""
    head, found, _ = source.rpartition(".__closure__[")
    return eval(head, scope) if found else None


def _false_parts(guard: Any, scope: dict[str, Any]) -> Iterator[FailedGuard]:
    """Sizes are guarded by one lambda for many conditions: those that are false now."""
    for part in guard.verbose_code_parts():
        condition = part.split("  #", 1)[0].strip()
        try:
            holds = eval(condition, scope)
        except Exception:  # noqa: BLE001, S112 - not all that a lambda checks is written as Python
            continue
        if not holds:
            yield FailedGuard("LAMBDA_GUARD", "", (part,), None)
