"""What a call would take at least on a GPU that is not here, in words that nobody can take for a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from compiler.record import Record
from compiler.record.plain_text import size_text
from compiler.targets import is_virtual
from explorer.findings.timing.words import three_digits, time_text
from explorer.render.document import Parts, Row, Section, Table, Text

if TYPE_CHECKING:
    from compiler.timing.estimates import Estimate

NAMES_SHOWN = 4


def estimate_parts(record: Record) -> Iterator[Section]:
    """What is known of a GPU that is not here, in a frame of its own."""
    if not record.candidates or not is_virtual(record.target):
        return
    # It imports torch, which a record that is only looked at does without.
    from compiler.timing.estimates import estimate

    found = estimate(record)
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
    """`12.3 million`."""
    for name, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if count >= size:
            return f"{three_digits(count / size)} {name}"
    return str(count)


def _unknown(found: Estimate) -> str:
    if not found.unknown:
        return ""
    more = f" and {len(found.unknown) - NAMES_SHOWN} more" if len(found.unknown) > NAMES_SHOWN else ""
    return f"Not counted, as their sizes are not known: {', '.join(found.unknown[:NAMES_SHOWN])}{more}."
