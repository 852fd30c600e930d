"""Write expressions and indices as Triton source, and the helper functions that they call.

Triton infers the type of a result from the operands, and the type of a literal from the other operand. Literals are
written so that each operation runs in the dtype of the IR. Loads, and values with several uses, become variables.

`precision` finds float32 values that are used only in results rounded to float16 or bfloat16, which have 11 or 8
significant bits. For these a kernel may use fast approximations: a division or an exponential that is off by some ulps
of float32 nearly always rounds to the same number, and takes a third of the time. With fast memory, such operations
determine the time of the whole kernel. Levels of precision:

    EXACT       the same result as PyTorch's
    RELATIVE    relative error of about 1e-6
    ABSOLUTE    absolute error of 2e-7, for a value that is added to a constant of magnitude 1/2 or more
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

import torch

from compiler.backend.ir import Kernel, Loop, Program
from compiler.backend.ir.expr import Const, Expr, Guard, Load, Op, Put, indices, parts
from compiler.backend.ir.index import (
    Atom,
    Index,
    Indirect,
    Product,
    Quotient,
    Remainder,
    Symbol,
    Var,
    atoms_of,
    indirects,
    is_natural,
)
from compiler.backend.ir.kernel_text import KernelText
from compiler.backend.ir.scalar import DTYPES, HALVES, OPERATIONS

TYPES: Mapping[torch.dtype, str] = {dtype: called.triton for dtype, called in DTYPES.items()}

_LONG = 72
_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
_WORDS = {"tl", "triton", "libdevice", "float", "range", "x", "y", "r", "mask", "mask_x", "mask_y", "mask_r", "start"}
_IDENTIFIER = re.compile(r"\W")

FUNCTIONS: Mapping[str, str] = {
    "divided": """
def divided(a, b):  # rounded as PyTorch does it, which `/` is not in float32
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b""",
    "maximum": """
def maximum(a, b):  # NaN if one is
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)""",
    "minimum": """
def minimum(a, b):  # NaN if one is
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)""",
    "absolute": """
def absolute(a):
    return tl.abs(a)""",
    "sign": """
def sign(a):
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)""",
    "shift_left": """
def shift_left(a, b):  # 0 if no bit is left
    is_within = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(is_within, a << b, 0).to(a.dtype)""",
    "shift_right": """
def shift_right(a, b):  # the sign of a if no bit is left
    is_within = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(is_within, a >> b, tl.where(a < 0, -1, 0)).to(a.dtype)""",
    "truncdiv": """
def truncdiv(a, b):  # of whole numbers
    return a // b""",
    "floordiv": """
def floordiv(a, b):  # as PyTorch divides, and Python
    if a.dtype.is_floating():
        rest = libdevice.fmod(a, b)
        exact = divided(a - rest, b) - tl.where((rest != 0) & ((b < 0) != (rest < 0)), 1.0, 0.0).to(a.dtype)
        whole = libdevice.floor(exact)
        whole += tl.where(exact - whole > 0.5, 1.0, 0.0).to(a.dtype)
        quotient = divided(a, b)
        return tl.where(b == 0, quotient, tl.where(exact == 0, libdevice.copysign(exact * 0, quotient), whole))
    else:
        return a // b - ((a % b != 0) & ((a < 0) != (b < 0))).to(a.dtype)""",
    "remainder": """
def remainder(a, b):  # of the sign of b
    if a.dtype.is_floating():
        rest = libdevice.fmod(a, b)
    else:
        rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)""",
    "randint": """
def randint(seed, counter, size):
    first, second, _, _ = tl.randint4x(seed, tl.cast(counter, tl.uint32))
    word = first.to(tl.uint64) | (second.to(tl.uint64) << 32)
    return (word % tl.cast(size, tl.uint64)).to(tl.int64)""",
    "erf_added": """
def erf_added(a):  # to 2e-7, where one is added and the sum is rounded to 16 bits (Abramowitz and Stegun, 7.1.26)
    t = libdevice.fast_dividef(1.0, 1.0 + 0.3275911 * tl.abs(a))
    p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return libdevice.copysign(1.0 - p * tl.exp(-a * a), a)""",
    "tanh_added": """
def tanh_added(a):  # to 2e-7, where one is added and the sum is rounded to 16 bits
    return 1.0 - libdevice.fast_dividef(2.0, tl.exp(2.0 * a) + 1.0)""",
    "running_exp_sum": """
def running_exp_sum(largest, total, a, IS_ROUNDED: tl.constexpr):  # the largest yet, the sum of exp(a - largest)
    largest_yet = tl.maximum(largest, a, propagate_nan=tl.PropagateNan.ALL)
    gap = tl.minimum(largest, a) - tl.where(largest_yet == float("-inf"), 0.0, largest_yet)
    if IS_ROUNDED:
        scale = tl.exp(gap)
    else:
        scale = libdevice.exp(gap)
    return largest_yet, tl.where(a > largest, total * scale + 1.0, total + scale)  # exp(0) is 1""",
    "plus": """
def plus(a, b):
    return a + b""",
    "multiply": """
def multiply(a, b):
    return a * b""",
    "either": """
def either(a, b):
    return a | b""",
    "both": """
def both(a, b):
    return a & b""",
    "first_largest": """
def first_largest(a, i, b, j):  # NaN counts as the largest; of equal ones the first
    is_above = (a > b) | ((a != a) & (b == b))
    is_equal = (a == b) | ((a != a) & (b != b))
    is_first = is_above | (is_equal & (i < j))
    return tl.where(is_first, a, b), tl.where(is_first, i, j)""",
    "first_smallest": """
def first_smallest(a, i, b, j):  # NaN counts as the smallest; of equal ones the first
    is_below = (a < b) | ((a != a) & (b == b))
    is_equal = (a == b) | ((a != a) & (b != b))
    is_first = is_below | (is_equal & (i < j))
    return tl.where(is_first, a, b), tl.where(is_first, i, j)""",
}
"""Helpers for operations that Triton lacks or computes differently. A module contains the helpers that it calls."""
_READ_DTYPE = ("shift_left", "shift_right", "remainder", "floordiv")
"""Operations of two arguments whose helpers ask for the dtype of the first."""

EXACT, RELATIVE, ABSOLUTE = range(3)
_CONTINUOUS = frozenset(
    ("add", "sub", "mul", "div", "neg", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "erf", "erfc", "tanh",
     "maximum", "minimum", "absolute")
)  # fmt: skip
"""Operations for which a small error of an argument causes only a small error of the result."""

PATTERNS: Mapping[tuple[str, int], str] = {
    ("div", RELATIVE): "({0} / {1})",
    ("exp", RELATIVE): "tl.exp({0})",
    ("div", ABSOLUTE): "({0} / {1})",
    ("exp", ABSOLUTE): "tl.exp({0})",
    ("erf", ABSOLUTE): "erf_added({0})",
    ("tanh", ABSOLUTE): "tanh_added({0})",
}
"""Faster Triton code for float32 operations that need not be exact, by operation and level of precision."""


def functions(called: Set[str]) -> Iterator[str]:
    """Source of the helper functions with these names, and of the helpers that they call."""
    needed = called | {"divided"} if "floordiv" in called else called
    yield from (f"@triton.jit{text}" for name, text in FUNCTIONS.items() if name in needed)


class Names:
    """Unique names of variables in a kernel."""

    def __init__(self) -> None:
        self.taken = {*_WORDS, *FUNCTIONS, *keyword.kwlist}

    def new(self, wanted: str) -> str:
        """Reserve and return a unique name: `wanted` as an identifier, with a number if it is taken."""
        base = name = _IDENTIFIER.sub("_", wanted)
        number = 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name


def identifier(name: str) -> str:
    """A buffer's name as a valid identifier."""
    return _IDENTIFIER.sub("_", name)


def plain(value: float, dtype: torch.dtype) -> str:
    """A number as a Python literal."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    return repr(float(value)) if math.isfinite(value) else f'float("{float(value)!r}")'


def convert(text: str, old: torch.dtype, new: torch.dtype) -> str:
    """Triton text that converts a value from one dtype to another."""
    if old == new:
        return text
    if new == torch.bool:
        return f"({text} != 0)"
    if old.is_floating_point and new in (torch.uint8, torch.int8, torch.int16):
        text = f"{text}.to(tl.int64)"  # as PyTorch: out-of-range values wrap, they don't saturate
    return f"{text}.to(tl.{TYPES[new]})"


class TritonText(KernelText):
    """Writes expressions in Triton.

    uses       number of uses of each part of the current loop's value, by key
    levels     level of precision of each operation of the current loop, by key
    given      names of all values that were assigned to variables so far, by key
    ranges     names of the kernel's ranges before tiling, by key of their index
    axis_keys  keys of the variables of the tile's axes
    spans      axes that each loop's value depends on, by target
    guard      condition that masks the current loads, "" for none
    guarded    axes that each guard depends on
    is_wide    whether indices are 64-bit numbers
    """

    def __init__(self, kernel: Kernel, program: Program) -> None:
        super().__init__(kernel, program)
        self.names = Names()
        self.given: dict[str, str] = {}
        self.ranges: dict[str, str] = {}
        self.guard = ""
        self.guarded: dict[str, set[str]] = {}
        self.axis_keys: Set[str] = frozenset()
        self.spans: dict[str, set[str]] = {}
        self.uses: Counter[str] = Counter()
        self.levels: Mapping[str, int] = {}
        self.is_wide = False

    def axes_of(self, value: Expr) -> set[str]:
        """The names of the axes that a value depends on."""
        if isinstance(value, Index):
            found = {atom.name for atom in atoms_of(value) if isinstance(atom, Var) and atom.key in self.axis_keys}
            return found.union(*(self.axes_of(held.value) for held in indirects(value)))
        found = set()
        for part in parts(value):
            if isinstance(part, Load) and part.buffer in self.spans:
                found |= self.spans[part.buffer]
            else:
                found = found.union(*map(self.axes_of, indices(part)))
        return found

    def assign(self, key: str, wanted: str, text: Callable[[], str]) -> str:
        """Name of a key's variable; a new variable is assigned the text. A text that is only a name is returned."""
        if key not in self.known:
            made = bare(text())
            if made.isidentifier():
                return made
            name = self.given.get(key) or self.names.new(self.ranges.get(f"1*{key}", wanted))
            self.given[key] = name
            self.line(f"{name} = {made}")
            self.known[key] = name
        return self.known[key]

    def text(self, value: Expr | Atom) -> str:
        if self.uses.get(value.key, 0) > 1 and isinstance(value, Op | Guard):
            return self.name_value(value, lambda: KernelText.text(self, value))
        return super().text(value)

    def write_const(self, value: Const) -> str:
        """Text of a constant: a plain literal if Triton infers the right dtype from it, else with an explicit dtype."""
        dtype, text = value.dtype, plain(value.value, value.dtype)
        if dtype == torch.bool:
            return text
        if dtype == torch.bfloat16:
            return f"tl.full([], {text}, tl.float32).to(tl.bfloat16)"  # Triton's interpreter can't fill with bfloat16
        if dtype == torch.float32:
            is_plain = not math.isfinite(value.value) or value.value == 0 or _SMALLEST <= abs(value.value) <= _LARGEST
        else:
            is_plain = dtype in (torch.int32, torch.int64) and -(2**31) <= value.value < 2**31
        return text if is_plain else f"tl.full([], {text}, tl.{TYPES[dtype]})"

    def name_value(self, value: Op | Guard, text: Callable[[], str]) -> str:
        return self.assign(f"{value.key} {self.guard}", value.name if isinstance(value, Op) else "value", text)

    def write_guard(self, value: Guard) -> str:
        """Text of a `tl.where` of the two values; loads are masked by the condition or by its negation."""
        wanted, outer, texts = self.text(value.condition), self.guard, []
        if wanted in ("True", "False"):
            return self.text(value.value if wanted == "True" else value.other)
        inside = self.assign(f"{value.condition.key} {outer}", "is_inside", lambda: wanted)
        for part, condition in ((value.value, inside), (value.other, f"~{inside}")):
            both = f"{outer} & {condition}"
            self.guard = self.assign(both, "is_inside", both.__str__) if outer else condition
            self.guarded[self.guard] = self.axes_of(value.condition) | self.guarded.get(outer, set())
            texts.append(self.text(part))
            self.guard = outer
        return f"tl.where({', '.join([inside, *texts])})"

    def write_op(self, value: Op) -> str:
        if value.name == "cast":
            return self.cast(value.args[0], value.dtype)
        pattern = OPERATIONS[value.name].triton
        if value.dtype == torch.bool and value.args[0].dtype == torch.bool:
            pattern = _OF_BOOLS.get(value.name, pattern)
        if value.dtype == torch.float64:
            pattern = _OF_DOUBLES.get(value.name, pattern)
        if (value.name, value.dtype) == ("neg", torch.uint8):
            pattern = "(-{0})"  # not `{0} * -1`, which floats need for -0.0: -1 is no uint8
        if value.dtype == torch.float32:
            pattern = PATTERNS.get((value.name, self.levels.get(value.key, EXACT)), pattern)
        self.called.add(pattern.partition("(")[0])
        match value:
            case Op("div", (Const(1), Op("sqrt", (of,)))):
                return f"libdevice.rsqrt({bare(self.argument(of))})"
        if OPERATIONS[value.name].kind == "compare" and all(map(_is_small, value.args)):
            arguments = [self.index(arg) if isinstance(arg, Index) else str(arg) for arg in value.args]
        else:
            arguments = self.typed_arguments(value)
        return pattern.format(*(arguments if pattern[0] in "(~" else map(bare, arguments)))

    def typed_arguments(self, value: Op) -> list[str]:
        """Texts of the arguments. Constants have an explicit dtype if Triton can't infer it from another argument."""
        reads_dtype = value.name in _READ_DTYPE and isinstance(value.args[0], Const)
        if reads_dtype or all(
            isinstance(arg, Const) or (isinstance(arg, Index) and arg.constant is not None) for arg in value.args
        ):
            first, *others = value.args
            typed = f"tl.full([], {bare(self.argument(first))}, tl.{TYPES[first.dtype]})"
            return [typed, *(self.argument(arg) for arg in others)]
        beside = value.args[1:] if value.name == "where" else value.args
        is_sum = OPERATIONS[value.name].triton.startswith(("(", "tl.where"))
        is_typed = not is_sum or all(isinstance(arg, Const) for arg in beside)
        return [
            self.argument(arg) if is_typed or not isinstance(arg, Const) else plain(arg.value, arg.dtype)
            for arg in value.args
        ]

    def argument(self, value: Expr) -> str:
        """Text of an expression as an argument; a long expression is assigned to a variable."""
        text = self.text(value)
        if len(text) <= _LONG or not isinstance(value, Op | Guard):
            return text
        return self.name_value(value, lambda: text)

    def cast(self, value: Expr, dtype: torch.dtype) -> str:
        if isinstance(value, Index) and dtype != torch.bool:
            return self.write_index(value, dtype)
        if isinstance(value, Const):
            text = f"tl.full([], {plain(value.value, value.dtype)}, tl.{TYPES[value.dtype]})"
        else:
            text = self.argument(value)
        return convert(text, value.dtype, dtype)

    def write_index(self, index: Index, dtype: torch.dtype = torch.int64) -> str:
        if index.constant is not None:
            return self.text(Const(index.constant, dtype))
        return f"{_operand(self.index(index))}.to(tl.{TYPES[dtype]})"

    def sorted_terms(self, index: Index) -> Iterable[tuple[Product, int]]:
        return sorted(index.terms, key=lambda term: (not term[0], -abs(term[1])))

    def write_quotient(self, atom: Quotient | Remainder) -> str:
        is_held = bool(indirects(atom.of) or indirects(atom.by))
        key = f"{atom.key} {self.guard}" if is_held else atom.key  # a masked load is valid under its guard only
        return self.assign(key, "i", lambda: self.ratio_text(atom))

    write_remainder = write_quotient

    def divides_unsigned(self, atom: Quotient | Remainder) -> bool:
        """Whether the result of another division is divided by a constant that is not a power of two, in 32 bits.

        LLVM turns a signed division into 16-bit products where it can prove that the numbers are small. For a chain of
        such divisions, code for an H200 had wrong results (Triton 3.6, ptxas 12.8 to 13.1, with optimisation only).
        """
        by, inner = atom.by.constant, [*atoms_of(atom.of)]
        is_chain = any(isinstance(other, Quotient | Remainder) for other in inner)
        is_int32 = not (self.is_wide or any(isinstance(other, Indirect | Symbol) for other in inner))
        return by is not None and by & (by - 1) != 0 and is_chain and is_int32

    def ratio_text(self, atom: Quotient | Remainder) -> str:
        """Text of a floor division or remainder. Triton truncates like C, so negative numbers need a helper."""
        of, by = self.index(atom.of), self.index(atom.by)
        if is_natural(atom.of):
            if self.divides_unsigned(atom):
                return f"({_operand(of)}.to(tl.uint32) {atom.sign} {by}).to(tl.int32)"
            return f"{_operand(of)} {atom.sign} {_operand(by)}"
        if atom.of.constant is not None:  # a helper needs an argument with a dtype
            of = f"tl.full([], {of}, tl.int64)"
        function = "floordiv" if isinstance(atom, Quotient) else "remainder"
        self.called.add(function)
        return f"{function}({of}, {by})"


_OF_BOOLS: Mapping[str, str] = {
    "maximum": "({0} | {1})",
    "minimum": "({0} & {1})",
    "lt": "(~{0} & {1})",
    "le": "(~{0} | {1})",
    "gt": "({0} & ~{1})",
    "ge": "({0} | ~{1})",
    "ne": "({0} ^ {1})",
    "eq": "(~({0} ^ {1}))",
}
"""Bitwise operations for bools: Triton compares bools as signed one-bit integers, in which true is -1."""


_OF_DOUBLES: Mapping[str, str] = {"div": "({0} / {1})", "sqrt": "tl.sqrt({0})"}
"""Operations that are exact for float64 without a special function."""


def _operand(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def bare(text: str) -> str:
    """Remove outer parentheses."""
    if not text.startswith("("):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 else text
    return text


def _is_small(value: Expr) -> bool:
    """Whether an expression is a non-zero index, or an int64 constant that fits in 32 bits."""
    if isinstance(value, Const):
        return value.dtype == torch.int64 and -(2**31) <= value.value < 2**31
    return isinstance(value, Index) and bool(value.terms)


def precision(kernel: Kernel, program: Program) -> Mapping[str, Mapping[str, int]]:
    """Level of precision that each operation needs, by the target of its loop and then by the operation's key."""
    needs: dict[str, int] = {}
    found: dict[str, dict[str, int]] = {}
    for loop in reversed(kernel.loops):
        own = found[loop.target] = {}
        for value, level in _levels(loop.value, _level(loop, kernel, program, needs)):
            if isinstance(value, Load):
                needs[value.buffer] = min(level, needs.get(value.buffer, level))
            own[value.key] = min(level, own.get(value.key, level))
    return found


def _level(loop: Loop, kernel: Kernel, program: Program, needs: Mapping[str, int]) -> int:
    is_stored = loop.target not in kernel.local and program.by_name[loop.target].dtype not in HALVES
    if is_stored or loop.reduction.startswith("arg"):
        return EXACT
    level = needs.get(loop.target, EXACT)
    return min(level, RELATIVE) if loop.reduction else level


def _levels(value: Expr, level: int) -> Iterator[tuple[Expr, int]]:
    """Parts of an expression with the level of precision that each needs."""
    yield value, level
    if isinstance(value, Op):
        for child, needed in _children(value, level):
            yield from _levels(child, needed)
    elif isinstance(value, Guard):
        yield from _levels(value.condition, EXACT)
        yield from _levels(value.value, level)
        yield from _levels(value.other, level)
    elif isinstance(value, Put):
        yield from _levels(value.value, EXACT)
    for index in indices(value):
        for held in indirects(index):
            yield from _levels(held.value, EXACT)


def _children(value: Op, level: int) -> Iterator[tuple[Expr, int]]:
    if value.name == "cast":
        is_float = value.dtype == torch.float32
        yield value.args[0], RELATIVE if value.dtype in HALVES else level if is_float else EXACT
    elif value.name == "where":
        yield from zip(value.args, (EXACT, level, level), strict=True)
    elif value.name not in _CONTINUOUS or level == EXACT:
        yield from ((arg, EXACT) for arg in value.args)
    else:
        has_half = any(isinstance(arg, Const) and abs(arg.value) >= 0.5 for arg in value.args)
        beside_one = has_half and value.name in ("add", "sub")
        yield from ((arg, ABSOLUTE if beside_one else RELATIVE) for arg in value.args)
