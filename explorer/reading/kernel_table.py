"""The kernels of a record as table rows: Inductor's facts, profiled times, and statistics of their binaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.record import Binary, Kernel, KernelTime, Record
from compiler.record.plain_text import size_text
from explorer.reading.shapes import seconds_text

Fact = Callable[[Kernel, Binary | None], int | float | str | None]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the kernel list. `unit` is "bytes", "bits", "percent", "seconds" or ""."""

    title: str
    about: str
    fact: Fact
    unit: str = ""


def fact_text(value: float | str | None, unit: str) -> str:
    """Format a fact with its unit: `1.5 KiB`, `12 µs`, `87.5 %`; "" for None."""
    if value is None or isinstance(value, str):
        return value or ""
    written = {"bytes": size_text, "seconds": seconds_text}.get(unit)
    return written(value) if written else f"{value:,} {'%' if unit == 'percent' else unit}".strip()


def occupancy_percent(binary: Binary) -> float | None:
    return None if binary.occupancy is None else round(100 * binary.occupancy, 1)


def bound_microseconds(binary: Binary) -> float | None:
    """Lower bound on the time of one launch, in microseconds, to three digits."""
    return None if binary.bound_seconds is None else float(f"{1e6 * binary.bound_seconds:.3g}")


def _of_binary(fact: Callable[[Binary], int | float | str | None]) -> Fact:
    return lambda _, binary: None if binary is None else fact(binary)


def _lines(kernel: Kernel, _: Binary | None) -> int:
    return kernel.lines[1] - kernel.lines[0] + 1


KERNEL_COLUMNS = (
    Column("Kernel", "Name of the generated function, or of the extern call", lambda kernel, _: kernel.name),
    Column("Launches", "Times that one run of the graph launches or calls it", lambda kernel, _: kernel.calls),
    Column(
        "Bytes", "Read and written in one call, as Inductor counts", lambda kernel, _: kernel.bytes or None, "bytes"
    ),
)
BINARY_COLUMNS = (
    Column("Registers", "Registers of one thread, 32 bits each", _of_binary(lambda binary: binary.registers)),
    Column("Spills", "Bytes that one thread spills to memory", _of_binary(lambda binary: binary.spill_bytes), "bytes"),
    Column("Shared", "Shared memory of one block", _of_binary(lambda binary: binary.shared_memory), "bytes"),
    Column(
        "Occupancy",
        "Resident warps over the most that a multiprocessor holds",
        _of_binary(occupancy_percent),
        "percent",
    ),
    Column("Limit", "What keeps the occupancy there", _of_binary(lambda binary: binary.limiter or None)),
    Column(
        "Widest load",
        "Widest load from global memory by one thread",
        _of_binary(lambda binary: binary.load_bits),
        "bits",
    ),
    Column(
        "Least time",
        "Estimate: the least time that the GPU's peak rates allow for one launch",
        _of_binary(lambda binary: binary.bound_seconds),
        "seconds",
    ),
)
LAST_COLUMNS = (
    Column("Kind", "What kind of loop it is", lambda kernel, _: kernel.category),
    Column("Graph", "The graph that calls it", lambda kernel, _: half(kernel)),
    Column("Lines", "Lines of generated code", _lines),
)


def list_of_kernels(record: Record) -> dict[str, Any] | None:
    """Data of the front end's kernel list: columns, and rows with the entity id to select; None without kernels."""
    if not record.kernels:
        return None
    of_kernel = binaries_of(record)
    sides = {artifact.id: artifact.attrs["side"] for artifact in record.artifacts if "side" in artifact.attrs}
    side = Column("Side", "Which of the two runs", lambda kernel, _: sides.get(kernel.artifact))
    columns = (
        *KERNEL_COLUMNS,
        *((side,) if sides else ()),
        *time_columns(record),
        *(BINARY_COLUMNS if of_kernel else ()),
        *LAST_COLUMNS,
    )
    return {
        "columns": [{"title": column.title, "about": column.about, "unit": column.unit} for column in columns],
        "rows": [
            {"id": kernel.id, "cells": [column.fact(kernel, of_kernel.get(kernel.id)) for column in columns]}
            for kernel in record.kernels
        ],
    }


def time_columns(record: Record) -> tuple[Column, ...]:
    """Columns of the kernels' profiled times; () if nothing was profiled."""
    times: dict[str, list[KernelTime]] = {}
    for time in record.kernel_times:
        times.setdefault(time.kernel, []).append(time)
    if not any(times):
        return ()
    whole = sum(time.seconds for time in record.kernel_times if time.side == "compiled")

    def fact(of: Callable[[Sequence[KernelTime]], float | None]) -> Fact:
        return lambda kernel, _: of(times[kernel.id]) if kernel.id in times else None

    def share(found: Sequence[KernelTime]) -> float | None:
        return _percent(sum(time.seconds for time in found) / whole) if whole else None

    where = "GPU" if any(time.device == "cuda" for time in record.kernel_times) else "CPU"
    columns = [
        Column("Measured", f"Measured on the {where}, all launches of one call", fact(_total_seconds), "seconds"),
        Column("Share", "Of all that was measured of the compiled call", fact(share), "percent"),
    ]
    if where == "GPU":
        columns += [
            Column(
                "Bandwidth",
                "Its bytes in this time, of the peak bandwidth; over 100 % where the cache has them or not all is read",
                fact(_mean_share("memory_share")),
                "percent",
            ),
            Column(
                "Peak",
                "Its operations in this time, of the GPU's peak rate for them",
                fact(_mean_share("compute_share")),
                "percent",
            ),
        ]
    return tuple(columns)


def _total_seconds(times: Sequence[KernelTime]) -> float:
    return sum(time.seconds for time in times)


def _percent(share: float) -> float:
    return round(100 * share, 1 if share >= 0.01 else 2)


def _mean_share(share: str) -> Callable[[Sequence[KernelTime]], float | None]:
    def percent(times: Sequence[KernelTime]) -> float | None:
        value = weighted_share(times, share)
        return None if value is None else _percent(value)

    return percent


def weighted_share(times: Sequence[KernelTime], share: str) -> float | None:
    """Time-weighted mean of a share of the GPU's peak; None if no kernel has it."""
    known = [(time.seconds, getattr(time, share)) for time in times if getattr(time, share) is not None]
    whole = sum(time.seconds for time in times)
    return sum(seconds * value for seconds, value in known) / whole if known and whole else None


def binaries_of(record: Record) -> dict[str, Binary]:
    """Kernel id -> its binary; if there are several configurations, the last compiled one."""
    return {binary.kernel: binary for binary in record.binaries}


def half(kernel: Kernel) -> str:
    """Graph that calls a kernel, with its half: `0/0 forward`."""
    return kernel.place


def intensity(binary: Binary) -> float | None:
    """Arithmetic intensity in operations per byte; None without a byte count."""
    return float(f"{binary.flops / binary.bytes:.3g}") if binary.bytes else None


def config_text(config: dict[str, int]) -> str:
    """Format a Triton configuration: `XBLOCK=256 num_warps=4`."""
    return " ".join(f"{name}={value}" for name, value in config.items())
