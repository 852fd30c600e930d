"""The adviser: small rules, each a pure function of a record; their findings are sorted by expected gain.

Every number has a basis: measured, read from the record, or estimated by a formula, which is given. Expected gains are
conservative estimates, so that a trial (`compiler.advise.trial`) should confirm them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from compiler.advise import capture, communication, compile_time, cpu, launches, matmul, memory, traffic
from compiler.advise.closing import nothing_to_gain
from compiler.advise.facts import ON_ANY_DEVICE, Advice, Change, Evidence, Gain
from compiler.advise.reading import Reading
from compiler.record import Record
from compiler.targets import is_virtual

__all__ = ["RULES", "Advice", "Change", "Evidence", "Gain", "advise", "can_try"]

Rule = Callable[[Reading], Iterator[Advice]]

#: All rules. Findings without a known gain keep this order.
RULES: Final[tuple[Rule, ...]] = (
    cpu.no_compiler,
    capture.breaks,
    capture.recompiles,
    capture.specialized_sizes,
    launches.eager_is_faster,
    launches.cuda_graphs,
    matmul.tf32,
    matmul.autocast,
    communication.rank_dependent,
    communication.unbucketed_collectives,
    communication.exposed_communication,
    communication.small_messages,
    communication.kept_gathers,
    communication.cancelling_redistributions,
    cpu.threads,
    matmul.max_autotune,
    traffic.double_precision,
    memory.large_intermediate,
    traffic.dtype_casts,
    traffic.layout_copies,
    traffic.unfused_loops,
    traffic.tiny_reductions,
    compile_time.regions,
    compile_time.slowest_phase,
    launches.break_even,
    launches.too_small,
)


def advise(record: Record) -> tuple[Advice, ...]:
    """Advice on a record in order of expected gain: how to speed up the call, or its compilation.

    The order is: findings on code kept out of graphs, gains of a call, gains of compilation, then findings without a
    known gain, first those that can be tried. If nothing would help, one finding says so.
    """
    reading = Reading(record)
    found = [_with_backend(advice, record.options.backend) for rule in RULES for advice in rule(reading)]
    closing = nothing_to_gain(reading, found)
    return tuple(sorted(found, key=_order)) + ((closing,) if closing is not None else ())


def _with_backend(advice: Advice, backend: str) -> Advice:
    """Add the backend to a change with arguments of torch.compile, as both are shown and tried together."""
    if backend == "inductor" or advice.change is None or not (advice.change.options or advice.change.regions):
        return advice
    return replace(advice, change=replace(advice.change, options={"backend": backend, **advice.change.options}))


def can_try(advice: Advice, record: Record) -> bool:
    """Whether advice can be tried on this machine; most advice for a GPU needs that GPU."""
    return advice.can_be_tried and (
        advice.rule in ON_ANY_DEVICE or advice.is_simulated or not is_virtual(record.target)
    )


def _order(advice: Advice) -> tuple[int, float]:
    if advice.plain_lines:
        return -1, -advice.plain_lines
    if advice.gain is None:
        return (2 if advice.can_be_tried else 3), 0.0
    return (0 if advice.gain.of == "call" else 1), -advice.gain.seconds
