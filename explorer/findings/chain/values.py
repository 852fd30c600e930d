"""Tensor values as JSON, for display inside sentences."""

from __future__ import annotations

import math
from typing import Any

from compiler.autograd.values import Value
from explorer.reading.shapes import tensor_type
from explorer.render.document import Values


class Room:
    """Budget of Jacobian entries that may still be shown."""

    def __init__(self, left: int) -> None:
        self.left = left

    def takes(self, count: int) -> bool:
        fits = count <= self.left
        self.left -= count if fits else 0
        return fits


def value_piece(value: Value | None, name: str = "", *, flat: bool = False) -> Values:
    """A named value as a piece of a sentence; `flat` shows the numbers as one row."""
    return Values(value_data(value), name, flat)


def value_data(value: Value | None) -> dict[str, Any] | None:
    """A value as JSON data; None if unknown. Non-finite numbers become strings, because JSON lacks them."""
    if value is None:
        return None
    precise = value.dtype in ("float64", "complex128")
    return {
        "type": tensor_type({"dtype": value.dtype, "shape": value.shape}),
        "shape": list(value.shape),
        "count": value.count,
        "norm": _number(value.norm, precise),
        "low": _number(value.low, precise),
        "high": _number(value.high, precise),
        "zeros": value.zeros,
        "nans": value.nans,
        "infinite": value.infinite,
        "numbers": _numbers(value.numbers, precise),
    }


def _numbers(numbers: Any, precise: bool) -> Any:
    return [_numbers(each, precise) for each in numbers] if isinstance(numbers, tuple) else _number(numbers, precise)


def _number(number: Any, precise: bool) -> Any:
    """Round to 9 digits, enough to distinguish float32 values, unless `precise`. Complex and non-finite
    numbers become strings.
    """
    if isinstance(number, complex):
        return str(number)
    if not isinstance(number, float):
        return number
    if not math.isfinite(number):
        return str(number)
    return number + 0.0 if precise else float(f"{number:.9g}") + 0.0
