"""The scalar expressions of the IR: what a loop computes at a point. Frozen, equal by `key`.

Expr      Const, Load, At (an index as a number), Op, Guard; or all of a loop: Put
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import torch

from compiler.backend.ir.index import Index, Indirect, Keyed, Var
from compiler.backend.ir.index_maps import atoms_of, indirects, substitute
from compiler.backend.ir.scalar import DTYPES, OPERATIONS

Shape: TypeAlias = tuple[Index, ...]
_AS_THEY_ARE: Mapping[str, Index] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """`f32` for float32; of dtypes without loops torch's own name."""
    return DTYPES[dtype].name if dtype in DTYPES else str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True, eq=False)
class Const(Keyed):
    """A number. Floats print so that they can be read back exactly."""

    value: bool | int | float
    dtype: torch.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.value!r}:{dtype_name(self.dtype)}")

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Load(Keyed):
    """One element of a buffer, of the buffer's dtype."""

    buffer: str
    index: Shape
    dtype: torch.dtype

    def __post_init__(self) -> None:
        index = ", ".join(index.key for index in self.index)
        object.__setattr__(self, "key", f"{self.buffer}:{dtype_name(self.dtype)}[{index}]")

    def __str__(self) -> str:
        return f"{self.buffer}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, slots=True, eq=False)
class At(Keyed):
    """An index as a number, of dtype int64."""

    index: Index
    dtype = torch.int64

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"<{self.index.key}>")

    def __str__(self) -> str:
        return f"int({self.index})"


@dataclass(frozen=True, slots=True, eq=False)
class Op(Keyed):
    """An operation of `scalar.OPERATIONS`. `dtype` is its result's."""

    name: str
    args: tuple[Expr, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        arguments = ", ".join(arg.key for arg in self.args)
        object.__setattr__(self, "key", f"{self.name}:{dtype_name(self.dtype)}({arguments})")

    def __str__(self) -> str:
        if self.name == "cast":
            return f"{dtype_name(self.dtype)}({self.args[0]})"
        if text := OPERATIONS[self.name].text:
            return text.format(*self.args)
        return f"{self.name}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True, eq=False)
class Guard(Keyed):
    """`value` where `condition` holds, else `other`. Unlike with the operation `where`, nothing of one is computed
    where the other counts: its loads may lie outside their buffers there.
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
        return f"({self.value} if {self.condition} else {self.other})"


@dataclass(frozen=True, slots=True, eq=False)
class Put(Keyed):
    """As all of a loop's value: at each point `value` is added to the element at `index`, which may be met often, or
    never; or, unless it `adds`, takes its place, where one of those that meet counts: on a CPU the last. The loop's
    target has the elements of `onto` before that, and takes over its memory.
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
        """What stands between place and value."""
        return "+=" if self.adds else "="

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    def __str__(self) -> str:
        return f"{self.onto}, [{', '.join(map(str, self.index))}] {self.sign} {self.value}"


Expr: TypeAlias = Const | Load | At | Op | Guard | Put

ADDED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""The dtypes that a `Put` adds in: GPUs have atomic additions of these."""


@lru_cache(1 << 14)
def loads(value: Expr) -> tuple[Load, ...]:
    """The loads of an expression, those that compute indices of others too."""
    return tuple(part for part in parts(value) if isinstance(part, Load))


@lru_cache(1 << 14)
def parts(value: Expr) -> tuple[Expr, ...]:
    """The expression and all expressions in it, outer ones first, those inside indices too."""
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
    """The indices that an expression itself has, not those of expressions in it."""
    if isinstance(value, Load | Put):
        return value.index
    return (value.index,) if isinstance(value, At) else ()


def rebuilt(value: Expr, change: Callable[[Expr], Expr | None], values: Mapping[str, Index] = _AS_THEY_ARE) -> Expr:
    """The expression with parts exchanged: `change` gives for a part what to put in its place, or None to keep it and
    look inside. `values` are other indices for loop variables, by name.
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
    if isinstance(value, At):
        return At(*index)
    if isinstance(value, Load):
        return Load(value.buffer, index, value.dtype)
    return replace(value, index=index, value=rebuild(value.value))


def with_index(value: Expr, values: Mapping[str, Index]) -> Expr:
    """The expression with other indices for loop variables, by name."""
    return rebuilt(value, lambda _: None, values)


def with_loads(value: Expr, change: Callable[[Load], Expr | None]) -> Expr:
    """The expression with what `change` gives in place of loads, but for those that it gives None for."""
    return rebuilt(value, lambda part: change(part) if isinstance(part, Load) else None)


def rename_loads(value: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with loads of other buffers, by the names of these."""

    def change(load: Load) -> Expr | None:
        if load.buffer not in names:
            return None
        index = tuple(substitute(one, {}, lambda inner: rename_loads(inner, names)) for one in load.index)
        return Load(names[load.buffer], index, load.dtype)

    return with_loads(value, change)


def is_indirect(value: Expr) -> bool:
    """Whether it picks elements by indices that tensors hold."""
    return any(indirects(index) for part in parts(value) for index in indices(part))


def variables_in(index: Index) -> Iterator[Var]:
    """The loop variables in an index, those inside an `Indirect` too."""
    for atom in atoms_of(index):
        if isinstance(atom, Var):
            yield atom
        elif isinstance(atom, Indirect):
            yield from (var for part in parts(atom.value) for inner in indices(part) for var in variables_in(inner))


@lru_cache(1 << 14)
def cost(value: Expr) -> int:
    """About how many additions an expression is worth. Loads count as one."""
    return sum(OPERATIONS[part.name].cost if isinstance(part, Op) else isinstance(part, Load) for part in parts(value))


def operation(name: str, *args: Expr) -> Expr:
    """An operation on arguments of one dtype: the result's dtype follows. Comparisons give bool."""
    is_bool = OPERATIONS[name].kind == "compare"
    return Op(name, args, torch.bool if is_bool else args[-1].dtype)


def cast(value: Expr, dtype: torch.dtype) -> Expr:
    """The value in a dtype, rounded as PyTorch's `to` does it; the value itself where it has that dtype."""
    return value if value.dtype == dtype else Op("cast", (value,), dtype)
