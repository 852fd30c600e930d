"""Find the ranks of a mesh that differ, by simulating few of them.

What differs between ranks is seldom all in the shapes of DTensors: the first and last stage of a pipeline have other
modules, and experts may be spread unevenly. So ranks are simulated along each dimension of the mesh: all of a short
one, and of a long one those between two that differ. A rank is like the one with equal neighbours in each dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import product

MOST_SIMULATED = 64
"""Maximum number of ranks that are simulated to find those that differ."""
SHORT = 8
"""Size of a dimension of which all ranks are simulated."""

Mark = Callable[[int], Hashable]
"""What is equal on equal ranks; None if that is not known."""


def stand_ins_in_mesh(sizes: Sequence[int], simulate: Mark, known: Mark) -> dict[int, int]:
    """Each rank that need not be simulated -> the rank that stands for it; `sizes` are those of the mesh.

    `simulate` finds out what is equal on equal ranks by simulating a rank, `known` tells what is known without that.
    """
    strides = [1] * len(sizes)
    for dim in range(len(sizes) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * sizes[dim + 1]
    tried: set[int] = set()

    def mark(rank: int) -> Hashable:
        if rank not in tried and len(tried) >= MOST_SIMULATED:
            return None
        tried.add(rank)
        return simulate(rank)

    def line(size: int, stride: int) -> dict[int, int]:
        return _firsts_of_equal(size, lambda place: mark(place * stride), lambda place: known(place * stride))

    lines = list(map(line, sizes, strides))
    found: dict[int, int] = {}
    for places in product(*map(range, sizes)):
        firsts = [line.get(place) for line, place in zip(lines, places, strict=True)]
        rank = sum(place * stride for place, stride in zip(places, strides, strict=True))
        if None not in firsts:
            found[rank] = sum((first or 0) * stride for first, stride in zip(firsts, strides, strict=True))
    simulated = {first for first in dict.fromkeys(found.values()) if mark(first) is not None}
    return {rank: first for rank, first in found.items() if first in simulated and rank not in tried}


def _firsts_of_equal(size: int, mark: Mark, known: Mark) -> dict[int, int]:
    """Each place in a dimension -> the first place that is equal; without places of which nothing is known."""
    marks: dict[int, Hashable] = {}

    def fill(low: int, high: int) -> None:
        """Mark the places between two marked ones: all alike between equal ones, if what is known is alike too."""
        if high - low < 2:
            return
        inside = range(low + 1, high)
        if size > SHORT and marks[low] == marks[high] and {known(place) for place in inside} <= {known(low)}:
            marks.update(dict.fromkeys(inside, marks[low]))
            return
        middle = (low + high) // 2
        marks[middle] = mark(middle)
        fill(low, middle)
        fill(middle, high)

    marks[0], marks[size - 1] = mark(0), mark(size - 1)
    fill(0, size - 1)
    first: dict[Hashable, int] = {}
    for place in sorted(marks):
        first.setdefault(marks[place], place)
    return {place: first[found] for place, found in marks.items() if found is not None}
