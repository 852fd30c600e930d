"""Notes on the reliability of measured times: variation, drift, and load on the machine."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence

import torch

from compiler.record.measure_facts import Candidate
from compiler.timing.spread import Spread, speed_up_spread

TOLERATED = 0.05
"""Variation of rounds, or difference of their halves, relative to the median, above which a note is added."""
USELESS = 0.5
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits")


def notes(candidates: Iterable[Candidate], clocks: Sequence[float], load: float | None) -> Iterator[str]:
    """Yield notes on the reliability of these measurements.

    `clocks` are clock rates of the GPU in MHz. `load` is the number of runnable processes at the start.
    """
    found = list(candidates)
    for candidate in found:
        yield from _variation_notes(candidate)
    for candidate in found[1:]:
        yield from _ratio_notes(candidate, found[0])
    yield from _clocks(clocks)
    cores = os.cpu_count() or 1
    if load is not None and load > cores:
        yield f"the machine was busy: {load:.1f} processes ready to run on {cores} cores as the measurement began"


def _variation_notes(candidate: Candidate) -> Iterator[str]:
    rounds = candidate.rounds
    if candidate.seconds is None or candidate.low is None or candidate.high is None or len(rounds) < 4:
        return
    spread = (candidate.high - candidate.low) / candidate.seconds
    if spread > USELESS:
        yield f"{candidate.name} varied by {100 * spread:.0f} %: its time says little"
    elif spread > TOLERATED:
        yield f"{candidate.name} varied by {100 * spread:.0f} %: read its time as ±{100 * spread / 2:.0f} %"
    first, second = rounds[: len(rounds) // 2], rounds[len(rounds) // 2 :]
    drift = statistics.median(second) / statistics.median(first) - 1
    if abs(drift) > TOLERATED:
        became = "slower" if drift > 0 else "faster"
        by = f"{100 * abs(drift):.0f} %"
        yield f"{candidate.name} became {became} by {by} from the first half of its rounds to the second"


def _ratio_notes(candidate: Candidate, eager: Candidate) -> Iterator[str]:
    """Yield a note if the times vary but their ratio does not."""
    ratio = speed_up_spread(candidate, eager)
    if ratio is None or len(candidate.rounds) < 4 or len(eager.rounds) < 4:
        return
    varied = min(Spread.of_numbers(candidate.rounds).relative, Spread.of_numbers(eager.rounds).relative)
    if varied > TOLERATED and ratio.relative < varied / 2:
        yield (
            f"the speed-up of {candidate.name}, taken round by round, varied by {100 * ratio.relative:.0f} % only: the "
            "machine's speed changed for both"
        )


def _clocks(clocks: Sequence[float]) -> Iterator[str]:
    if len(clocks) > 1 and max(clocks) - min(clocks) > TOLERATED * max(clocks):
        yield f"the GPU's clock was between {min(clocks):.0f} and {max(clocks):.0f} MHz while it was measured"


def load() -> float | None:
    """Mean number of runnable processes over the last minute; None if it is not known."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def clock_rate(device: torch.device) -> float | None:
    """Clock rate of the GPU in MHz, from nvidia-smi; None if it is not known."""
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    chosen = (f"--id=GPU-{uuid}",) if uuid else ()
    try:
        printed = subprocess.run((*_NVIDIA_SMI, *chosen), capture_output=True, text=True, timeout=5, check=True).stdout
        return float(printed.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
