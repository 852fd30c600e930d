"""Integer index expressions over loop variables and sizes, with which programs address memory.

An `Index` is a sum of products of atoms, always simplified. The atoms are

    Var                   a loop variable; it carries its size, so 0 ≤ var < size is always known
    Symbol                a symbolic size, or another number known at run time
    Quotient, Remainder   of two indices
    Indirect              a value loaded from a tensor

Two equal indices have equal keys and print alike. Simplification assumes that all loops have at least one point, so
that sizes are at least 1. Division and remainder round down, as in Python.

The module also inspects, substitutes and evaluates indices, and checks whether a loop nest visits each element once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import attrgetter, mul
from typing import Any, ClassVar, TypeAlias

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Keyed:
    """Base class with equality by `key`, a text of all fields: variables of one name but two sizes are not equal."""

    key: str = field(init=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def as_text(value: object) -> str:
    """Text of an expression in a printed program: `int(i0 + 1)` for an index that is used as a number."""
    return f"int({value})" if isinstance(value, Index) else str(value)


@dataclass(frozen=True, slots=True, eq=False)
class Var(Keyed):
    """A loop variable: 0 ≤ name < size."""

    name: str
    size: Index

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.name}<{self.size.key}>")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Symbol(Keyed):
    """A number known when the program is called. If it is a size (`is_size`), it is at least 1 inside loops."""

    name: str
    is_size: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.name if self.is_size else f"any {self.name}")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Indirect(Keyed):
    """An index loaded from a tensor: the expression `value`, checked at run time to be 0 ≤ value < size."""

    value: Any
    size: Index

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"at<{self.value.key}, {self.size.key}>")

    def __str__(self) -> str:
        return f"at({as_text(self.value)})"


@dataclass(frozen=True, slots=True, eq=False)
class _Ratio(Keyed):
    of: Index
    by: Index
    sign = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"({self.of.key} {self.sign} {self.by.key})")

    def __str__(self) -> str:
        is_one = self.by.constant is not None or self.by.atom is not None
        of = f"({self.of})" if len(self.of.terms) > 1 else str(self.of)
        return f"({of} {self.sign} {self.by if is_one else f'({self.by})'})"


class Quotient(_Ratio):
    """of // by, not further simplified."""

    sign = "//"


class Remainder(_Ratio):
    """of % by, not further simplified."""

    sign = "%"


Atom: TypeAlias = Var | Symbol | Indirect | Quotient | Remainder
Product: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Index(Keyed):
    """A sum of terms: each is a product of atoms and a non-zero factor. `Index.of` converts an int or an atom."""

    terms: tuple[tuple[Product, int], ...]
    dtype: ClassVar[torch.dtype] = torch.int64

    def __post_init__(self) -> None:
        terms = ("*".join([str(factor), *(atom.key for atom in atoms)]) for atoms, factor in self.terms)
        object.__setattr__(self, "key", " + ".join(terms) or "0")

    @staticmethod
    def of(value: int | Atom | Index) -> Index:
        """Convert an int, an atom or an index to an index."""
        if isinstance(value, Index):
            return value
        if isinstance(value, int):
            return _constant(value)
        return Index((((value,), 1),))

    @property
    def constant(self) -> int | None:
        """Value of a constant index, else None."""
        if not self.terms:
            return 0
        (atoms, factor), *others = self.terms
        return None if atoms or others else factor

    @property
    def atom(self) -> Atom | None:
        """The atom of an index that is a single atom, else None."""
        if len(self.terms) != 1:
            return None
        atoms, factor = self.terms[0]
        return atoms[0] if factor == 1 and len(atoms) == 1 else None

    def __add__(self, other: int | Atom | Index) -> Index:
        return _add(self, other if isinstance(other, Index) else Index.of(other))

    def __sub__(self, other: int | Atom | Index) -> Index:
        return _add(self, _multiply(Index.of(other), _constant(-1)))

    def __mul__(self, other: int | Atom | Index) -> Index:
        return _multiply(self, other if isinstance(other, Index) else Index.of(other))

    def __floordiv__(self, other: int | Atom | Index) -> Index:
        return _divide(self, other if isinstance(other, Index) else Index.of(other))

    def __mod__(self, other: int | Atom | Index) -> Index:
        return _remainder(self, other if isinstance(other, Index) else Index.of(other))

    def __str__(self) -> str:
        """Text as a Python expression."""
        text = " + ".join(_term_text(*term) for term in self.terms) or "0"
        return text.replace("+ -", "- ")


def product(factors: Iterable[Index]) -> Index:
    """Product of indices, 1 if there are none."""
    return _product(tuple(factors))


@lru_cache(1 << 14)
def _product(factors: tuple[Index, ...]) -> Index:
    return reduce(mul, factors, _constant(1))


@lru_cache(1 << 16)
def scalar_product(places: tuple[Index, ...], steps: tuple[Index, ...]) -> Index:
    """Dot product of coordinates and strides: an offset, in elements."""
    total = _constant(0)
    for place, step in zip(places, steps, strict=True):
        total = total + place * step
    return total


@lru_cache(4096)
def _constant(value: int) -> Index:
    return Index((((), value),)) if value else Index(())


def _term_text(atoms: Product, factor: int) -> str:
    names = [str(atom) for atom in atoms]
    if not names or abs(factor) != 1:
        names.insert(0, str(factor))
    elif factor == -1:
        names[0] = f"-{names[0]}"
    return "*".join(names)


_by_key = attrgetter("key")


def _sum_of(terms: Mapping[Product, int]) -> Index:
    kept = [term for term in terms.items() if term[1]]
    kept.sort(key=lambda term: (not term[0], [atom.key for atom in term[0]]))
    return Index(tuple(kept))


@lru_cache(1 << 16)
def _add(left: Index, right: Index) -> Index:
    terms = dict(left.terms)
    for atoms, factor in right.terms:
        terms[atoms] = terms.get(atoms, 0) + factor
    return _recombine_divisions(_sum_of(terms))


@lru_cache(1 << 16)
def _multiply(left: Index, right: Index) -> Index:
    return _recombine_divisions(_multiply_plain(left, right))


def _recombine_divisions(index: Index) -> Index:
    """Replace x // c * c + x % c by x, and (x // c) % d * c + x % c by x % (c * d)."""
    for atoms, factor in index.terms:
        for atom in atoms:
            if isinstance(atom, Remainder) and (better := _join_remainder(index, atoms, factor, atom)) is not None:
                return better
    return index


def _join_remainder(index: Index, atoms: Product, factor: int, low: Remainder) -> Index | None:
    outside = Index(((_divide_atoms(atoms, (low,)) or (), factor),))
    high = _divide(low.of, low.by)
    if (rest := _subtract_terms(index, _multiply_plain(_multiply_plain(outside, high), low.by), atoms)) is not None:
        return _add(rest, _multiply(outside, low.of))
    for name, _ in index.terms:
        for atom in name:
            if isinstance(atom, Remainder) and atom.of == high:
                step = _multiply_plain(_multiply_plain(outside, Index.of(atom)), low.by)
                if (rest := _subtract_terms(index, step, atoms)) is not None:
                    return _add(rest, _multiply(outside, _remainder(low.of, low.by * atom.by)))
    return None


def _subtract_terms(index: Index, part: Index, atoms: Product) -> Index | None:
    """Remove the terms of `part` and the term of `atoms`; None if the index does not contain `part`."""
    terms, parts = dict(index.terms), dict(part.terms)
    if not parts or any(terms.get(name) != times for name, times in parts.items()):
        return None
    return _sum_of({name: times for name, times in terms.items() if name not in parts and name != atoms})


def _multiply_plain(left: Index, right: Index) -> Index:
    """Product of two indices, without recombining divisions."""
    terms: dict[Product, int] = {}
    for first, factor in left.terms:
        for second, other in right.terms:
            atoms = tuple(sorted(first + second, key=_by_key))
            terms[atoms] = terms.get(atoms, 0) + factor * other
    return _sum_of(terms)


@lru_cache(1 << 16)
def _divide(index: Index, by: Index) -> Index:
    if by.constant == 1 or not index.terms:
        return index
    if index.constant is not None and by.constant is not None:
        return _constant(index.constant // by.constant)
    whole, rest = _split(index, by)
    if is_below(rest, by) and is_natural(rest):
        return whole
    if whole.terms:
        return whole + _divide(rest, by)
    if (smaller := _cancel_common_factor(index, by)) is not None:
        return _divide(*smaller[:2])
    if isinstance(inner := index.atom, Quotient):
        return _divide(inner.of, inner.by * by)
    if isinstance(inner, Remainder) and not (parts := _split(inner.by, by))[1].terms:
        return _remainder(_divide(inner.of, by), parts[0])
    return Index.of(Quotient(index, by))


@lru_cache(1 << 16)
def _remainder(index: Index, by: Index) -> Index:
    if by.constant == 1 or not index.terms:
        return _constant(0)
    if index.constant is not None and by.constant is not None:
        return _constant(index.constant % by.constant)
    whole, rest = _split(index, by)
    if is_natural(rest) and is_below(rest, by):
        return rest
    if whole.terms:
        return _remainder(rest, by)
    if (smaller := _cancel_common_factor(index, by)) is not None:
        part, parts, unit, left = smaller
        return _remainder(part, parts) * unit + left
    if isinstance(inner := index.atom, Remainder) and not _split(inner.by, by)[1].terms:
        return _remainder(inner.of, by)
    return Index.of(Remainder(index, by))


def _split(index: Index, by: Index) -> tuple[Index, Index]:
    """Return (whole, rest) with index = whole * by + rest; (0, index) if `by` has several terms."""
    if len(by.terms) != 1:
        return _constant(0), index
    ((divisor, unit),) = by.terms
    whole: dict[Product, int] = {}
    rest: dict[Product, int] = {}
    for atoms, factor in index.terms:
        left = _divide_atoms(atoms, divisor)
        times, remaining = divmod(factor, unit) if left is not None else (0, factor)
        if left is not None and times:
            whole[left] = whole.get(left, 0) + times
        if remaining:
            rest[atoms] = remaining
    return _sum_of(whole), _sum_of(rest)


def _divide_atoms(atoms: Product, divisor: Product) -> Product | None:
    left = list(atoms)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _cancel_common_factor(index: Index, by: Index) -> tuple[Index, Index, Index, Index] | None:
    """Cancel a common factor of an index and a divisor; None if there is none.

    Returns (part, parts, unit, left) with index = part * unit + left, by = parts * unit, 0 ≤ left < unit, and unit > 1.
    """
    for unit in _units(by):
        part, left = _split(index, unit)
        if unit.constant != 1 and part.terms and is_natural(left) and is_below(left, unit):
            return part, _split(by, unit)[0], unit, left
    return None


def _units(by: Index) -> Iterator[Index]:
    """Candidate divisors of a product: without one of its atoms, or with a smaller factor. None for several terms."""
    if len(by.terms) != 1:
        return
    ((divisor, factor),) = by.terms
    for skipped in range(len(divisor)):
        yield Index(((divisor[:skipped] + divisor[skipped + 1 :], factor),))
    for less in divisors(factor):
        yield Index(((divisor, factor // less),))


@lru_cache(1024)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors above 1, in ascending order."""
    small = [one for one in range(2, math.isqrt(max(number, 1)) + 1) if number % one == 0]
    return tuple(sorted({*small, *(number // one for one in small), number} - {1}))


@lru_cache(1 << 16)
def is_below(index: Index, limit: Index) -> bool:
    """Whether index < limit is proven."""
    return is_natural(limit - index - 1)


@lru_cache(1 << 16)
def is_natural(index: Index) -> bool:
    """Whether index ≥ 0 is proven, by the lower bound of each term and sizes of at least 1."""
    if all(factor > 0 for _, factor in index.terms) and all(_never_negative(a) for t, _ in index.terms for a in t):
        return True
    least = index
    for _ in range(8):
        if any(isinstance(atom, Symbol) and not atom.is_size for atoms, _ in least.terms for atom in atoms):
            return False
        bounded = next((atom for atoms, _ in least.terms for atom in atoms if not isinstance(atom, Symbol)), None)
        if bounded is None:
            return _is_natural_for_sizes(least)
        if (lower := _lower_bound(least, bounded)) is None:
            return False
        least = lower
    return False


def _never_negative(atom: Atom) -> bool:
    if isinstance(atom, Symbol):
        return atom.is_size
    return not isinstance(atom, Quotient) or is_natural(atom.of)


def _lower_bound(index: Index, atom: Atom) -> Index | None:
    """Lower bound of the index over all values of one atom, term by term; None if none is found."""
    highest = _highest(atom)
    least = _constant(0)
    for atoms, factor in index.terms:
        term = Index(((atoms, factor),))
        if atom not in atoms:
            least = least + term
        elif factor < 0:
            if highest is None or atoms.count(atom) > 1:
                return None
            least = least + Index(((_divide_atoms(atoms, (atom,)) or (), factor),)) * highest
        elif not _never_negative(atom):
            return None
    return least


def _highest(atom: Atom) -> Index | None:
    if isinstance(atom, Var | Indirect):
        return atom.size - 1
    if isinstance(atom, Remainder):
        return atom.by - 1
    if isinstance(atom, Quotient) and is_natural(atom.of) and (top := _largest(atom.of)) is not None:
        return _divide(top, atom.by)
    return None


def _largest(index: Index) -> Index | None:
    """Constant upper bound of an index, None if none is found."""
    total = 0
    for atoms, factor in index.terms:
        tops = [_highest(atom) for atom in atoms]
        known = [top.constant for top in tops if top is not None]
        if len(known) != len(atoms) or any(top is None for top in known) or factor < 0:
            return None
        total += factor * math.prod(top for top in known if top is not None)
    return _constant(total)


def _is_natural_for_sizes(index: Index) -> bool:
    """Whether a polynomial is proven to be ≥ 0 for symbols ≥ 1: with s + 1 for each s, all coefficients are > 0."""
    shifted = _constant(0)
    for atoms, factor in index.terms:
        term = _constant(factor)
        for atom in atoms:
            term = _multiply_plain(term, Index.of(atom) + 1)
        shifted = shifted + term
    return all(factor > 0 for _, factor in shifted.terms)


@lru_cache(1 << 16)
def factor_of(index: Index, var: Atom) -> Index:
    """Coefficient of a variable in the index, outside quotients and remainders."""
    return _sum_of(
        {left: factor for atoms, factor in index.terms if (left := _divide_atoms(atoms, (var,))) is not None}
    )


def substitute(index: Index, values: Mapping[str, Index], inside: Callable[[Any], Any] | None = None) -> Index:
    """Substitute index expressions for variables, by name. `inside` rewrites the value of an `Indirect`."""
    if inside is None or not indirects(index):
        return _with_values(index, tuple(values.items()))
    return _substitute(index, values, inside)


@lru_cache(1 << 16)
def _with_values(index: Index, values: tuple[tuple[str, Index], ...]) -> Index:
    return _substitute(index, dict(values), lambda value: value)


def _substitute(index: Index, values: Mapping[str, Index], inside: Callable[[Any], Any]) -> Index:
    def change(atom: Var | Symbol | Indirect) -> Index:
        if isinstance(atom, Indirect):
            return Index.of(Indirect(inside(atom.value), atom.size))
        return values.get(atom.name) or Index.of(atom)

    return _evaluate(index, Index.of, change)


def _evaluate(index: Index, number: Callable[[int], Any], value: Callable[[Var | Symbol | Indirect], Any]) -> Any:
    """Evaluate the index in any arithmetic; `number` converts a factor, `value` an atom."""
    total = number(0)
    for atoms, factor in index.terms:
        term = number(factor)
        for atom in atoms:
            if isinstance(atom, Quotient | Remainder):
                of, by = _evaluate(atom.of, number, value), _evaluate(atom.by, number, value)
                term = term * (of // by if isinstance(atom, Quotient) else of % by)
            else:
                term = term * value(atom)
        total = total + term
    return total


@lru_cache(1 << 16)
def atoms_of(index: Index) -> tuple[Atom, ...]:
    """All atoms of an index, including atoms of quotients and remainders, without atoms inside an `Indirect`."""
    found: list[Atom] = []
    for atoms, _ in index.terms:
        for atom in atoms:
            found.append(atom)
            if isinstance(atom, Quotient | Remainder):
                found += (*atoms_of(atom.of), *atoms_of(atom.by))
    return tuple(found)


@lru_cache(1 << 16)
def indirects(index: Index) -> tuple[Indirect, ...]:
    """The `Indirect` atoms of an index."""
    return tuple(atom for atom in atoms_of(index) if isinstance(atom, Indirect))


def variables(index: Index) -> set[Var]:
    """Loop variables of an index, without variables inside an `Indirect`."""
    return {atom for atom in atoms_of(index) if isinstance(atom, Var)}


def evaluate(index: Index, values: Mapping[str, Any], indirect: Callable[[Any], Any] | None = None) -> Any:
    """Evaluate an index, given values of its variables and symbols by name; `indirect` evaluates `Indirect` atoms.

    The result is an int, or an integer tensor if values are tensors.
    """

    def value(atom: Var | Symbol | Indirect) -> Any:
        if isinstance(atom, Indirect):
            assert indirect is not None, "an index that a tensor holds needs the tensors"
            return indirect(atom)
        return values[atom.name]

    return _evaluate(index, int, value)


def position(at: Sequence[Index], shape: Sequence[Index]) -> Index:
    """Row-major position of coordinates in a shape."""
    found = Index.of(0)
    for coordinate, size in zip(at, shape, strict=True):
        found = found * size + coordinate
    return found


@lru_cache(1 << 14)
def is_bijective(coordinates: tuple[Index, ...], shape: tuple[Index, ...], ranges: tuple[Var, ...]) -> bool:
    """Whether a loop nest over `ranges` is proven to visit each element of a tensor once: in the row-major position,
    the variables, sorted by their factors, must cover the shape without gap or overlap.
    """
    covered = Index.of(1)
    place, left = _split_variable(position(coordinates, shape), list(ranges))
    while left:
        step = next((var for var in left if factor_of(place, var) == covered), None)
        if step is None:
            return False
        left.remove(step)
        place = place - Index.of(step) * covered
        covered = covered * step.size
    return not place.terms and covered == product(shape)


def _split_variable(place: Index, ranges: list[Var]) -> tuple[Index, list[Var]]:
    """Split each variable that occurs in a quotient or remainder into two, if the divisor divides its size.

    Returns the rewritten index and the variables.
    """
    for atom in atoms_of(place):
        if not isinstance(atom, Quotient | Remainder) or not isinstance(var := atom.of.atom, Var) or var not in ranges:
            continue
        outer, rest = var.size // atom.by, var.size % atom.by
        if outer.constant != 1 and not rest.terms:
            high, low = Var(f"{var.name}h", outer), Var(f"{var.name}l", atom.by)
            changed = substitute(place, {var.name: Index.of(high) * atom.by + low})
            return _split_variable(changed, [other for other in ranges if other != var] + [high, low])
    return place, ranges
