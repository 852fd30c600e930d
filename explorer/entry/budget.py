"""Measure what a call costs, and check it against a baseline or limits."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from compiler.record import Record
from explorer.budget.baseline import (
    BaselineError,
    Entry,
    baseline_to_update,
    entry_of,
    machine,
    read_baseline,
    update_entry,
    write_baseline,
)
from explorer.budget.compare import Report, compare
from explorer.budget.metrics import Metric, metrics_of
from explorer.run.run import Run

TIMES: Final = frozenset({"compile_seconds", "run_seconds"})
MOST_ROUNDS: Final = 3
"""How often a call is measured at most before a time counts as a regression."""
ONE_GRAPH: Final = {"breaks": 0.0, "recompilations": 0.0}
"""Limits where neither a baseline nor limits are given."""


@dataclass(frozen=True)
class Terms:
    """What a call may cost. `baseline` is a file, `limits` go before it, `tolerances` allow more than it has.

    `call` says what was called, and with which options: a baseline of another call is refused.
    """

    name: str
    call: Mapping[str, Any] = field(default_factory=dict)
    baseline: Path | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    tolerances: Mapping[str, str] = field(default_factory=dict)
    all_code: bool = False


def check_terms(terms: Terms, torch_version: str, *, is_update: bool = False) -> Entry | None:
    """The entry to compare with, None without a baseline and for an update.

    Raises BaselineError if the baseline does not fit the call, or can't be updated. Call it before the code runs.
    """
    if terms.baseline is None:
        return None
    if is_update:
        baseline_to_update(terms.baseline, torch_version)
        return None
    found = read_baseline(terms.baseline, torch_version)
    entry = found.checks.get(terms.name)
    if entry is None:
        known = ", ".join(found.checks) or "nothing"
        raise BaselineError(f"{terms.baseline} has no {terms.name}, but {known}: --update adds it")
    other = sorted(key for key in {*entry.call, *terms.call} if entry.call.get(key) != terms.call.get(key))
    if other:
        differing = "; ".join(f"{key} {_word(entry.call.get(key))}, now {_word(terms.call.get(key))}" for key in other)
        raise BaselineError(f"{terms.baseline}: {terms.name} was made with other arguments: {differing}; --update")
    return entry


def _word(value: Any) -> str:
    return "none" if value in (None, [], {}) else str(value)


def report_on(run: Run, terms: Terms, entry: Entry | None, explore_again: Callable[[], Run]) -> Report:
    """Compare a run with what its call may cost.

    While only times regress, the call is measured again, and the best times count: another process may have been busy.
    """
    metrics = metrics_of(run.record, all_code=terms.all_code)
    for _ in range(MOST_ROUNDS):
        report = _compare(metrics, run.record, terms, entry)
        if report.holds or not {change.id for change in report.regressions} <= TIMES:
            return report
        metrics = _best_times(metrics, metrics_of(explore_again().record, all_code=terms.all_code))
    return _compare(metrics, run.record, terms, entry)


def _compare(metrics: Sequence[Metric], record: Record, terms: Terms, entry: Entry | None) -> Report:
    limits = terms.limits or (ONE_GRAPH if entry is None else {})
    return compare(terms.name, metrics, entry, limits, terms.tolerances, machine(record))


def _best_times(first: Sequence[Metric], second: Sequence[Metric]) -> tuple[Metric, ...]:
    again = {metric.name: metric for metric in second}
    return tuple(
        min(metric, again[metric.name], key=lambda each: each.value)
        if metric.name in TIMES and metric.name in again
        else metric
        for metric in first
    )


def update_baseline(run: Run, terms: Terms) -> Path:
    """Write what a run costs into the baseline; other calls in it stay, also those that other processes write."""
    assert terms.baseline is not None
    metrics = metrics_of(run.record, all_code=terms.all_code)
    version = run.record.environment.torch
    entry = entry_of(run.record, metrics, terms.call)
    key = hashlib.sha256(f"{os.environ.get('HOME')} {terms.baseline.resolve()}".encode()).hexdigest()[:16]
    with FileLock(Path(tempfile.gettempdir(), f"tcompile-{key}.lock")):
        merged = update_entry(terms.baseline, version, terms.name, entry, terms.tolerances)
        return write_baseline(terms.baseline, merged)
