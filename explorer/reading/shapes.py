"""Format tensor types, numbers and durations: `f32[8, 64]`, `1.5 µs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_SHORT = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2",
    "complex64": "c64",
    "complex128": "c128",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b8",
}

_USUAL = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32"}
DTYPES_CALLED = {name: name for name in _SHORT} | {short: name for name, short in _SHORT.items()} | _USUAL
"""The dtype with each name that a person types: `f32` and `float` are `float32`."""


def dtype_name(dtype: Any) -> str:
    """Name of a dtype: `torch.float32` is `float32`; None is ""."""
    return str(dtype or "").removeprefix("torch.")


def dtype_called(text: str) -> str:
    """The dtype with a name that a person types, such as `torch.float32` or `F32`; "" if there is none."""
    return DTYPES_CALLED.get(dtype_name(text.strip().lower()), "")


def error_text(value: float | None) -> str:
    """Format an error: `2.4e-07`; None (not finite) is a dash."""
    return "-" if value is None else f"{value:.2g}"


def number_text(number: Any) -> str:
    """Format a number with four significant digits; -0 is 0."""
    return f"{number + 0.0:.4g}" if isinstance(number, float) else str(number)


def shape_text(shape: Iterable[Any]) -> str:
    """Format a shape: `[8, 64]`; sizes may be symbols: `[s0, 64]`."""
    return f"[{', '.join(str(size) for size in shape)}]"


def tensor_type(attrs: Mapping[str, Any]) -> str:
    """Type from an entity's attrs, as `f32[8, 64]`, with a DTensor's placements; "" if it is not a tensor."""
    if "shape" not in attrs:
        return ""
    name = dtype_name(attrs.get("dtype"))
    placed = ", ".join(attrs.get("placements", ()))
    return f"{_SHORT.get(name, name)}{shape_text(attrs['shape'])} {placed}".rstrip()


def seconds_text(seconds: float) -> str:
    """Format a duration: `9.8 ns`, `1.5 µs`, `12 µs`, `0.4 ms`, `35 ms`, `1.2 s`, `71 s`."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.2g} ns" if seconds < 99.5e-9 else f"{seconds * 1e9:.0f} ns"
    if seconds < 9.95e-6:
        return f"{seconds * 1e6:.1f} µs"
    if seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 20 else f"{seconds:.0f} s"
