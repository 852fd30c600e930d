"""Outcomes of torch.compile's caches in a log, and which part of a cache key changed between two runs.

Inductor's FX graph cache logs the parts of its keys; AOTAutograd's cache logs the key alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from compiler.logs.changes import changed_values, settings_in, shared_changes
from compiler.logs.compilations import Compilation, compilations_of
from compiler.logs.events import CACHE_EVENT, Event, Log
from compiler.logs.fingerprints import RankFacts, cache_folders, canonical, facts_of

CACHES = {"fx_graph": "FX graph cache", "aotautograd": "AOTAutograd cache"}
_PART = re.compile(r"\[(?P<hash>\w+)\] (?P<name>[\w.\[\]]+): (?P<value>.*)", re.DOTALL)
_KINDS = (
    ("source", re.compile(r"gm$|fx_kwargs|user_defined")),
    ("input", re.compile(r"example_inputs")),
    ("configuration", re.compile(r"\w*config|\w*settings|\w*pass(es)?\b|cache_key_tag|precompile|provenance|_\w+")),
    ("version", re.compile(r"torch_version|triton|\w*version")),
    ("device", re.compile(r"system_info|cuda|device|gpu")),
)
"""Kinds of parts of a key, by their names; any other part is "environment"."""
_SHOWN = 90
_REMOTE = (
    ("fx_graph", "inductor_config", "fx_graph_remote_cache", "inductor_fx_remote_cache"),
    ("aotautograd", "functorch_config", "enable_remote_autograd_cache", "aotautograd_remote_cache"),
)
"""Of each remote cache: its name, the setting that asks for it and where it is logged, the metrics of its look-ups."""


@dataclass(frozen=True, slots=True)
class CacheOutcome:
    """One look-up: `outcome` is "hit", "miss" or "bypass", and `why` the reason of a bypass.

    `number` counts the look-ups of a compilation in this cache; the backward of a graph is the second.
    """

    cache: str
    outcome: str
    compile_id: str
    function: str
    place: str
    number: int
    key: str
    why: str
    parts: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A part of a cache key that changed: `kind` is one of `_KINDS`, or "environment"."""

    kind: str
    name: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class CacheChange:
    """A look-up of the second run that missed or was bypassed, and the parts of its key that differ from the first's.

    `changes` is empty if the keys are equal, and for AOTAutograd's cache, which logs no parts of its keys.
    """

    now: CacheOutcome
    was: CacheOutcome
    changes: tuple[KeyChange, ...]

    @property
    def has_same_key(self) -> bool:
        """Whether the cache had no entry for an unchanged key: it was empty, or another cache."""
        return bool(self.now.key) and self.now.key == self.was.key


@dataclass(frozen=True, slots=True)
class CacheComparison:
    """The caches of a second run compared with those of a first: `lookups` are all look-ups of the second.

    `unmatched` are misses and bypasses of look-ups that the first run did not make. `process` are the versions,
    settings and environment variables that differ; not all of them are parts of a key. `folders` are the folders of
    Inductor's cache in both runs.
    """

    lookups: tuple[CacheOutcome, ...]
    changes: tuple[CacheChange, ...]
    unmatched: tuple[CacheOutcome, ...]
    process: tuple[KeyChange, ...]
    folders: tuple[frozenset[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class RemoteCache:
    """A remote cache that was asked for, and its look-ups in a log: none, if no server was found."""

    cache: str
    hits: int
    misses: int


def cache_outcomes(log: Log, compilations: Iterable[Compilation]) -> tuple[CacheOutcome, ...]:
    """All look-ups of a log with these compilations, in order, without the parts of their keys."""
    return tuple(_outcomes(log, compilations, with_parts=False))


def _outcomes(log: Log, compilations: Iterable[Compilation], *, with_parts: bool = True) -> Iterator[CacheOutcome]:
    of = {one.compile_id: one for one in compilations}
    counts: dict[tuple[str, str], int] = {}
    for event in log.events_of("artifact"):
        if (found := CACHE_EVENT.fullmatch(event.name)) is None:
            continue
        values, compiled = _payload(event), of.get(event.compile_id)
        parts = _parts(values.get("components")) if with_parts else ()
        number = counts[found[1], event.compile_id] = counts.get((found[1], event.compile_id), 0) + 1
        function, place = (compiled.function, compiled.place) if compiled is not None else ("", "")
        yield CacheOutcome(
            found[1], found[2], event.compile_id, function, place, number - 1, str(values.get("key") or ""),
            str(values.get("cache_bypass_reason") or ""), dict(parts),
        )  # fmt: skip


def _payload(event: Event) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(event.payload_raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _parts(components: object) -> Iterator[tuple[str, tuple[str, str]]]:
    for text in components if isinstance(components, list) else ():
        if isinstance(text, str) and (found := _PART.match(text)):
            yield found["name"], (found["hash"], found["value"])


def remote_caches(log: Log) -> Iterator[RemoteCache]:
    """The remote caches that a log's settings ask for."""
    metrics = [event.fields for event in log.events_of("compilation_metrics") if isinstance(event.fields, dict)]
    for cache, source, setting, counted in _REMOTE:
        asked = any(f'"{setting}": true' in str(each.get(source)) for each in metrics)
        if asked:
            hits, misses = (
                sum(_count(each.get(f"{counted}_{outcome}_count")) for each in metrics) for outcome in ("hit", "miss")
            )
            yield RemoteCache(cache, hits, misses)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def compare_caches(first: Log, second: Log) -> CacheComparison:
    """Why look-ups of the second run missed or were bypassed where the first run made the same look-up."""
    was = {_identity(one): one for one in _outcomes(first, compilations_of(first))}
    lookups: list[CacheOutcome] = []
    changes: list[CacheChange] = []
    unmatched: list[CacheOutcome] = []
    facts = facts_of(first, 0), facts_of(second, 0)
    versions = shared_changes(facts[0].versions, facts[1].versions)
    for now in _outcomes(second, compilations_of(second)):
        lookups.append(replace(now, parts={}))
        before = was.get(_identity(now))
        if before is None and now.outcome != "hit":
            unmatched.append(lookups[-1])
        elif before is not None and (now.outcome == "miss" or now.outcome == "bypass" != before.outcome):
            found = tuple(_with_version(each, versions) for each in _changes(before, now))
            changes.append(CacheChange(lookups[-1], replace(before, parts={}), found))
    folders = frozenset(_folders(facts[0])), frozenset(_folders(facts[1]))
    return CacheComparison(tuple(lookups), tuple(changes), tuple(unmatched), tuple(_process_changes(*facts)), folders)


def _identity(one: CacheOutcome) -> tuple[object, ...]:
    return one.cache, one.function, one.place, one.compile_id, one.number


def _with_version(change: KeyChange, versions: Iterable[tuple[str, str, str]]) -> KeyChange:
    """A change of a version's hash, which says nothing, with the versions that the logs have."""
    if change.kind != "version" or change.was or change.now:
        return change
    name, was, now = next(iter(versions), ("", "", ""))
    return replace(change, was=f"{name} {was}".strip(), now=f"{name} {now}".strip())


def _process_changes(a: RankFacts, b: RankFacts) -> Iterator[KeyChange]:
    for change in shared_changes(a.versions, b.versions):
        yield KeyChange("version", *change)
    if a.environment is not None and b.environment is not None:
        for change in changed_values(a.environment, b.environment):
            yield KeyChange("environment", *change)
    seen: set[str] = set()
    for key, one in a.compilations.items():
        other = b.compilations.get(key)
        if other is None or one.configs == other.configs:
            continue
        both = one.configs.keys() & other.configs.keys()
        for change in sorted(shared_changes(settings_in(one, both), settings_in(other, both))):
            if change[0] not in seen:
                seen.add(change[0])
                yield KeyChange("configuration", change[0], *map(_short, change[1:]))


def _folders(facts: RankFacts) -> Iterator[str]:
    for compiled in facts.compilations.values():
        yield from cache_folders(compiled)


def _changes(was: CacheOutcome, now: CacheOutcome) -> Iterator[KeyChange]:
    for name in dict.fromkeys((*was.parts, *now.parts)):
        before, after = was.parts.get(name, ("", "")), now.parts.get(name, ("", ""))
        if before[0] != after[0]:
            kind = next((kind for kind, names in _KINDS if names.match(name)), "environment")
            yield KeyChange(kind, name, *_first_difference(before[1], after[1]))


def _first_difference(before: str, after: str) -> tuple[str, str]:
    """The first line in which two values differ, from each value, shortened."""
    if "\ufffd" in before + after:
        return "", ""
    left, right = canonical(before).splitlines() or [""], canonical(after).splitlines() or [""]
    pairs = zip(left, right, strict=False)
    first = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
    lines = (side[first].strip() if first < len(side) else "" for side in (left, right))
    one, other = map(_short, lines)
    return one, other


def _short(line: str) -> str:
    return line if len(line) <= _SHOWN else line[: _SHOWN - 2] + " …"
