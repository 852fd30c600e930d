"""Measured times of kernels, lines and candidates as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from compiler.record import HostTime, KernelTime, Record
from explorer.findings.timing.compared import Timed, timed_candidates
from explorer.findings.timing.heat import SIDES
from explorer.reading.data_frames import own_cells, table_of
from explorer.reading.kernel_table import weighted_share
from explorer.reading.provenance import place

UNMATCHED = "unmatched: "


def kernel_times(record: Record) -> pd.DataFrame:
    """One row per kernel and half of the call; in eager, one per device function, operator and source line.

    Compiled kernels come before eager kernels; within each side the longest come first. `us` is microseconds in one
    call, `share` is the fraction of the side's total.
    `bandwidth_percent` and `peak_percent` are the achieved percentages of the GPU's peak bandwidth and peak rate.

    A name starts with "unmatched: " if neither a kernel of the generated code nor a source line is known for it.
    """
    groups: dict[tuple[Any, ...], list[KernelTime]] = defaultdict(list)
    whole: dict[str, float] = defaultdict(float)
    for time in record.kernel_times:
        same = (time.kernel,) if time.kernel else (time.name, time.op, time.lines)
        groups[(time.side, time.half, time.device, *same)].append(time)
        whole[time.side] += time.seconds
    rows = [_kernel_row(times, whole[times[0].side]) for times in groups.values()]
    order = {side: -place for place, side in enumerate(SIDES)}
    return table_of("kernel_times", sorted(rows, key=lambda row: (order[row["side"]], -row["us"])))


def _kernel_row(times: Sequence[KernelTime], whole: float) -> dict[str, Any]:
    first = times[0]
    seconds = sum(time.seconds for time in times)
    moved, done = _sum([time.bytes for time in times]), _sum([time.flops for time in times])
    lines = dict.fromkeys(line for time in times for line in time.lines)
    return {
        "name": name_of(first),
        "side": first.side,
        "half": first.half,
        "us": 1e6 * seconds,
        "share": seconds / whole if whole else None,
        "launches": sum(time.launches for time in times),
        "where": "; ".join(map(place, lines)) or None,
        "bandwidth_percent": _percent(times, "memory_share"),
        "peak_percent": _percent(times, "compute_share"),
        "gb_per_second": moved / seconds / 1e9 if moved and seconds else None,
        "tflop_per_second": done / seconds / 1e12 if done and seconds else None,
        "bytes": moved,
        "flops": done,
        "op": first.op or None,
        "functions": "; ".join(dict.fromkeys(name for time in times for name in time.functions)) or None,
        "device": first.device,
        "id": first.kernel or None,
    }


def name_of(time: KernelTime) -> str:
    """A kernel's name; in a compiled call with the prefix "unmatched: " without a known generated kernel or line.

    Kernels of the optimizer have the prefix "optimizer: ", because they are not in generated code.
    """
    if time.half == "optimizer":
        return f"optimizer: {time.name}"
    is_known = time.side == "eager" or time.kernel or time.lines
    return time.name if is_known else f"{UNMATCHED}{time.name}"


def _sum(values: Sequence[int | None]) -> int | None:
    return sum(value or 0 for value in values) or None


def _percent(times: Sequence[KernelTime], share: str) -> float | None:
    value = weighted_share(times, share)
    return None if value is None else 100 * value


def line_times(record: Record) -> pd.DataFrame:
    """One row per line of Python, side (eager, compiled) and half of the call, longest first.

    `us` is the line's own time in microseconds, `total_us` includes the functions that the line calls. `share` is the
    fraction of `us` in its side's total.

    The time of a kernel that computes several lines is split equally among these lines. `where` is NA for time that
    belongs to no line.
    """
    whole: dict[str, float] = defaultdict(float)
    for time in record.line_times:
        whole[time.side] += time.seconds
    code = {entity.id: entity.label for entity in record.entities() if entity.kind == "line"}
    rows = [
        {
            "where": place(time.line) if time.line else None,
            "code": code.get(time.line),
            "side": time.side,
            "half": time.half,
            "us": 1e6 * time.seconds,
            "total_us": 1e6 * time.total,
            "share": time.seconds / whole[time.side] if whole[time.side] else None,
            "device": time.device,
            "id": time.line or None,
        }
        for time in sorted(record.line_times, key=lambda time: -time.seconds)
    ]
    return table_of("line_times", rows)


def timings(record: Record) -> pd.DataFrame:
    """One row per candidate (a way to run the call), with its measurements by `--time`.

    `seconds` is the median of one call, `low` and `high` are the quartiles. `speedup` is the ratio to eager by rounds,
    with the quartiles `speedup_low` and `speedup_high`. `break_even_calls` is the number of calls that make up for
    `compile_seconds`, NA unless the candidate is faster. `peak_bytes` is the peak memory of a call beyond the memory in
    use before it. `guard_seconds`, `wrapper_seconds` and `launch_seconds` are parts of the host time of a call,
    `gpu_seconds` is the time that the GPU was busy. `notes` say how reliable the times are, `problem` is the reason
    for missing times.
    """
    return table_of("timings", [candidate_row(item) for item in timed_candidates(record)])


def candidate_row(item: Timed) -> dict[str, Any]:
    found, ratio = item.candidate, item.ratio
    host = found.host or HostTime()
    return own_cells("timings", found) | {
        "speedup": ratio.value if ratio else None,
        "speedup_low": ratio.low if ratio else None,
        "speedup_high": ratio.high if ratio else None,
        "break_even_calls": item.break_even,
        "guard_seconds": host.guards,
        "wrapper_seconds": host.wrapper,
        "launch_seconds": host.launches,
        "gpu_seconds": host.gpu,
        "rounds": len(found.rounds),
    }
