"""Peak memory of a rank against the number of ranks: simulated at a few numbers, and a formula for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from compiler.record import Record
from compiler.record.measure_facts import MemoryKind
from compiler.record.plain_text import size_text
from explorer.findings.memory.memory import KINDS, rank_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS, CHECKED = (1, 2, 8, 64), 512
MOST_RANKS = 4096
Sizes = Mapping[MemoryKind, int]


@dataclass(frozen=True)
class MemoryCurve:
    """Peak memory of a rank against the number of ranks N.

    `points` are the bytes of each kind at the peak, simulated, by N. `formula` has two numbers of bytes for each kind:
    `kept` on every rank, and `split` over the ranks, so that a rank holds `kept + split / N`. It is fitted to the
    points with 2 ranks or more, except `checked`: there the formula is compared with the simulation.
    """

    points: Mapping[int, Sizes]
    formula: Mapping[MemoryKind, tuple[float, float]]
    checked: int

    def peak_at(self, ranks: int) -> float:
        """Peak bytes of one of `ranks` ranks by the formula."""
        return sum(kept + split / ranks for kept, split in self.formula.values())

    @property
    def error(self) -> float:
        """Relative error of the formula at the number of ranks that it was not fitted to."""
        return self.peak_at(self.checked) / sum(self.points[self.checked].values()) - 1

    @property
    def table(self) -> pd.DataFrame:
        """One row per simulated number of ranks: bytes of each kind at the peak, in all, and by the formula."""
        kinds = [kind for kind in KINDS if kind in self.formula]
        rows = [
            {"ranks": ranks, **{kind: sizes.get(kind, 0) for kind in kinds}, "peak": sum(sizes.values()),
             "formula": round(self.peak_at(ranks))}
            for ranks, sizes in sorted(self.points.items())
        ]  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def words(self) -> str:
        """The formula and its error, as a sentence."""
        kept, split = (size_text(round(sum(parts))) for parts in zip(*self.formula.values(), strict=True))
        padded = (
            " Padded shards are not in the formula: simulate the number of ranks." if abs(self.error) > 0.05 else ""
        )
        return (
            f"peak of a rank of N = {kept} + {split} / N. At {self.checked:,} ranks, to which it was not fitted, it is "
            f"{100 * self.error:+.1f} % off.{padded}"
        )

    def plot(self) -> Figure:
        """Plot the formula from 1 to 4,096 ranks, a layer for each kind, with the simulated peaks as points."""
        from explorer.findings.memory.curve_chart import curve_chart

        return curve_chart(self)

    def __repr__(self) -> str:
        lines = [f"{ranks:>6,} ranks: {size_text(sum(sizes.values()))}" for ranks, sizes in sorted(self.points.items())]
        parts = [f"  {kind}: {size_text(round(kept))} + {size_text(round(split))} / N"
                 for kind, (kept, split) in self.formula.items()]  # fmt: skip
        return "\n".join(["simulated:", *lines, self.words, *parts])


def memory_curve(record_of: Callable[[int], Record], ranks: Iterable[int] = RANKS, check: int = CHECKED) -> MemoryCurve:
    """Simulate a rank of each number of ranks, and fit the formula; `check` is left out of the fit.

    Raises ValueError if a record has no memory of a rank, or if there are fewer than two numbers above 1 to fit to.
    """
    wanted = sorted({*ranks, check})
    points = {number: peak_sizes(record_of(number)) for number in wanted}
    fitted = [number for number in wanted if number > 1 and number != check]
    if len(fitted) < 2:
        raise ValueError(f"the formula needs two numbers of ranks above 1 besides check={check}, got {fitted}")
    kinds = [kind for kind in KINDS if any(kind in sizes for sizes in points.values())]
    formula = {kind: fit(fitted, [points[number].get(kind, 0) for number in fitted]) for kind in kinds}
    return MemoryCurve(points, formula, check)


def peak_sizes(record: Record) -> dict[MemoryKind, int]:
    """Bytes of each kind at the peak of a rank. Raises ValueError if the record has no memory of a rank."""
    found = rank_timeline(record)
    if found is None:
        raise ValueError("a record has no memory of a rank: explore it with ranks=, and let it have generated code")
    line = found.lines["rank"]
    return {kind: sizes[line.peak] for kind, sizes in line.layers.items() if sizes[line.peak]}


def fit(ranks: Sequence[int], sizes: Sequence[int]) -> tuple[float, float]:
    """`kept` and `split` such that `kept + split / N` is nearest to the sizes, neither below 0 (least squares)."""
    shares = [1 / number for number in ranks]
    mean_share, mean_size = sum(shares) / len(shares), sum(sizes) / len(sizes)
    spread = sum((share - mean_share) ** 2 for share in shares)
    slope = sum((share - mean_share) * (size - mean_size) for share, size in zip(shares, sizes, strict=True)) / spread
    kept = mean_size - slope * mean_share
    if slope < 0:
        return mean_size, 0.0
    if kept < 0:
        return 0.0, sum(s * b for s, b in zip(shares, sizes, strict=True)) / sum(s * s for s in shares)
    return kept, slope
