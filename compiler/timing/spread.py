"""Median and quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of numbers."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """Compute them. Raises IndexError for no numbers."""
        if len(numbers) <= 1:
            return cls(numbers[0], numbers[0], numbers[0])
        low, middle, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(middle, low, high)

    @property
    def relative(self) -> float:
        """Distance of the quartiles divided by the median."""
        return (self.high - self.low) / self.middle
