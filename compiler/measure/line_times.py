"""Times of kernels, given to the lines of Python that they compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from compiler.measure.kernel_times import Placed
from compiler.record import LineTime


def line_times(placed: Iterable[Placed]) -> tuple[LineTime, ...]:
    """Each time is shared equally by its chains of lines: the last line of a chain has it as its own, and all lines of
    the chain in their total. What has no chain is the time of the line "".
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
