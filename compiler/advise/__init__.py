"""The adviser: rules that read a record, each a small pure function, and what they find in order of expected gain.

Every number says where it is from: measured, read off the record, or estimated by a formula, which is given. An
expected gain is a careful estimate, so that trying it (`compiler.advise.trial`) shows as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from compiler.advise.capture import breaks, recompiles, specialized_sizes
from compiler.advise.closing import nothing_to_gain
from compiler.advise.compile_time import regions, slowest_phase
from compiler.advise.cpu import no_compiler, threads, vectors
from compiler.advise.facts import ON_ANY_DEVICE, Advice, Change, Evidence, Gain
from compiler.advise.launches import break_even, cuda_graphs, eager_is_faster, too_small
from compiler.advise.matmul import autocast, max_autotune, precision_casts, tf32
from compiler.advise.reading import Reading
from compiler.advise.traffic import (
    bound_by_memory_or_compute,
    dtype_casts,
    layout_copies,
    tiny_reductions,
    unfused_loops,
)
from compiler.record import Record
from compiler.targets import is_virtual

__all__ = ["RULES", "Advice", "Change", "Evidence", "Gain", "advise", "can_try"]

Rule = Callable[[Reading], Iterator[Advice]]

#: All rules. Findings whose gain is not known stand in this order.
RULES: Final[tuple[Rule, ...]] = (
    no_compiler,
    breaks,
    recompiles,
    specialized_sizes,
    eager_is_faster,
    cuda_graphs,
    tf32,
    autocast,
    threads,
    max_autotune,
    vectors,
    dtype_casts,
    layout_copies,
    unfused_loops,
    tiny_reductions,
    regions,
    slowest_phase,
    break_even,
    too_small,
    bound_by_memory_or_compute,
    precision_casts,
)


def advise(record: Record) -> tuple[Advice, ...]:
    """Advice on a record in order of expected gain: to speed up the call, or its compilation.

    What keeps code out of graphs comes first, then what a call gains, then what compiling gains, then findings
    without a known gain: those that can be tried before those that can't. If nothing would help, one finding says so.
    """
    reading = Reading(record)
    found = [_with_backend(advice, record.options.backend) for rule in RULES for advice in rule(reading)]
    closing = nothing_to_gain(reading, found)
    return tuple(sorted(found, key=_order)) + ((closing,) if closing is not None else ())


def _with_backend(advice: Advice, backend: str) -> Advice:
    """Add the backend to a change that adds arguments of torch.compile, as it is shown and tried with both."""
    if backend == "inductor" or advice.change is None or not (advice.change.options or advice.change.regions):
        return advice
    return replace(advice, change=replace(advice.change, options={"backend": backend, **advice.change.options}))


def can_try(advice: Advice, record: Record) -> bool:
    """Whether advice can be tried on this machine: advice about a GPU needs that GPU."""
    return advice.can_be_tried and (advice.rule in ON_ANY_DEVICE or not is_virtual(record.target))


def _order(advice: Advice) -> tuple[int, float]:
    if advice.plain_lines:
        return -1, -advice.plain_lines
    if advice.gain is None:
        return (2 if advice.can_be_tried else 3), 0.0
    return (0 if advice.gain.of == "call" else 1), -advice.gain.seconds
