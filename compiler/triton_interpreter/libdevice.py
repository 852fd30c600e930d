"""CUDA's libdevice functions, and inline PTX of one instruction, on numpy arrays.

Inline PTX is what Inductor writes into kernels, and what users do most often. Instructions:
https://docs.nvidia.com/cuda/parallel-thread-execution/. The `.approx` forms are computed exactly.
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
    """The interpreter has no equivalent of a function that only GPUs have."""


def call(symbol: str, arguments: list[Array], dtype: np.dtype[Any]) -> Array:
    """The result of `symbol` (`__nv_erff`) as `dtype`. Raises NoEquivalentError."""
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
    """Convert floats to integers of `dtype` as GPUs do: saturating, and NaN becomes 0."""
    if x.dtype.kind != "f":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    whole = np.where(np.isnan(x), 0.0, x).astype(np.float64)
    # The largest 64-bit integers are no floats: what reaches the limit is set after the conversion.
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
    """Γ by its logarithm; the sign is that of sin(πx) for negative x (DLMF 5.5.3)."""
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


FUNCTIONS: dict[str, Function] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "add_rn": np.add,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "cyl_bessel_i0": _by_torch(torch.special.i0),
    "cyl_bessel_i1": _by_torch(torch.special.i1),
    "dadd_rn": np.add,
    "ddiv_rn": np.divide,
    "div_rn": np.divide,
    "dmul_rn": np.multiply,
    "drcp_rn": np.reciprocal,
    "dsqrt_rn": np.sqrt,
    "dsub_rn": np.subtract,
    "erf": _by_torch(torch.special.erf),
    "erfc": _by_torch(torch.special.erfc),
    "erfcinv": lambda x: _by_torch(torch.special.erfinv)(1 - x),
    "erfcx": _by_torch(torch.special.erfcx),
    "erfinv": _by_torch(torch.special.erfinv),
    "exp": np.exp,
    "exp10": lambda x: np.power(10.0, x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fabs": np.abs,
    "fadd_rn": np.add,
    "fast_cos": np.cos,
    "fast_exp": np.exp,
    "fast_exp10": lambda x: np.power(10.0, x),
    "fast_fdivide": np.divide,
    "fast_log": np.log,
    "fast_log10": np.log10,
    "fast_log2": np.log2,
    "fast_pow": np.power,
    "fast_sin": np.sin,
    "fast_tan": np.tan,
    "fast_tanh": np.tanh,
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(x <= y, 0.0, np.nan)),
    "fdiv_rn": np.divide,
    "finite": np.isfinite,
    "floor": np.floor,
    "fma": lambda x, y, z: x * y + z,
    "fmaf_rn": lambda x, y, z: x * y + z,
    "fma_rn": lambda x, y, z: x * y + z,
    "fmod": np.fmod,
    "fmul_rn": np.multiply,
    "frcp_rn": np.reciprocal,
    "frsqrt_rn": lambda x: 1 / np.sqrt(x),
    "fsqrt_rn": np.sqrt,
    "fsub_rn": np.subtract,
    "hypot": np.hypot,
    "ilogb": _exponent,
    "isfinited": np.isfinite,
    "isinf": np.isinf,
    "isinfd": np.isinf,
    "isnan": np.isnan,
    "isnand": np.isnan,
    "j0": _by_torch(torch.special.bessel_j0),
    "j1": _by_torch(torch.special.bessel_j1),
    "ldexp": _scale,
    "lgamma": _by_torch(torch.lgamma),
    "llabs": np.abs,
    "llrint": np.rint,
    "llround": _away_from_zero,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "logb": _exponent,
    "mul_rn": np.multiply,
    "nearbyint": np.rint,
    "norm3d": _norm,
    "norm4d": _norm,
    "normcdf": _by_torch(torch.special.ndtr),
    "normcdfinv": _by_torch(torch.special.ndtri),
    "pow": np.power,
    "powi": np.power,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rcp_rn": np.reciprocal,
    "remainder": _ieee_remainder,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "rint": np.rint,
    "rnorm3d": lambda *parts: 1 / _norm(*parts),
    "rnorm4d": lambda *parts: 1 / _norm(*parts),
    "round": _away_from_zero,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "saturate": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0.0, 1.0),
    "scalbn": _scale,
    "signbit": np.signbit,
    "signbitd": np.signbit,
    "sin": np.sin,
    "sinh": np.sinh,
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "sub_rn": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "tgamma": _gamma,
    "trunc": np.trunc,
    "y0": _by_torch(torch.special.bessel_y0),
    "y1": _by_torch(torch.special.bessel_y1),
}
"""By name without `__nv_`: functions of numbers, whatever their format."""


def _count_of_bits(x: Array) -> Array:
    return np.vectorize(lambda value: int(value).bit_count(), otypes=[np.int32])(_unsigned_view(x))


def _leading_zeros(x: Array) -> Array:
    bits = x.dtype.itemsize * 8
    return np.vectorize(lambda value: bits - int(value).bit_length(), otypes=[np.int32])(_unsigned_view(x))


def _first_set(x: Array) -> Array:
    """The place of the lowest set bit, from 1; 0 where there is none."""
    return np.vectorize(lambda value: (int(value) & -int(value)).bit_length(), otypes=[np.int32])(_unsigned_view(x))


def _reversed_bits(x: Array) -> Array:
    bits = x.dtype.itemsize * 8
    unsigned = _unsigned_view(x)
    turned = np.vectorize(lambda value: int(f"{int(value):0{bits}b}"[::-1], 2), otypes=[unsigned.dtype])(unsigned)
    return turned.view(x.dtype)


def _high_half(x: Array, y: Array) -> Array:
    bits = x.dtype.itemsize * 8
    return np.vectorize(lambda a, b: (int(a) * int(b)) >> bits, otypes=[x.dtype])(x, y)


def _unsigned_view(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def _bits_as(dtype: str) -> Function:
    return lambda x: np.ascontiguousarray(x).view(dtype)


OF_FORMAT: dict[str, Function] = {
    "brev": _reversed_bits,
    "brevll": _reversed_bits,
    "clz": _leading_zeros,
    "clzll": _leading_zeros,
    "double_as_longlong": _bits_as("int64"),
    "ffs": _first_set,
    "ffsll": _first_set,
    "float_as_int": _bits_as("int32"),
    "float_as_uint": _bits_as("uint32"),
    "hadd": lambda x, y: (x.astype(np.int64) + y) >> 1,
    "int_as_float": _bits_as("float32"),
    "longlong_as_double": _bits_as("float64"),
    "mul24": lambda x, y: x * y,
    "mul64hi": _high_half,
    "mulhi": _high_half,
    "nextafter": np.nextafter,
    "popc": _count_of_bits,
    "popcll": _count_of_bits,
    "rhadd": lambda x, y: (x.astype(np.int64) + y + 1) >> 1,
    "uint_as_float": _bits_as("float32"),
    "uhadd": lambda x, y: (x.astype(np.int64) + y) >> 1,
    "umul24": lambda x, y: x * y,
    "umul64hi": _high_half,
    "umulhi": _high_half,
    "urhadd": lambda x, y: (x.astype(np.int64) + y + 1) >> 1,
}
"""By name without `__nv_`: functions of a format's bits."""


_INSTRUCTION = re.compile(r"\s*(?P<name>[\w.]+)\s+(?P<operands>\$\d+(?:\s*,\s*\$\d+)*)\s*;?\s*")
_MODIFIERS = {"approx", "ftz", "rn", "sat", "lo", "full", "b16", "b32", "b64"}

OPERATIONS: dict[str, Callable[..., Array]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "cos": np.cos,
    "div": np.divide,
    "ex2": np.exp2,
    "fma": lambda x, y, z: x * y + z,
    "lg2": np.log2,
    "mad": lambda x, y, z: x * y + z,
    "max": np.fmax,
    "min": np.fmin,
    "mov": np.positive,
    "mul": np.multiply,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}


def call_inline(
    assembly: str, constraints: str, arguments: Sequence[Array], dtypes: Sequence[np.dtype[Any]], pack: int
) -> list[Array]:
    """The result of one PTX instruction, as a list of one array. Raises NoEquivalentError."""
    found = _INSTRUCTION.fullmatch(assembly)
    operation, known = _operation(found["name"]) if found else (None, False)
    if found is None or operation is None or not known or pack != 1 or len(dtypes) != 1:
        raise NoEquivalentError(
            f"the inline assembly {assembly.strip()!r} ({constraints}) has no equivalent in the interpreter: this "
            "kernel can only be run on a GPU"
        )
    places = [int(place[1:]) for place in re.findall(r"\$\d+", found["operands"])]
    chosen = [arguments[place - 1] for place in places[1:]]
    if dtypes[0].kind == "f":
        return [np.asarray(operation(*(x.astype(np.float64) for x in chosen))).astype(dtypes[0])]
    return [np.asarray(operation(*chosen)).astype(dtypes[0])]


def _operation(name: str) -> tuple[Callable[..., Array] | None, bool]:
    """The function for `fma.rn.f32`, and whether all its modifiers are known."""
    base, *modifiers = name.split(".")
    known = all(modifier in _MODIFIERS or re.fullmatch(r"[fus]\d+", modifier) for modifier in modifiers)
    return OPERATIONS.get(base), known
