"""Expressions and indices as Triton text, and the few functions that they call.

Triton takes the types of what it computes from its arguments, and of a number from the other argument: numbers are
written so that nothing is computed in another dtype than the IR says. Loads, and what is used more than once, get
names: how is the writer's business.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Protocol

import torch

from compiler.backend.ir.expr import At, Const, Expr, Guard, Load, Op, Put, parts
from compiler.backend.ir.index import Atom, Index, Indirect, Quotient, Remainder, is_natural
from compiler.backend.ir.index_maps import indirects
from compiler.backend.ir.scalar import DTYPES, OPERATIONS
from compiler.backend.triton.precision import EXACT, PATTERNS

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
"""What Triton has no function for, or one with other rules for NaN. A module has those that it calls."""


def functions(called: Set[str]) -> Iterator[str]:
    """The functions of the prelude with these names, and those that they call."""
    needed = called | {"divided"} if "floordiv" in called else called
    yield from (f"@triton.jit{text}" for name, text in FUNCTIONS.items() if name in needed)


class Names:
    """Names of variables in a kernel, each given once."""

    def __init__(self) -> None:
        self.taken = {*_WORDS, *FUNCTIONS, *keyword.kwlist}

    def new(self, wanted: str) -> str:
        """The wanted name, or with a number if it is taken."""
        base = name = _IDENTIFIER.sub("_", wanted)
        number = 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name


def identifier(name: str) -> str:
    """A buffer's name as a part of names in Triton."""
    return _IDENTIFIER.sub("_", name)


def _is_number(value: Expr) -> bool:
    return isinstance(value, Const) or (isinstance(value, At) and value.index.constant is not None)


def constant(value: bool | int | float, dtype: torch.dtype) -> str:
    """A number: Python's where Triton takes that for one of the dtype, else with the dtype."""
    text = plain(value, dtype)
    if dtype == torch.bool:
        return text
    if dtype == torch.bfloat16:
        return f"tl.full([], {text}, tl.float32).to(tl.bfloat16)"  # Triton's interpreter has no such numbers
    if dtype == torch.float32:
        is_plain = not math.isfinite(value) or value == 0 or _SMALLEST <= abs(value) <= _LARGEST
    else:
        is_plain = dtype in (torch.int32, torch.int64) and -(2**31) <= value < 2**31
    return text if is_plain else f"tl.full([], {text}, tl.{TYPES[dtype]})"


def plain(value: float, dtype: torch.dtype) -> str:
    """A number in Python."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    return repr(float(value)) if math.isfinite(value) else f'float("{float(value)!r}")'


def convert(text: str, old: torch.dtype, new: torch.dtype) -> str:
    """A value of one dtype in another."""
    if old == new:
        return text
    if new == torch.bool:
        return f"({text} != 0)"
    if old.is_floating_point and new in (torch.uint8, torch.int8, torch.int16):
        text = f"{text}.to(tl.int64)"  # as PyTorch: what does not fit is cut, not the nearest
    return f"{text}.to(tl.{TYPES[new]})"


class Writer(Protocol):
    """Who writes the lines before the one that an expression is part of. `called` are functions of the prelude."""

    called: set[str]

    def load(self, load: Load, guard: str) -> str:
        """The name of an element's value; with a guard of one that is loaded only where that holds."""

    def checked_index(self, atom: Indirect, guard: str) -> str:
        """An index that a tensor holds, whose range is checked."""

    def guards(self, guard: str, condition: Expr, outer: str) -> None:
        """To be told which points a guard is about: those of the condition, and of the guard around it."""

    def assign(self, key: str, wanted: str, text: Callable[[], str]) -> str:
        """The variable of this key, which holds the text's value."""


class Text:
    """Writes the expressions of one loop. `levels` says how exact its operations have to be, by their keys."""

    def __init__(self, writer: Writer, value: Expr | None = None, levels: Mapping[str, int] | None = None) -> None:
        self.writer = writer
        self.levels = levels or {}
        self.uses = Counter(part.key for part in parts(value)) if value is not None else Counter()

    def value(self, value: Expr, guard: str = "") -> str:
        """An expression. `guard` is the condition under which its loads may be done, "" for none."""
        if isinstance(value, Const):
            return constant(value.value, value.dtype)
        if isinstance(value, Load):
            return self.writer.load(value, guard)
        if isinstance(value, At):
            return self.number(value.index, torch.int64, guard)
        assert not isinstance(value, Put), "a kernel's writer adds"
        if self.uses[value.key] > 1:
            return self.assign(value, guard, lambda: self.compute(value, guard))
        return self.compute(value, guard)

    def assign(self, value: Op | Guard, guard: str, text: Callable[[], str]) -> str:
        name = value.name if isinstance(value, Op) else "value"
        return self.writer.assign(f"{value.key} {guard}", name, text)

    def compute(self, value: Op | Guard, guard: str) -> str:
        return self.write_guard(value, guard) if isinstance(value, Guard) else self.operation(value, guard)

    def write_guard(self, value: Guard, guard: str) -> str:
        """Both are computed; what is loaded for one is not loaded where the other counts."""
        wanted = self.value(value.condition, guard)
        if wanted in ("True", "False"):
            return self.value(value.value if wanted == "True" else value.other, guard)
        inside = self.writer.assign(f"{value.condition.key} {guard}", "is_inside", lambda: wanted)
        texts = [self.value(value.value, self.both(guard, inside, value.condition))]
        texts.append(self.value(value.other, self.both(guard, f"~{inside}", value.condition)))
        return f"tl.where({', '.join([inside, *texts])})"

    def both(self, guard: str, condition: str, of: Expr) -> str:
        text = f"{guard} & {condition}"
        both = self.writer.assign(text, "is_inside", lambda: text) if guard else condition
        self.writer.guards(both, of, guard)
        return both

    def operation(self, value: Op, guard: str) -> str:
        if value.name == "cast":
            return self.cast(value.args[0], value.dtype, guard)
        pattern = OPERATIONS[value.name].triton
        if value.dtype == torch.bool and value.args[0].dtype == torch.bool:
            pattern = _OF_BOOLS.get(value.name, pattern)
        if value.dtype == torch.float64:
            pattern = _OF_DOUBLES.get(value.name, pattern)
        if (value.name, value.dtype) == ("neg", torch.uint8):
            pattern = "(-{0})"  # by which of floats 0 becomes 0, and -1 is no uint8
        if value.dtype == torch.float32:
            pattern = PATTERNS.get((value.name, self.levels.get(value.key, EXACT)), pattern)
        self.writer.called.add(pattern.partition("(")[0])
        match value:
            case Op("div", (Const(1), Op("sqrt", (of,)))):
                return f"libdevice.rsqrt({bare(self.argument(of, guard))})"
        if OPERATIONS[value.name].kind == "compare" and all(map(_is_small, value.args)):
            arguments = [self.whole(arg, guard) for arg in value.args]
        else:
            arguments = self.arguments(value, guard)
        return pattern.format(*(arguments if pattern[0] in "(~" else map(bare, arguments)))

    def arguments(self, value: Op, guard: str) -> list[str]:
        """A number takes the type of what is beside it in a sum or `tl.where`; of numbers alone the first has one."""
        if all(_is_number(arg) for arg in value.args):
            first, *others = value.args
            typed = f"tl.full([], {bare(self.argument(first, guard))}, tl.{TYPES[first.dtype]})"
            return [typed, *(self.argument(arg, guard) for arg in others)]
        beside = value.args[1:] if value.name == "where" else value.args
        is_sum = OPERATIONS[value.name].triton.startswith(("(", "tl.where"))
        is_typed = not is_sum or all(isinstance(arg, Const) for arg in beside)
        return [
            self.argument(arg, guard) if is_typed or not isinstance(arg, Const) else plain(arg.value, arg.dtype)
            for arg in value.args
        ]

    def argument(self, value: Expr, guard: str) -> str:
        """An expression as an argument of another: by name if it is long."""
        text = self.value(value, guard)
        if len(text) <= _LONG or not isinstance(value, Op | Guard):
            return text
        return self.assign(value, guard, lambda: text)

    def whole(self, value: Expr, guard: str) -> str:
        """An index or a whole number, of the kernel's own type for indices."""
        return self.index(value.index, guard) if isinstance(value, At) else str(getattr(value, "value", ""))

    def cast(self, value: Expr, dtype: torch.dtype, guard: str) -> str:
        if isinstance(value, At) and dtype != torch.bool:
            return self.number(value.index, dtype, guard)
        if isinstance(value, Const):
            text = f"tl.full([], {plain(value.value, value.dtype)}, tl.{TYPES[value.dtype]})"
        else:
            text = self.argument(value, guard)
        return convert(text, value.dtype, dtype)

    def number(self, index: Index, dtype: torch.dtype, guard: str) -> str:
        """An index as a number of a dtype."""
        if index.constant is not None:
            return constant(index.constant, dtype)
        return f"{_operand(self.index(index, guard))}.to(tl.{TYPES[dtype]})"

    def index(self, index: Index, guard: str = "") -> str:
        """An index, of the kernel's type for indices."""
        terms = []
        for atoms, factor in sorted(index.terms, key=lambda term: (not term[0], -abs(term[1]))):
            names = [self.atom(atom, guard) for atom in atoms]
            terms.append("*".join(names if factor == 1 and names else [str(factor), *names]))
        return " + ".join(terms).replace("+ -", "- ") or "0"

    def atom(self, atom: Atom, guard: str) -> str:
        if isinstance(atom, Indirect):
            return self.writer.checked_index(atom, guard)
        if not isinstance(atom, Quotient | Remainder):
            return atom.name
        is_held = bool(indirects(atom.of) or indirects(atom.by))
        key = f"{atom.key} {guard}" if is_held else atom.key  # what was loaded for some points only is for these
        return self.writer.assign(key, "i", lambda: self.ratio(atom, guard))

    def ratio(self, atom: Quotient | Remainder, guard: str = "") -> str:
        """A quotient or remainder: Triton's are C's, which are Python's for what is not negative."""
        of, by = self.index(atom.of, guard), self.index(atom.by, guard)
        if is_natural(atom.of):
            return f"{_operand(of)} {atom.sign} {_operand(by)}"
        if atom.of.constant is not None:  # a function of Triton's takes a number for one without a dtype
            of = f"tl.full([], {of}, tl.int64)"
        function = "floordiv" if isinstance(atom, Quotient) else "remainder"
        self.writer.called.add(function)
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
"""A bool is one bit, whose value Triton takes for -1 where it compares."""


_OF_DOUBLES: Mapping[str, str] = {"div": "({0} / {1})", "sqrt": "tl.sqrt({0})"}
"""Exact as they are; Triton has no others for float64."""


def _operand(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def bare(text: str) -> str:
    """A text without parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 else text
    return text


def _is_small(value: Expr) -> bool:
    """Whether it is an index, or a number that all indices can be compared with."""
    if isinstance(value, Const):
        return value.dtype == torch.int64 and -(2**31) <= value.value < 2**31
    return isinstance(value, At) and bool(value.index.terms)
