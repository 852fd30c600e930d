"""Compare metrics with a baseline or with limits: what regressed, what improved, and the places that are new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from compiler.record import Record
from compiler.record.plain_text import did_you_mean
from explorer.budget.baseline import BaselineError, Entry, names_of
from explorer.budget.metrics import WORDS, Metric, Place, metrics_of, place_changes

Verdict = Literal["same", "regressed", "improved", "not compared"]
TIME_TOLERANCE: Final = 0.25
"""Share by which a call may get slower, on top of the spread of the rounds."""
COMPILE_TOLERANCE: Final = 1.0
COMPILE_SECONDS: Final = 3.0
"""Seconds by which compiling may take longer, if that is more than its share."""
_LISTED_BY_DIFF: Final = frozenset({"breaks", "recompilations"})
_TOLERANCE = re.compile(r"(\d+(?:\.\d+)?)(%?)")


@dataclass(frozen=True, slots=True)
class Change:
    """One metric, before and after. `limit` is the most that is allowed; `note` says why it was not compared.

    `new` are places that the baseline does not have, `gone` the names of those that are no longer there. `id` is the
    metric's name.
    """

    id: str
    verdict: Verdict
    before: float | None
    after: float | None
    limit: float | None
    unit: str = ""
    new: tuple[Place, ...] = ()
    gone: tuple[str, ...] = ()
    note: str = ""

    @property
    def words(self) -> str:
        return WORDS[self.id]


@dataclass(frozen=True)
class Report:
    """The result of a check: the name of the call, and a change for each metric."""

    name: str
    changes: tuple[Change, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.verdict == "regressed")

    @property
    def holds(self) -> bool:
        """Whether nothing regressed."""
        return not self.regressions


def compare(
    name: str,
    metrics: Sequence[Metric],
    entry: Entry | None,
    limits: Mapping[str, float],
    tolerances: Mapping[str, str],
    machine: str,
) -> Report:
    """Compare metrics with an entry of a baseline, and with limits, which go first.

    A time is compared only on the machine that the baseline was made on.
    """
    found = {metric.name: metric for metric in metrics}
    known = {**(entry.tolerances if entry else {}), **tolerances}
    old = entry.metrics if entry else {}
    names = [each for each in WORDS if each in limits or each in old or (entry is not None and each in found)]
    return Report(name, tuple(_change(each, found.get(each), entry, limits, known, machine) for each in names))


def changes_between(before: Record, after: Record) -> tuple[Change, ...]:
    """The changes of all metrics between two records; what grows counts as regressed, without any tolerance."""
    old = _metrics_of_diff(before)
    entry = Entry({}, {each.name: each.value for each in old}, {each.name: names_of(each) for each in old})
    return compare("", _metrics_of_diff(after), entry, {}, {}, "").changes


def _metrics_of_diff(record: Record) -> list[Metric]:
    """All metrics; breaks and recompilations are those of all code, as a diff lists them all."""
    of_all_code = {each.name: each for each in metrics_of(record, all_code=True)}
    return [of_all_code[each.name] if each.name in _LISTED_BY_DIFF else each for each in metrics_of(record)]


def _change(
    name: str,
    metric: Metric | None,
    entry: Entry | None,
    limits: Mapping[str, float],
    tolerances: Mapping[str, str],
    machine: str,
) -> Change:
    before = entry.metrics.get(name) if entry is not None else None
    middle = before.get("median", 0.0) if isinstance(before, dict) else before
    if metric is None:
        return Change(name, "not compared", middle, None, limits.get(name), note="it was not measured this time")
    new, gone = place_changes((entry.places.get(name, []) if entry else []), metric.places)
    if entry is not None and name == "graphs":
        new, gone = [], []
    if name in limits:
        limit = limits[name]
    elif middle is None:
        return Change(name, "not compared", None, metric.value, None, metric.unit, note="the baseline lacks it")
    elif isinstance(before, dict):
        return _time_change(metric, before, tolerances.get(name, ""), entry.machine if entry else "", machine)
    else:
        limit = middle + allowance(tolerances.get(name, "0"), middle)
    verdict: Verdict = "regressed" if metric.value > limit else "same"
    if verdict == "same" and middle is not None and metric.value < middle:
        verdict = "improved"
    shown = tuple(new) if verdict == "regressed" else ()
    return Change(name, verdict, middle, metric.value, limit, metric.unit, shown, tuple(gone))


def allowance(tolerance: str, value: float) -> float:
    """What a tolerance allows on top of a value: `2`, or `5%` of it. Raises BaselineError for another text."""
    found = _TOLERANCE.fullmatch(tolerance.strip())
    if found is None:
        raise BaselineError(f"{tolerance!r} is no tolerance: write a number (2) or a share (5%)")
    return float(found[1]) / 100 * value if found[2] else float(found[1])


def _time_change(metric: Metric, before: Mapping[str, float], tolerance: str, was_on: str, machine: str) -> Change:
    """Compare a time: it regressed if it is slower by more than the tolerance, and by more than the noise.

    The time of a call also has to be slower relative to eager mode, which was timed in the same rounds.
    """
    middle = before.get("median", 0.0)
    if was_on != machine:
        note = f"the baseline was timed on another machine: {was_on}"
        return Change(metric.name, "not compared", middle, metric.value, None, metric.unit, note=note)
    default = TIME_TOLERANCE * middle
    if metric.name == "compile_seconds":
        default = max(COMPILE_TOLERANCE * middle, COMPILE_SECONDS)
    limit = middle + (allowance(tolerance, middle) if tolerance else default)
    is_above_noise = (metric.low or metric.value) > before.get("high", middle)
    of_eager = before.get("of_eager")
    is_relative = of_eager is None or metric.eager is None or metric.eager > of_eager * limit / (middle or 1.0)
    is_slower = metric.value > limit and is_above_noise and is_relative
    is_faster = metric.high is not None and metric.high < before.get("low", middle)
    verdict: Verdict = "regressed" if is_slower else "improved" if is_faster else "same"
    return Change(metric.name, verdict, middle, metric.value, limit, metric.unit)


def parse_limits(texts: Sequence[str]) -> dict[str, float]:
    """Limits from `kernels=3`. Raises BaselineError for an unknown metric, or without a number from 0 on."""
    found = {}
    for name, text in _name_and_text(texts):
        try:
            found[name] = float(text)
        except ValueError:
            raise BaselineError(f"{name}={text}: {text!r} is no number") from None
        if not found[name] >= 0:
            raise BaselineError(f"{name}={text}: a limit is a number from 0 on")
    return found


def parse_tolerances(texts: Sequence[str]) -> dict[str, str]:
    """Tolerances from `kernels=2` or `bytes_moved=5%`. Raises BaselineError."""
    found = dict(_name_and_text(texts))
    for text in found.values():
        allowance(text, 1.0)
    return found


def _name_and_text(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for part in (part for text in texts for part in text.split(",")):
        name, _, value = part.partition("=")
        if name not in WORDS:
            meant = did_you_mean(name, WORDS) or f"; they are: {', '.join(WORDS)}"
            raise BaselineError(f"no metric {name!r}{meant}")
        yield name, value
