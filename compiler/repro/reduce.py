"""Delta debugging: the smallest part of a sequence that still shows what the whole shows (Zeller's ddmin)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")


@dataclass
class Effort:
    """How long a reduction may take, and how many programs it has tried."""

    seconds: float
    tried: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        return time.monotonic() - self.began > self.seconds


def minimize(items: Sequence[Item], shows: Callable[[Sequence[Item]], bool], effort: Effort) -> list[Item]:
    """A smallest subsequence for which `shows` is true, given that it is for all items.

    Removing any single item from the result makes it false, unless the effort was spent before that was known.
    """
    left, count = list(items), 2
    known: dict[tuple[int, ...], bool] = {}
    place = {id(item): number for number, item in enumerate(items)}

    def is_enough(some: Sequence[Item]) -> bool:
        key = tuple(place[id(item)] for item in some)
        if key not in known:
            known[key] = not effort.is_spent and shows(some)
        return known[key]

    while len(left) > 1 and not effort.is_spent:
        chunks = _chunks(left, count)
        smaller = next((chunk for chunk in chunks if is_enough(chunk)), None)
        if smaller is not None:
            left, count = smaller, 2
            continue
        rests = ([item for other in chunks if other is not chunk for item in other] for chunk in chunks)
        rest = next((each for each in rests if is_enough(each)), None) if count > 2 else None
        if rest is not None:
            left, count = rest, max(count - 1, 2)
        elif count >= len(left):
            break
        else:
            count = min(2 * count, len(left))
    return left


def _chunks(items: Sequence[Item], count: int) -> list[list[Item]]:
    bounds = [round(number * len(items) / count) for number in range(count + 1)]
    return [list(items[low:high]) for low, high in pairwise(bounds) if low < high]
