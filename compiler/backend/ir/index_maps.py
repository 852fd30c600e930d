"""Indices as maps from the points of loops to elements of memory: what is in them, other indices put in place of their
variables, their value, and whether a loop nest meets each element once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from compiler.backend.ir.index import Atom, Index, Indirect, Quotient, Remainder, Symbol, Var, factor_of, product


def substitute(index: Index, values: Mapping[str, Index], inside: Callable[[Any], Any] | None = None) -> Index:
    """The index with other indices for its variables, by name. `inside` does the same to the value of an `Indirect`."""
    if inside is None or not indirects(index):
        return _with_values(index, tuple(values.items()))
    return _substitute(index, values, inside)


@lru_cache(1 << 16)
def _with_values(index: Index, values: tuple[tuple[str, Index], ...]) -> Index:
    return _substitute(index, dict(values), None)


def _substitute(index: Index, values: Mapping[str, Index], inside: Callable[[Any], Any] | None) -> Index:
    def change(atom: Var | Symbol | Indirect) -> Index:
        if isinstance(atom, Indirect):
            return Index.of(Indirect(inside(atom.value), atom.size) if inside else atom)
        return values.get(atom.name) or Index.of(atom)

    return _evaluate(index, Index.of, change)


def _evaluate(index: Index, number: Callable[[int], Any], value: Callable[[Var | Symbol | Indirect], Any]) -> Any:
    """The index in any arithmetic: of `number(factor)` and `value(atom)`."""
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
    """All atoms in it, those inside quotients and remainders too; not those inside an `Indirect`."""
    found: list[Atom] = []
    for atoms, _ in index.terms:
        for atom in atoms:
            found.append(atom)
            if isinstance(atom, Quotient | Remainder):
                found += (*atoms_of(atom.of), *atoms_of(atom.by))
    return tuple(found)


@lru_cache(1 << 16)
def indirects(index: Index) -> tuple[Indirect, ...]:
    """The indices in it that tensors hold."""
    return tuple(atom for atom in atoms_of(index) if isinstance(atom, Indirect))


def variables(index: Index) -> set[Var]:
    """The loop variables in it; not those inside an `Indirect`."""
    return {atom for atom in atoms_of(index) if isinstance(atom, Var)}


def evaluate(index: Index, values: Mapping[str, Any], indirect: Callable[[Any], Any] | None = None) -> Any:
    """Its value, an int or an integer tensor, for ints or integer tensors as values of variables and symbols."""

    def value(atom: Var | Symbol | Indirect) -> Any:
        if isinstance(atom, Indirect):
            assert indirect is not None, "an index that a tensor holds needs the tensors"
            return indirect(atom)
        return values[atom.name]

    return _evaluate(index, int, value)


def position(at: Sequence[Index], shape: Sequence[Index]) -> Index:
    """Where coordinates are in a shape, counted in row-major order."""
    found = Index.of(0)
    for coordinate, size in zip(at, shape, strict=True):
        found = found * size + coordinate
    return found


@lru_cache(1 << 14)
def is_one_to_one(coordinates: tuple[Index, ...], shape: tuple[Index, ...], ranges: tuple[Var, ...]) -> bool:
    """Whether a loop nest over `ranges` is certain to meet each element of a tensor once: the position in row-major
    order must be a sum in which the variables, sorted by their factors, fill the shape without gap or overlap.
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
    """With two variables in place of one that is met as a quotient and as a remainder, where its size allows that."""
    for atom in atoms_of(place):
        if not isinstance(atom, Quotient | Remainder) or not isinstance(var := atom.of.atom, Var) or var not in ranges:
            continue
        outer, rest = var.size // atom.by, var.size % atom.by
        if outer.constant != 1 and not rest.terms:
            high, low = Var(f"{var.name}h", outer), Var(f"{var.name}l", atom.by)
            changed = substitute(place, {var.name: Index.of(high) * atom.by + low})
            return _split_variable(changed, [other for other in ranges if other != var] + [high, low])
    return place, ranges
