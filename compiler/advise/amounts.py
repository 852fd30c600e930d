"""Numbers with units, as sentences of advice have them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """`3.2 µs`, `410 µs`, `2.5 s`: two or three digits."""
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
    amount, unit = next(
        ((value * factor, unit) for unit, factor in units if abs(value * factor) >= 1), (value * 1e9, "ns")
    )
    return f"{amount:.2g} {unit}" if abs(amount) < 10 else f"{amount:.0f} {unit}"


def size(count: float) -> str:
    """`512 B`, `2.0 KiB`, `3.4 MiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def percent(share: float) -> str:
    """`7 %`; what is near nothing or all is not rounded to it."""
    if 0 < share < 0.01:
        return "less than 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 kernel`, `3 kernels`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
