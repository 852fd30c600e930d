"""The closing remark, if no advice would help."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.advise.facts import Advice, Evidence, percent, seconds
from compiler.advise.matmul import matmuls, share_of_peak
from compiler.advise.reading import Reading
from compiler.timing.spread import speed_up

REMARKS = ("compile-time", "break-even")
"""Rules that only describe; their change does not affect the code."""


def nothing_to_gain(reading: Reading, others: Sequence[Advice]) -> Advice | None:
    """A remark that no known change would help, or that nothing was compiled; None if some change would help."""
    if any(advice.change is not None and advice.rule not in REMARKS for advice in others):
        return None
    evidence = tuple(filter(None, (_measured_evidence(reading), _matmul_share(reading), _floor(reading))))
    if not reading.record.of_stage("captured"):
        return Advice(
            "nothing-compiled",
            "Nothing was compiled",
            "There is no graph to give advice on; run.tables.problems says why.",
        )
    found = "No change is known that would make this call faster."
    if not evidence:
        found = f"{found} Where time goes was not measured: --time compares eager and the modes."
    return Advice("nothing", "Nothing to change", found, evidence)


def _measured_evidence(reading: Reading) -> Evidence | None:
    own, eager = reading.own, reading.eager
    faster = speed_up(own, eager) if own is not None and eager is not None else None
    if own is None or own.seconds is None or faster is None:
        return None
    tried = [each.name for each in reading.record.candidates if each.seconds is not None and each not in (own, eager)]
    told = f"Compiled, a call takes {seconds(own.seconds)}, {faster:.2f} times as fast as eager"
    return Evidence(f"{told}; no faster: {', '.join(tried)}." if tried else f"{told}.", "measured")


def _matmul_share(reading: Reading) -> Evidence | None:
    """Evidence of the time spent in matmuls, and of their share of the peak rate."""
    kernels = matmuls(reading)
    reached = share_of_peak(kernels)
    if reached is None or not reading.kernel_seconds:
        return None
    share = sum(found.time for found in kernels) / reading.kernel_seconds
    told = f"{percent(share)} of the kernels' time is in matmuls, at {percent(reached)} of the peak."
    return Evidence(told, "measured", tuple(found.kernel.id for found in kernels[:5]))


def _floor(reading: Reading) -> Evidence | None:
    if reading.gpu is None or reading.kernel_basis != "measured" or not reading.kernel_seconds:
        return None
    share = percent(reading.floor / reading.kernel_seconds)
    return Evidence(f"All kernels together are at {share} of {reading.gpu.title}'s peak rates.", "measured")
