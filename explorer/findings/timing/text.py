"""The measured candidates as plain text: results, a table, host time, notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from compiler.record import Candidate, HostTime, Measurement, Record
from compiler.record.plain_text import one_line, pluralize
from compiler.targets import is_virtual
from explorer.findings.timing.compared import Timed, by_call, timed_candidates
from explorer.findings.timing.estimates import estimate_text
from explorer.findings.timing.words import (
    Unit,
    device_text,
    lead_sentences,
    memory_text,
    pays_text,
    range_text,
    ratio_text,
    shared_unit,
    spread_text,
    time_text,
    unbroken,
    warnings,
)
from explorer.reading.plain_text import columns

HEAD = ("candidate", "a call", "quartiles", "speed-up", "compiling", "pays off", "memory")
SHORT = (0, 1, 3, 4, 5)
"""Indices of the columns of `HEAD` that a summary shows."""


def summary_lines(record: Record, width: int) -> list[str]:
    """Lines about the measured times, for the summary of a record."""
    groups = by_call(timed_candidates(record)) if record.candidates else []
    blocks = (line for group in groups for line in _block(group, record, width))
    warned = [line for warning in warnings(record) for line in _wrap(f"! {warning}", width)]
    return [*blocks, *warned, *_estimate(record, width)]


def _estimate(record: Record, width: int) -> list[str]:
    """Lines with the estimate for a virtual GPU; none for other targets."""
    if not record.candidates or not is_virtual(record.target):
        return []
    return _wrap(estimate_text(record), width)


def _block(group: Sequence[Timed], record: Record, width: int) -> Iterator[str]:
    yield from textwrap.wrap(heading(group, record), width, subsequent_indent="  ")
    for sentence in lead_sentences(group, record):
        yield from _wrap(sentence, width)
    yield from (f"  {line}" for line in table_lines(group, SHORT))


def _wrap(line: str, width: int) -> list[str]:
    lines = textwrap.wrap(unbroken(line), width, initial_indent="  ", subsequent_indent="    ")
    return [line.replace("\u00a0", " ") for line in lines]


def heading(group: Sequence[Timed], record: Record) -> str:
    """Heading of a group: the call, and the device it was timed on."""
    where = device_text(record.measurement) or group[0].candidate.device
    return f"time of one call ({group[0].candidate.what})" + (f" on {where}" if where else "")


def table_lines(group: Sequence[Timed], chosen: Sequence[int] = range(len(HEAD))) -> list[str]:
    """A line for each candidate; failed candidates come last, with the reason. `chosen` are indices into `HEAD`."""
    unit = shared_unit(group)
    measured = [cells(item, unit) for item in group if item.candidate.seconds is not None]
    failed = [item.candidate for item in group if item.candidate.seconds is None]
    rows = [tuple(row[column] for column in chosen) for row in (HEAD, *measured)]
    lines = columns(rows, right=range(1, len(HEAD))) if measured else []
    return [*lines, *(f"{candidate.name}: {failure_reason(candidate)}" for candidate in failed)]


def cells(item: Timed, unit: Unit | None) -> tuple[str, ...]:
    candidate = item.candidate
    against = f"{ratio_text(item.ratio)} ({range_text(item.ratio)})" if item.ratio else ""
    return (
        candidate.name,
        _time(candidate.seconds, unit),
        spread_text(candidate, unit),
        against,
        _time(candidate.compile_seconds),
        pays_text(item),
        memory_text(candidate),
    )


def failure_reason(candidate: Candidate) -> str:
    """Reason why a candidate has no times."""
    return f"not measured: {one_line(candidate.problem)}" if candidate.problem else "not measured"


def _time(seconds: float | None, unit: Unit | None = None) -> str:
    return "" if seconds is None else time_text(seconds, unit)


def method_lines(measured: Measurement | None, group: Sequence[Timed]) -> list[str]:
    """Lines about the method of measurement."""
    counts = [item.candidate for item in group if item.candidate.rounds]
    each = f"{len(counts[0].rounds)} rounds; calls a round: " if counts else ""
    calls = ", ".join(f"{candidate.name} {candidate.calls_a_round}" for candidate in counts)
    told = [measured.method, measured.left_out] if measured is not None else []
    return [*map(_sentence, filter(None, told)), *([each + calls] if counts else []), *_stream_lines(group)]


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}" + ("" if words.endswith(".") else ".")


def _stream_lines(group: Sequence[Timed]) -> list[str]:
    """A line with the times of back-to-back calls, if measured."""
    known = [(item.candidate.name, item.candidate.stream_seconds) for item in group if item.candidate.stream_seconds]
    times = ", ".join(f"{name} {time_text(seconds or 0, shared_unit(group))}" for name, seconds in known)
    return [f"in a stream of calls, the cache as the call before left it: {times}"] if known else []


PARTS = ("guards", "wrapper and Python", "launches", "the rest: kernels and wrapper", "GPU busy")
"""Parts of the time of a call. The first four are sequential on the host; the GPU runs concurrently."""


def parts_of(candidate: Candidate) -> tuple[float | None, ...]:
    """Seconds of each of `PARTS`, None if unknown. On a CPU, the rest is the call without guards, kernels included."""
    host = candidate.host or HostTime()
    is_split = host.wrapper is not None or candidate.seconds is None or host.guards is None
    rest = None if is_split else max(0.0, (candidate.seconds or 0) - (host.guards or 0))
    return host.guards, host.wrapper, host.launches, rest, host.gpu


def part_words(candidate: Candidate, unit: Unit | None = None) -> list[str]:
    """Format each known part with its share of the call: `guards 20 µs (2 %)`."""
    known = [(name, part) for name, part in zip(PARTS, parts_of(candidate), strict=True) if part is not None]
    whole = candidate.seconds or 0
    return [f"{name} {time_text(part, unit)}{_share(part, whole)}" for name, part in known]


def _share(part: float, whole: float) -> str:
    if not whole:
        return ""
    percent = 100 * part / whole
    return f" ({percent:.0f} %)" if percent >= 1 or not part else " (<1 %)"


COUNT_HEAD = ("", "graphs", "kernels", "launches a call")


def count_cells(found: Candidate) -> tuple[str, ...]:
    """Table row: a candidate's name, graphs, kernels, and launches per call; empty if the counts are unknown."""
    if (found.kernels, found.graphs) == (None, None):
        return ()
    return (found.name, *map(_count, (found.graphs, found.kernels, found.launches)))


def counted_parts(candidate: Candidate) -> list[str]:
    """Known counts of a candidate in words: `2 graphs`, `4 different kernels`, `6 launches a call`."""
    counts = ((candidate.graphs, "graph"), (candidate.kernels, "different kernel"), (candidate.launches, "launch"))
    words = [pluralize(count, name, "launches" if name == "launch" else "") for count, name in counts if count]
    return [*words[:-1], f"{words[-1]} a call"] if candidate.launches else words


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
