"""Say in words from which size on compiling pays."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from explorer.findings.timing.compared import Ratio

Measured = Sequence[tuple[int, Ratio]]
"""Sizes in ascending order, each with its speed-up."""


def break_even_size(first: tuple[int, Ratio], second: tuple[int, Ratio]) -> float | None:
    """Interpolate, on log scales, the size at which the speed-up crosses 1; None unless it rises past 1."""
    (size, low), (other, high) = first, second
    before, after = log(low.value), log(high.value)
    if not before < 0 < after:
        return None
    return exp(log(size) - before / (after - before) * (log(other) - log(size)))


def pays_from(measured: Measured) -> str:
    """Describe the sizes at which compiled calls are faster than eager, beyond noise, or say that there are none."""
    if not measured:
        return "could not be compared with eager"
    faster = [index for index, (_, ratio) in enumerate(measured) if ratio.verdict == "faster"]
    if not faster:
        return _never_words(measured)
    later = measured[faster[0] :]
    slower, hidden = (_sizes(later, verdict) for verdict in ("slower", "equal"))
    told = [_from_words(measured, faster[0]), f"but not at {slower}" if slower else ""]
    return "; ".join(filter(None, [*told, f"at {hidden} the noise hides it" if hidden else ""]))


def _sizes(measured: Measured, verdict: str) -> str:
    return " and ".join(f"{size} ({ratio.value:.2f} ×)" for size, ratio in measured if ratio.verdict == verdict)


def _never_words(measured: Measured) -> str:
    size, best = max(measured, key=lambda item: item[1].value)
    noise = ", which is within the noise" if best.value > 1 else ""
    within = f"at {size}" if len(measured) == 1 else f"in this range ({measured[0][0]} to {measured[-1][0]})"
    where = "" if len(measured) == 1 else f", at {size}"
    return f"never {within}: {best.value:.2f} × at best{where}{noise}"


def _from_words(measured: Measured, index: int) -> str:
    size, ratio = measured[index]
    here = f"{size} ({ratio.value:.2f} ×)"
    if index == 0:
        return f"at {here}" if len(measured) == 1 else f"from the smallest size that was measured on: {here}"
    before, other = measured[index - 1]
    at = break_even_size(measured[index - 1], measured[index])
    between = f"between {before} ({other.value:.2f} ×) and {here}"
    return f"somewhere {between}" if at is None else f"from about {_whole(at, before, size)} on, {between}"


def _whole(at: float, before: int, after: int) -> int:
    """Round an interpolated size to two significant digits, and clamp it to the interval."""
    return min(max(round(float(f"{at:.2g}")), before), after)
