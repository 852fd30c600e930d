"""Write expressions and indices as C++ text, with the functions that they call.

No headers are included: parsing headers of torch or the standard library would take longer than the rest of the
compilation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from compiler.backend.ir.expr import Const, Guard, Op
from compiler.backend.ir.index import Index, Indirect, Quotient, Remainder, is_natural
from compiler.backend.ir.kernel_text import KernelText
from compiler.backend.ir.scalar import DTYPES, OPERATIONS

TYPES: Mapping[torch.dtype, str] = {dtype: called.cpp for dtype, called in DTYPES.items()}
_NARROW = (torch.uint8, torch.int8, torch.int16)
_PROMOTED = (torch.bool, *_NARROW)
"""Dtypes whose operators give an int in C++: `~(a | b)` of two bools would never be false."""
_WORDS = """
alignas and asm auto bool break case catch char class const continue default delete do double else enum
export extern false float for friend goto if inline int long namespace new not operator or private protected
public register return short signed sizeof static struct switch template this throw true try typedef
typename union unsigned using virtual void volatile while xor threads failed lane lanes tile
"""
_RESERVED = frozenset(_WORDS.split())

PRELUDE = """\
// Means what PyTorch means: the larger or smaller of two is NaN if one is, x of equals; division rounds down.
template <class T> static inline T maximum(T x, T y) { return (y > x || y != y) ? y : x; }
template <class T> static inline T minimum(T x, T y) { return (y < x || y != y) ? y : x; }
template <class T> static inline T absolute(T x) { return x < 0 ? -x : x; }
template <> inline float absolute(float x) { return __builtin_fabsf(x); }
template <> inline double absolute(double x) { return __builtin_fabs(x); }
template <class T> static inline T sign(T x) { return (x > 0) - (x < 0); }
template <class T> static inline T bit_not(T x) { return ~x; }
template <> inline bool bit_not(bool x) { return !x; }
template <class T> static inline bool within(T bits) { return (unsigned long)bits < 8 * sizeof(T); }
template <class T> static inline T shift_left(T x, T y) { return within(y) ? (unsigned long)x << y : 0; }
template <class T> static inline T shift_right(T x, T y) { return within(y) ? x >> y : -(x < 0); }
template <class T> static inline T truncdiv(T x, T y) { return x / y; }
template <class T> static inline T floordiv(T x, T y) { return x / y - ((x % y != 0) & ((x < 0) != (y < 0))); }
template <class T> static inline T remainder(T x, T y) {
    T r = x % y;
    return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;
}
template <class T> static inline T real_remainder(T x, T y, T r) { return (r != 0 && (r < 0) != (y < 0)) ? r + y : r; }
template <> inline float remainder(float x, float y) { return real_remainder(x, y, __builtin_fmodf(x, y)); }
template <> inline double remainder(double x, double y) { return real_remainder(x, y, __builtin_fmod(x, y)); }
template <class T> static inline T real_floordiv(T x, T y, T r) {
    if (y == 0) return x / y;
    T q = (x - r) / y;
    if (r != 0 && (y < 0) != (r < 0)) q -= 1;
    T whole = __builtin_floor(q);
    return q == 0 ? (T)__builtin_copysign(T(0), x / y) : (q - whole > T(0.5) ? whole + 1 : whole);
}
template <> inline float floordiv(float x, float y) { return real_floordiv(x, y, __builtin_fmodf(x, y)); }
template <> inline double floordiv(double x, double y) { return real_floordiv(x, y, __builtin_fmod(x, y)); }
template <class T> static inline bool above(T x, T best) { return x > best || (x != x && best == best); }
template <class T> static inline bool below(T x, T best) { return x < best || (x != x && best == best); }
static inline long checked(long at, long size, bool& failed) {
    if ((unsigned long)at < (unsigned long)size) return at;
    failed = true;
    return 0;
}
static inline float from_bf16(unsigned short x) {
    union { unsigned int bits; float value; } u = {(unsigned int)x << 16};
    return u.value;
}
static inline unsigned short to_bf16(float x) {
    union { float value; unsigned int bits; } u = {x};
    unsigned int rounded = (u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16;
    return x != x ? 0x7fc0 : (unsigned short)rounded;
}
"""


def identifier(name: str) -> str:
    """C++ identifier of a buffer."""
    return f"{name}_" if name in _RESERVED else name


class CppText(KernelText):
    """Writes expressions in C++. Indices are of type long."""

    mark, suffix = "//", "L"

    def write_const(self, value: Const) -> str:
        number, dtype = value.value, value.dtype
        if dtype == torch.bool:
            return "true" if number else "false"
        if not dtype.is_floating_point:
            whole = int(number)
            text = f"({whole + 1}L - 1)" if whole == -(2**63) else f"{whole}L"
            return text if dtype == torch.int64 else f"({TYPES[dtype]}){text}"
        suffix = "f" if dtype == torch.float32 else ""
        if math.isnan(number):
            text = f'__builtin_nan{suffix}("")'
        elif math.isinf(number):
            text = f"{'-' if number < 0 else ''}__builtin_inf{suffix}()"
        else:
            text = f"{float(number)!r}{suffix}"
        if dtype == torch.bfloat16:
            return f"::to_bf16((float){text})"
        return f"(_Float16){text}" if dtype == torch.float16 else text

    def write_index(self, value: Index) -> str:
        return f"(long)({self.index(value)})"

    def write_guard(self, value: Guard) -> str:
        return f"({self.text(value.condition)} ? {self.text(value.value)} : {self.text(value.other)})"

    def write_op(self, value: Op) -> str:
        if value.name == "cast":
            return convert(self.text(value.args[0]), value.args[0].dtype, value.dtype)
        operation = OPERATIONS[value.name]
        suffix = "f" if value.args[0].dtype == torch.float32 else ""
        self.called.add(operation.cpp.partition("(")[0].removeprefix("::").replace("{f}", suffix))
        text = operation.cpp.format(*map(self.text, value.args), f=suffix)
        is_promoted = value.dtype in _PROMOTED and operation.kind == "same" and text.startswith("(")
        return f"({TYPES[value.dtype]}){text}" if is_promoted else text

    def write_indirect(self, value: Indirect) -> str:
        return f"::checked({self.text(value.value)}, {self.index(value.size)}, failed)"

    def write_quotient(self, value: Quotient | Remainder) -> str:
        of, by = self.index(value.of), self.index(value.by)
        if is_natural(value.of):
            return f"(({of}) {'/' if isinstance(value, Quotient) else '%'} ({by}))"
        return f"::{'floordiv' if isinstance(value, Quotient) else 'remainder'}<long>({of}, {by})"

    write_remainder = write_quotient


def convert(text: str, old: torch.dtype, new: torch.dtype) -> str:
    """C++ text that casts a value from one dtype to another."""
    if old == torch.bfloat16:
        return convert(f"::from_bf16({text})", torch.float32, new)
    if new == old:
        return text
    if new == torch.bool:
        return f"({text} != 0)"
    if new == torch.bfloat16:
        return f"::to_bf16((float){text})"
    if new == torch.float16 and not old.is_floating_point:
        return f"(_Float16)(float){text}"
    if old.is_floating_point and new in _NARROW:
        return f"({TYPES[new]})(long){text}"
    return f"({TYPES[new]}){text}"
