"""Outcomes of torch.compile's caches in a log, and which part of a cache key changed between two runs.

Inductor's FX graph cache logs the parts of its keys; AOTAutograd's cache logs the key alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from compiler.logs.compilations import Compilation, compilations_of
from compiler.logs.events import CACHE_EVENT, Event, Log
from compiler.logs.fingerprints import canonical

CACHES = {"fx_graph": "FX graph cache", "aotautograd": "AOTAutograd cache"}
_PART = re.compile(r"\[(?P<hash>\w+)\] (?P<name>[\w.\[\]]+): (?P<value>.*)", re.DOTALL)
_KINDS = (
    ("source", re.compile(r"gm$|example_inputs|fx_kwargs|user_defined")),
    ("configuration", re.compile(r"\w*config|\w*pass(es)?\b|cache_key_tag|precompile|provenance|_\w+")),
    ("version", re.compile(r"torch_version|triton|\w*version")),
    ("device", re.compile(r"system_info|cuda|device|gpu")),
)
"""Kinds of parts of a key, by their names; any other part is "environment"."""
_SHOWN = 160


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
    """A part of a cache key that changed: `kind` is "configuration", "source", "version", "device", "environment"."""

    kind: str
    name: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class CacheChange:
    """A look-up of the second run that missed, and the parts of its key that differ from the first run's.

    `changes` is empty if the keys are equal: then the cache had no entry for it, or was another cache.
    """

    now: CacheOutcome
    was: CacheOutcome
    changes: tuple[KeyChange, ...]


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


def compare_caches(first: Log, second: Log) -> tuple[CacheChange, ...]:
    """The look-ups of the second run that missed where the first run made the same look-up, with what changed."""
    was = {
        (one.cache, one.function, one.place, one.compile_id, one.number): one
        for one in _outcomes(first, compilations_of(first))
    }
    found: list[CacheChange] = []
    for now in _outcomes(second, compilations_of(second)):
        before = was.get((now.cache, now.function, now.place, now.compile_id, now.number))
        if before is not None and now.outcome == "miss":
            found.append(CacheChange(now, before, tuple(_changes(before, now))))
    return tuple(found)


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
    short = [line if len(line) <= _SHOWN else line[: _SHOWN - 2] + " …" for line in lines]
    return short[0], short[1]
