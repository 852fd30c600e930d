"""A baseline: the metrics of calls in a JSON file that is reviewed and kept with the code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from compiler.record import Record
from explorer.budget.metrics import WORDS, Metric
from explorer.run.files import replace_file

SCHEMA: Final = 1
MOST_BYTES: Final = 50_000_000


class BaselineError(ValueError):
    """Raised for a baseline that is missing, damaged, or made under other conditions; the message is one line."""


class OtherTorchError(BaselineError):
    """Raised for a baseline that another version of torch made."""


@dataclass(frozen=True)
class Entry:
    """What one call cost when the baseline was made. `call` says what was called, `machine` where it was timed.

    `metrics` has a number for each count, and `{"median": …, "low": …, "high": …}` for times. `places` are the names of
    the places behind a count. `tolerances` allow more: `{"kernels": "2", "bytes_moved": "5%"}`.
    """

    call: dict[str, Any]
    metrics: dict[str, int | float | dict[str, float]]  # int too: what is read is written again as it was
    places: dict[str, list[str]] = field(default_factory=dict)
    tolerances: dict[str, str] = field(default_factory=dict)
    machine: str = ""


@dataclass(frozen=True)
class Baseline:
    """All entries of a file, by the name of the call, and the torch that they were made with."""

    torch: str
    checks: dict[str, Entry] = field(default_factory=dict)
    schema: int = SCHEMA


def read_baseline(path: Path, torch_version: str) -> Baseline:
    """Read a baseline. Raises BaselineError if it is missing, damaged, or of another torch."""
    if not path.exists():
        raise BaselineError(f"there is no baseline {str(path)!r}: --update makes it")
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise BaselineError(f"{path} is no baseline")
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BaselineError(f"{path} is no baseline of tcompile: {' '.join(str(error).split())}") from None
    if found.schema != SCHEMA:
        raise BaselineError(f"{path} has schema {found.schema}; this version of tcompile reads schema {SCHEMA}")
    if public(found.torch) != public(torch_version):
        raise OtherTorchError(
            f"{path} was made with torch {found.torch}, and this is {torch_version}: make it again with --update"
        )
    return found


def public(version: str) -> str:
    """A version without the build: `2.13.0` for `2.13.0+cpu`."""
    return version.partition("+")[0]


def entry_of(record: Record, metrics: Iterable[Metric], call: Mapping[str, Any]) -> Entry:
    """The entry of a call."""
    metrics = list(metrics)
    places = {each.name: names_of(each) for each in metrics if each.places}
    places.pop("graphs", None)
    return Entry(dict(call), {each.name: _value(each) for each in metrics}, places, {}, machine(record))


def names_of(metric: Metric) -> list[str]:
    """The names of a metric's places, sorted."""
    return sorted(place.what for place in metric.places)


def machine(record: Record) -> str:
    """What times depend on: processor or GPU, and the number of threads."""
    known = record.environment
    return f"{known.gpu or known.processor or known.platform}, {known.cores} cores, {known.threads} threads"


def _value(metric: Metric) -> float | dict[str, float]:
    if metric.unit != "seconds":
        return int(metric.value)
    parts = {"median": metric.value, "low": metric.low, "high": metric.high, "of_eager": metric.eager}
    return {name: float(f"{each:.4g}") for name, each in parts.items() if each is not None}


def baseline_to_update(path: Path, torch_version: str) -> Baseline:
    """The baseline that an update adds to; without entries, if there is none or another torch made it.

    Raises BaselineError for a file that is no baseline: it is not overwritten.
    """
    if not path.exists():
        return Baseline(torch_version)
    try:
        return read_baseline(path, torch_version)
    except OtherTorchError:
        return Baseline(torch_version)
    except BaselineError as error:
        raise BaselineError(f"{error}; it is not overwritten: remove it, or name another file") from None


def update_entry(
    path: Path, torch_version: str, name: str, entry: Entry, tolerances: Mapping[str, str] | None = None
) -> Baseline:
    """The baseline of a file with one entry replaced, which keeps its tolerances; `tolerances` are added."""
    old = baseline_to_update(path, torch_version)
    kept = old.checks[name].tolerances if name in old.checks else {}
    new = replace(entry, tolerances={**kept, **(tolerances or {})})
    return replace(old, torch=torch_version, checks={**old.checks, name: new})


def write_baseline(path: Path, baseline: Baseline) -> Path:
    """Write a baseline, sorted, one number or place a line, for reviews."""
    data = msgspec.to_builtins(baseline)
    order = list(WORDS)
    for entry in data["checks"].values():
        for part in ("metrics", "places", "tolerances"):
            entry[part] = {name: entry[part][name] for name in sorted(entry[part], key=_rank(order))}
    data["checks"] = dict(sorted(data["checks"].items()))
    return replace_file(path, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())


def _rank(order: Sequence[str]) -> Any:
    return lambda name: (order.index(name) if name in order else len(order), name)
