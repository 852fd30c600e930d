"""CUDA's libdevice functions and single-instruction inline PTX, on numpy arrays.

Supported are the PTX instructions that Inductor generates and that users use most often
(https://docs.nvidia.com/cuda/parallel-thread-execution/). The `.approx` forms are computed exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
Function = Callable[..., Array]


class NoEquivalentError(NotImplementedError):
    """The interpreter has no equivalent of a GPU function."""


def call(symbol: str, arguments: list[Array], dtype: np.dtype[Any]) -> Array:
    """Compute the libdevice function `symbol` (`__nv_erff`), with a result in `dtype`. Raises NoEquivalentError."""
    name = symbol.removeprefix("__nv_")
    function = FUNCTIONS.get(name) or FUNCTIONS.get(name.removesuffix("f"))
    if function is not None:
        widened = [argument.astype(np.float64) if argument.dtype.kind == "f" else argument for argument in arguments]
        return np.asarray(function(*widened)).astype(dtype)
    function = OF_FORMAT.get(name) or OF_FORMAT.get(name.removesuffix("f"))
    if function is not None:
        return np.asarray(function(*arguments)).astype(dtype, copy=False)
    conversion = _CONVERSION.fullmatch(name)
    if conversion is not None and np.issubdtype(dtype, np.integer):
        return saturate(_ROUNDED[conversion[1]](arguments[0]), dtype)
    if conversion is not None and conversion[1] == "n":
        return arguments[0].astype(dtype)
    raise NoEquivalentError(
        f"libdevice's {symbol} has no equivalent in the interpreter: this kernel can only be run on a GPU"
    )


def saturate(x: Array, dtype: np.dtype[Any]) -> Array:
    """Convert floats to integers of `dtype` like a GPU: out-of-range values saturate, NaN becomes 0."""
    if x.dtype.kind != "f":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    whole = np.where(np.isnan(x), 0.0, x).astype(np.float64)
    # Floats can't represent the largest 64-bit integers: values at the limit are set after the conversion.
    fits = np.where((whole > float(limits.min)) & (whole < float(limits.max)), whole, 0.0).astype(dtype)
    low, high = dtype.type(limits.min), dtype.type(limits.max)
    return np.where(whole >= float(limits.max), high, np.where(whole <= float(limits.min), low, fits))


_CONVERSION = re.compile(r"[a-z]+2[a-z]+_r([nzdu])")
_ROUNDED: dict[str, Function] = {"n": np.rint, "z": np.trunc, "d": np.floor, "u": np.ceil}


def _by_torch(function: Callable[..., torch.Tensor]) -> Function:
    def compute(*arguments: Array) -> Array:
        given = [torch.from_numpy(np.ascontiguousarray(argument)) for argument in arguments]
        return function(*given).reshape(np.shape(arguments[0])).numpy()

    return compute


def _gamma(x: Array) -> Array:
    """Γ(x) as exp(lgamma(x)), with the sign of sin(πx) for negative x (DLMF 5.5.3)."""
    negative = (x < 0) & (np.floor(x) % 2 != 0)
    size = np.exp(_by_torch(torch.lgamma)(x))
    return np.where((x < 0) & (x == np.floor(x)), np.nan, np.where(negative, -size, size))


def _exponent(x: Array) -> Array:
    return np.frexp(x)[1] - 1


def _scale(x: Array, exponent: Array) -> Array:
    return np.ldexp(x, exponent.astype(np.int32))


def _away_from_zero(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _ieee_remainder(x: Array, y: Array) -> Array:
    return x - np.rint(x / y) * y


def _norm(*parts: Array) -> Array:
    return np.sqrt(sum(part * part for part in parts))


def _multiply_add(x: Array, y: Array, z: Array) -> Array:
    return x * y + z


_SAME_NAME = (
    "abs", "cbrt", "ceil", "copysign", "cos", "cosh", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "isinf",
    "isnan", "log", "log10", "log1p", "log2", "rint", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_EXACT: dict[str, Function] = {
    "abs": np.abs,
    "add": np.add,
    "cos": np.cos,
    "div": np.divide,
    "fma": _multiply_add,
    "mul": np.multiply,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tanh": np.tanh,
}
"""Functions with the same name in libdevice and PTX."""
_OF_TORCH = {
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "erf": torch.special.erf,
    "erfc": torch.special.erfc,
    "erfcx": torch.special.erfcx,
    "erfinv": torch.special.erfinv,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "lgamma": torch.lgamma,
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
}
_PLAIN: dict[str, Function] = {
    **{name: getattr(np, name) for name in _SAME_NAME},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    **{name: _by_torch(function) for name, function in _OF_TORCH.items()},
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "erfcinv": lambda x: _by_torch(torch.special.erfinv)(1 - x),
    "exp10": lambda x: np.power(10.0, x),
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(x <= y, 0.0, np.nan)),
    "fdivide": np.divide,
    "finite": np.isfinite,
    "fma": _multiply_add,
    "ilogb": _exponent,
    "ldexp": _scale,
    "norm3d": _norm,
    "pow": np.power,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "remainder": _ieee_remainder,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "rnorm3d": lambda *parts: 1 / _norm(*parts),
    "round": _away_from_zero,
    "rsqrt": _EXACT["rsqrt"],
    "saturate": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0.0, 1.0),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "tgamma": _gamma,
}
_OTHER_NAMES = {
    "fabs": "abs", "fmaf_rn": "fma", "isfinited": "finite", "isinfd": "isinf", "isnand": "isnan", "llabs": "abs",
    "llrint": "rint", "llround": "round", "logb": "ilogb", "nearbyint": "rint", "norm4d": "norm3d", "powi": "pow",
    "rnorm4d": "rnorm3d", "scalbn": "ldexp", "signbitd": "signbit",
}  # fmt: skip
_FAST = ("cos", "exp", "exp10", "fdivide", "log", "log10", "log2", "pow", "sin", "tan", "tanh")
FUNCTIONS: dict[str, Function] = {
    **_PLAIN,
    **{other: _PLAIN[name] for other, name in _OTHER_NAMES.items()},
    **{f"fast_{name}": _PLAIN[name] for name in _FAST},
    **{f"{width}{name}_rn": function for width in ("", "d", "f") for name, function in _EXACT.items()},
}
"""libdevice functions that are the same for every dtype, by name without `__nv_`."""


def _of_bits(compute: Callable[[int, int], int]) -> Function:
    """Vectorise `compute(bits as an unsigned integer, number of bits)` over elements."""
    function = np.vectorize(compute, otypes=[np.uint64])
    return lambda x: function(np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").astype(object), x.dtype.itemsize * 8)


def _high_half(x: Array, y: Array) -> Array:
    bits = x.dtype.itemsize * 8
    return np.vectorize(lambda a, b: (int(a) * int(b)) >> bits, otypes=[x.dtype])(x, y)


def _bits_as(dtype: str) -> Function:
    return lambda x: np.ascontiguousarray(x).view(dtype)


_OF_BITS = {
    "brev": _of_bits(lambda value, bits: int(f"{value:0{bits}b}"[::-1], 2)),
    "clz": _of_bits(lambda value, bits: bits - value.bit_length()),
    "ffs": _of_bits(lambda value, _: (value & -value).bit_length()),  # the lowest set bit, from 1; 0 for none
    "popc": _of_bits(lambda value, _: value.bit_count()),
}
_OF_INTEGERS: dict[str, Function] = {
    "hadd": lambda x, y: (x.astype(np.int64) + y) >> 1,
    "mul24": np.multiply,
    "mul64hi": _high_half,
    "mulhi": _high_half,
    "rhadd": lambda x, y: (x.astype(np.int64) + y + 1) >> 1,
}
OF_FORMAT: dict[str, Function] = {
    **{f"{name}{long}": function for long in ("", "ll") for name, function in _OF_BITS.items()},
    **{f"{sign}{name}": function for sign in ("", "u") for name, function in _OF_INTEGERS.items()},
    "double_as_longlong": _bits_as("int64"),
    "float_as_int": _bits_as("int32"),
    "float_as_uint": _bits_as("uint32"),
    "int_as_float": _bits_as("float32"),
    "longlong_as_double": _bits_as("float64"),
    "nextafter": np.nextafter,
    "uint_as_float": _bits_as("float32"),
}
"""libdevice functions that depend on the dtype's bits, by name without `__nv_`."""


_INSTRUCTION = re.compile(r"\s*(?P<name>[\w.]+)\s+(?P<operands>\$\d+(?:\s*,\s*\$\d+)*)\s*;?\s*")
_MODIFIERS = {"approx", "ftz", "rn", "sat", "lo", "full", "b16", "b32", "b64"}

OPERATIONS: dict[str, Function] = {
    **_EXACT,
    "and": np.bitwise_and,
    "ex2": np.exp2,
    "lg2": np.log2,
    "mad": _multiply_add,
    "max": np.fmax,
    "min": np.fmin,
    "mov": np.positive,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def call_inline(
    assembly: str, constraints: str, arguments: Sequence[Array], dtypes: Sequence[np.dtype[Any]], pack: int
) -> list[Array]:
    """Compute one PTX instruction, and return a list with its result. Raises NoEquivalentError."""
    found = _INSTRUCTION.fullmatch(assembly)
    operation = _operation(found["name"]) if found else None
    if found is None or operation is None or pack != 1 or len(dtypes) != 1:
        raise NoEquivalentError(
            f"the inline assembly {assembly.strip()!r} ({constraints}) has no equivalent in the interpreter: this "
            "kernel can only be run on a GPU"
        )
    places = [int(place[1:]) for place in re.findall(r"\$\d+", found["operands"])]
    chosen = [arguments[place - 1] for place in places[1:]]
    if dtypes[0].kind == "f":
        chosen = [argument.astype(np.float64) for argument in chosen]
    return [np.asarray(operation(*chosen)).astype(dtypes[0])]


def _operation(name: str) -> Function | None:
    """The function of a PTX instruction (`fma.rn.f32`); None if it or one of its modifiers is unknown."""
    base, *modifiers = name.split(".")
    known = all(modifier in _MODIFIERS or re.fullmatch(r"[fus]\d+", modifier) for modifier in modifiers)
    return OPERATIONS.get(base) if known else None
