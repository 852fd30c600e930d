"""Scalar expressions of the IR: the value of a loop at one point. Frozen, equal by `key`.

Expr      Const, Load, Index (as a number, of dtype int64), Op, Guard; or, only as the whole value of a loop, Put
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import torch

from compiler.backend.ir.index import Index, Indirect, Keyed, Var, as_text, atoms_of, indirects, substitute
from compiler.backend.ir.scalar import DTYPES, OPERATIONS

Shape: TypeAlias = tuple[Index, ...]
_AS_THEY_ARE: Mapping[str, Index] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """Short name of a dtype such as `f32`; torch's own name for dtypes that loops do not support."""
    return DTYPES[dtype].name if dtype in DTYPES else str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True, eq=False)
class Const(Keyed):
    """A constant. Floats print with full precision, as by `repr`."""

    value: bool | int | float
    dtype: torch.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.value!r}:{dtype_name(self.dtype)}")

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Load(Keyed):
    """A load of one element of a buffer, in the buffer's dtype."""

    buffer: str
    index: Shape
    dtype: torch.dtype

    def __post_init__(self) -> None:
        index = ", ".join(index.key for index in self.index)
        object.__setattr__(self, "key", f"{self.buffer}:{dtype_name(self.dtype)}[{index}]")

    def __str__(self) -> str:
        return f"{self.buffer}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Op(Keyed):
    """An operation of `scalar.OPERATIONS`. `dtype` is the dtype of the result."""

    name: str
    args: tuple[Expr, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        arguments = ", ".join(arg.key for arg in self.args)
        object.__setattr__(self, "key", f"{self.name}:{dtype_name(self.dtype)}({arguments})")

    def __str__(self) -> str:
        if self.name == "cast":
            return f"{dtype_name(self.dtype)}({as_text(self.args[0])})"
        text = OPERATIONS[self.name].text or f"{self.name}({', '.join(['{}'] * len(self.args))})"
        return text.format(*map(as_text, self.args))


@dataclass(frozen=True, slots=True, eq=False)
class Guard(Keyed):
    """`value` if `condition` holds, else `other`. Unlike the operation `where`, it evaluates only the selected branch:
    loads of the other branch may be out of bounds.
    """

    condition: Expr
    value: Expr
    other: Expr

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"guard({self.condition.key}, {self.value.key}, {self.other.key})")

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    def __str__(self) -> str:
        return f"({as_text(self.value)} if {as_text(self.condition)} else {as_text(self.other)})"


@dataclass(frozen=True, slots=True, eq=False)
class Put(Keyed):
    """A scatter, as the whole value of a loop. Each point adds `value` to the element at `index`, or with adds=False
    replaces the element. Several points may have the same index: if they replace, one of them wins, on a CPU the last.
    The loop's target starts with the elements of `onto`, and reuses its memory.
    """

    onto: str
    index: Shape
    value: Expr
    adds: bool = True

    def __post_init__(self) -> None:
        index = ", ".join(index.key for index in self.index)
        object.__setattr__(self, "key", f"{self.onto}[{index}] {self.sign} {self.value.key}")

    @property
    def sign(self) -> str:
        """Assignment operator, as printed."""
        return "+=" if self.adds else "="

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    def __str__(self) -> str:
        return f"{self.onto}, [{', '.join(map(str, self.index))}] {self.sign} {as_text(self.value)}"


Expr: TypeAlias = Const | Load | Index | Op | Guard | Put


ADDED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""Dtypes in which a `Put` may add: GPUs have atomic adds for them."""


@lru_cache(1 << 14)
def loads(value: Expr) -> tuple[Load, ...]:
    """Loads of an expression, including loads inside indices."""
    return tuple(part for part in parts(value) if isinstance(part, Load))


@lru_cache(1 << 14)
def parts(value: Expr) -> tuple[Expr, ...]:
    """The expression and all its subexpressions in pre-order, including subexpressions inside indices."""
    return tuple(_parts(value))


def _parts(value: Expr) -> Iterator[Expr]:
    yield value
    if isinstance(value, Op):
        children: tuple[Expr, ...] = value.args
    elif isinstance(value, Guard):
        children = (value.condition, value.value, value.other)
    else:
        children = tuple(indirect.value for index in indices(value) for indirect in indirects(index))
        children = (*children, value.value) if isinstance(value, Put) else children
    for child in children:
        yield from _parts(child)


def indices(value: Expr) -> Shape:
    """Indices of a load or a scatter, without those of subexpressions; for an `Index`, itself; for others, ()."""
    if isinstance(value, Load | Put):
        return value.index
    return (value,) if isinstance(value, Index) else ()


def rebuilt(value: Expr, change: Callable[[Expr], Expr | None], values: Mapping[str, Index] = _AS_THEY_ARE) -> Expr:
    """Replace subexpressions: `change` returns a replacement, or None to descend into the subexpression. `values` has
    new indices for loop variables, by name.
    """
    if (changed := change(value)) is not None:
        return changed

    def rebuild(part: Expr) -> Expr:
        return rebuilt(part, change, values)

    if isinstance(value, Op):
        args = tuple(map(rebuild, value.args))
        is_same = all(new is old for new, old in zip(args, value.args, strict=True))
        return value if is_same else Op(value.name, args, value.dtype)
    if isinstance(value, Guard):
        return Guard(rebuild(value.condition), rebuild(value.value), rebuild(value.other))
    if isinstance(value, Const) or not (values or isinstance(value, Put) or any(map(indirects, indices(value)))):
        return value
    index = tuple(substitute(one, values, rebuild) for one in indices(value))
    if isinstance(value, Index):
        return index[0]
    if isinstance(value, Load):
        return Load(value.buffer, index, value.dtype)
    return replace(value, index=index, value=rebuild(value.value))


def with_index(value: Expr, values: Mapping[str, Index]) -> Expr:
    """Substitute indices for loop variables, by name."""
    return rebuilt(value, lambda _: None, values)


def with_loads(value: Expr, change: Callable[[Load], Expr | None]) -> Expr:
    """Replace each load by the result of `change`; None keeps the load."""
    return rebuilt(value, lambda part: change(part) if isinstance(part, Load) else None)


def rename_buffers(value: Expr, names: Mapping[str, str], starts: Container[str] = ()) -> Expr:
    """Rename buffers. `names` maps old names to new ones. `starts` has old names of buffers: accesses to them become
    accesses to the first element.
    """

    def rename(value: Expr) -> Expr:
        return rebuilt(value, change)

    def change(part: Expr) -> Expr | None:
        name = part.buffer if isinstance(part, Load) else part.onto if isinstance(part, Put) else ""
        if name not in names:
            return None
        first = (Index.of(0),) * len(indices(part))
        index = first if name in starts else tuple(substitute(one, {}, rename) for one in indices(part))
        if isinstance(part, Put):
            return replace(part, onto=names[name], index=index, value=rename(part.value))
        return Load(names[name], index, part.dtype)

    return rename(value)


def is_indirect(value: Expr) -> bool:
    """Whether an expression has indirect indices (indices loaded from tensors)."""
    return any(indirects(index) for part in parts(value) for index in indices(part))


def variables_in(index: Index) -> Iterator[Var]:
    """Loop variables of an index, including variables inside an `Indirect`."""
    for atom in atoms_of(index):
        if isinstance(atom, Var):
            yield atom
        elif isinstance(atom, Indirect):
            yield from (var for part in parts(atom.value) for inner in indices(part) for var in variables_in(inner))


@lru_cache(1 << 14)
def cost(value: Expr) -> int:
    """Estimated cost of an expression, in additions. A load costs as much as an addition."""
    return sum(OPERATIONS[part.name].cost if isinstance(part, Op) else isinstance(part, Load) for part in parts(value))


def operation(name: str, *args: Expr) -> Expr:
    """Make an operation: the result has the dtype of the last argument, or bool for comparisons."""
    is_bool = OPERATIONS[name].kind == "compare"
    return Op(name, args, torch.bool if is_bool else args[-1].dtype)


def cast(value: Expr, dtype: torch.dtype) -> Expr:
    """Cast a value to a dtype, with the rounding of PyTorch's `to`; no-op if it has that dtype."""
    return value if value.dtype == dtype else Op("cast", (value,), dtype)
