"""Rules about matmuls and convolutions: their share of the time and of the peak rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.advise.facts import Advice, Change, Evidence, percent, seconds
from compiler.advise.launches import measured_gain
from compiler.advise.reading import KernelFacts, Reading
from compiler.advise.waiting import MUCH, find_waiting

DOMINANT = 0.4
"""From this share of the kernels' time on, products are what to look at."""
NEAR_PEAK = 0.75
"""What library kernels reach at best in practice: there is little to gain from here on."""


def max_autotune(reading: Reading) -> Iterator[Advice]:
    """GEMM-bound: have Inductor try Triton templates against the libraries."""
    if not reading.on_gpu or reading.record.options.mode.startswith("max-autotune") or not reading.kernel_seconds:
        return
    products = matmuls(reading)
    share = sum(found.time for found in products) / reading.kernel_seconds
    reached = share_of_peak(products)
    waits = find_waiting(reading)
    if waits is not None and waits.share > MUCH:
        return
    if share < DOMINANT or (reached or 0.0) > NEAR_PEAK:
        return
    name = "max-autotune-no-cudagraphs"
    timed = reading.in_mode(name)
    gain = measured_gain(reading, timed.name) if timed is not None else None
    if timed is not None and gain is None:
        return
    found = f"{percent(share)} of the kernels' time are products of matrices or convolutions, computed by libraries."
    change = Change(
        f"Compile with mode='{name}': Triton kernels are measured against the library's for each "
        f"product, and can "
        "fuse what follows into them. It takes longer to compile; whether it gains anything is known once it was "
        "tried.",
        {"mode": name},
    )
    yield Advice("max-autotune", "Matmul-bound", found, tuple(_evidence(reading, products)), gain, change)


def matmuls(reading: Reading) -> list[KernelFacts]:
    """Matmul kernels and library calls, the slowest first."""
    return sorted((found for found in reading.kernels if found.is_matmul), key=lambda found: -found.time)


def share_of_peak(kernels: Sequence[KernelFacts]) -> float | None:
    """Mean share of the GPU's peak rate, weighted by time; None if nothing was measured."""
    timed = [found for found in kernels if found.seconds and found.floor]
    took = sum(found.seconds or 0.0 for found in timed)
    return sum(found.floor for found in timed) / took if took else None


def _evidence(reading: Reading, products: Sequence[KernelFacts]) -> Iterator[Evidence]:
    ids = tuple(found.kernel.id for found in products[:5])
    took = seconds(sum(found.time for found in products))
    if reading.kernel_basis == "measured":
        told = f"The products ({len(products)} in a call) take {took}"
        reached = share_of_peak(products)
        told += f", at {percent(reached)} of the peak on average." if reached is not None else "."
    else:
        told = f"The products ({len(products)} in a call) take at least {took} at peak rates."
    yield Evidence(told, reading.kernel_basis, (*ids, *reading.lines(ids)))
