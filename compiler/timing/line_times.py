"""Attribute times of kernels to the lines of Python that they compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from compiler.record import LineTime
from compiler.timing.kernel_times import Placed


def line_times(placed: Iterable[Placed]) -> tuple[LineTime, ...]:
    """Share each time equally between its chains of lines.

    The last line of a chain gets it as its own time, all lines of the chain as their total. Time without a chain goes
    to the line "".
    """
    own: dict[tuple[str, ...], float] = defaultdict(float)
    total: dict[tuple[str, ...], float] = defaultdict(float)
    for time, chains in placed:
        about = (time.side, time.half, time.device)
        for chain in chains or ((""),):
            share = time.seconds / max(len(chains), 1)
            own[(*about, chain[-1] if chain else "")] += share
            for line in chain or ("",):
                total[(*about, line)] += share
    return tuple(
        LineTime(line, side, half, own.get((side, half, device, line), 0.0), seconds, device)  # type: ignore[arg-type]
        for (side, half, device, line), seconds in total.items()
    )
