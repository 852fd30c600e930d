"""Estimate the minimum time of a call on a virtual GPU, in words and as a table. Output is labelled "estimate"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from compiler.record import Record
from compiler.record.plain_text import size_text
from compiler.targets import is_virtual
from explorer.findings.timing.words import three_digits, time_text
from explorer.render.document import Parts, Row, Section, Table, Text

if TYPE_CHECKING:
    import pandas as pd

    from compiler.timing.estimates import Estimate

NAMES_SHOWN = 4
BASIS = "estimate"


def _estimate(record: Record) -> Estimate | None:
    # Imported late: it imports torch, which is not needed to view a record.
    from compiler.timing.estimates import estimate

    return estimate(record)


def estimate_parts(record: Record) -> Iterator[Section]:
    """Section with the estimate for a virtual GPU, separate from the measured times; none for other targets."""
    found = _estimate(record) if record.candidates and is_virtual(record.target) else None
    if found is None:
        return
    graphs = " (CUDA graphs would spare most of that)" if found.bound == "launches" else ""
    kernels = f"at least {time_text(found.kernel_seconds)}" if found.kernel_seconds else "unknown"
    lead = (
        f"A call takes at least {time_text(found.seconds)} there, by its {found.bound} alone{graphs}; how much longer "
        "can only be measured on one."
    )
    figures = (
        ("launches", f"{found.launches:,}, for which the host takes about {time_text(found.launch_seconds)}"),
        ("kernels at peak rates", kernels),
        ("bytes read and written", size_text(found.bytes)),
        ("floating-point operations", _operations(found.flops)),
    )
    sources = filter(None, [f"{found.launch_source}.", _unknown(found)])
    parts: tuple[Parts, ...] = (
        Text(lead),
        Table((), tuple(map(Row, figures))),
        *(Text(source, "why") for source in sources),
    )
    yield Section(parts, f"Estimate, not a measurement: {found.title}, which is not here", "estimate")


def _operations(count: int) -> str:
    """Format a number of operations: `12.3 million`."""
    for name, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if count >= size:
            return f"{three_digits(count / size)} {name}"
    return str(count)


def _unknown(found: Estimate) -> str:
    if not found.unknown:
        return ""
    more = f" and {len(found.unknown) - NAMES_SHOWN} more" if len(found.unknown) > NAMES_SHOWN else ""
    return f"Not counted, as their sizes are not known: {', '.join(found.unknown[:NAMES_SHOWN])}{more}."


def estimate_text(record: Record) -> str:
    """Sentence with the estimate for the target GPU; "" without an estimate."""
    found = _estimate(record)
    if found is None:
        return ""
    launches = f"{found.launches:,} launches take" if found.launches != 1 else "1 launch takes"
    return (
        f"An estimate, not a measurement: on the {found.title} the kernels of a call need at least "
        f"{time_text(found.kernel_seconds)} at its peak rates ({_amounts(found)}), and {launches} the host about "
        f"{time_text(found.launch_seconds)} ({found.launch_source})."
    )


def _amounts(found: Estimate) -> str:
    scale, unit = (1e9, "GFLOP") if found.flops >= 1e9 else (1e6, "MFLOP")
    counted = f"{size_text(found.bytes)}, {three_digits(found.flops / scale)} {unit}"
    return counted + (f", {len(found.unknown)} of unknown size left out" if found.unknown else "")


def estimates(record: Record) -> pd.DataFrame:
    """One row per kernel: launches, bytes, operations, minimum seconds at the GPU's peak rates, and the bound.

    `attrs` has the totals: the GPU, the sums, and the launch cost with its source.
    """
    import pandas as pd

    from compiler.timing.estimates import KernelEstimate

    found = _estimate(record)
    names = [each.name for each in fields(KernelEstimate)]
    table = pd.DataFrame([asdict(each) for each in found.kernels] if found else [], columns=names)
    table.insert(0, "basis", pd.Series([BASIS] * len(table), dtype="string"))
    if found is not None:
        whole = asdict(found) | {"seconds": found.seconds, "bound": found.bound, "basis": BASIS}
        table.attrs = {name: value for name, value in whole.items() if name != "kernels"}
    return table
