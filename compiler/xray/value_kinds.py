"""Record the kinds of expression values in a run: the types, shapes and dtypes that an operator's schema needs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from compiler.calls.call import Call
from compiler.xray.bench import Bench, repeatable
from compiler.xray.search import Search, can_be_replaced
from compiler.xray.substitution import Noted, Program, Spot

Form = Literal["tensor", "array", "tensors", "number", "numbers", "integers", "text", "constant", "object"]
_PLAIN = (type(None), bool, int, float, str, bytes)


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The kind of a value: its form, its Python type, and the metadata of a tensor or array.

    `parts` are the kinds of the tensors in a tuple or list (form "tensors"). Form "numbers" is a list, tuple or dict of
    floats; `keys` are the keys of the dict. Form "constant" is any other plain value, or container of plain values.
    """

    form: Form
    type: type
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    device: str = ""
    requires_grad: bool = False
    parts: tuple[ValueKind, ...] = ()
    keys: tuple[str, ...] = ()


def kind_of(value: Any) -> ValueKind:
    """The kind of a value."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        is_plain = kind in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
        facts = tuple(value.shape), value.dtype, str(value.device), value.requires_grad
        return ValueKind("tensor", kind, *facts) if is_plain else ValueKind("object", kind)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return ValueKind("array", kind, value.shape, torch.from_numpy(value[:0].copy()).dtype if value.ndim else None)
    if kind in (int, float, bool):
        return ValueKind("number", kind)
    if kind is str:
        return ValueKind("text", kind)
    if kind in (list, tuple) and value and all(isinstance(item, torch.Tensor) for item in value):
        return ValueKind("tensors", kind, parts=tuple(map(kind_of, value)))
    if kind in (list, tuple) and value and all(type(item) is float for item in value):
        return ValueKind("numbers", kind)
    if kind is dict and value and all(type(key) is str and type(item) is float for key, item in value.items()):
        return ValueKind("numbers", kind, keys=tuple(value))
    if kind is list and all(type(item) is int for item in value):
        return ValueKind("integers", kind)
    return ValueKind("constant" if _is_constant(value) else "object", kind)


def _is_constant(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_constant, value))
    if type(value) is dict:
        return all(_is_constant(key) and _is_constant(item) for key, item in value.items())
    return type(value) in _PLAIN


@dataclass
class Kinds(Noted):
    """Records the kinds of values instead of the values, which may be large."""

    kinds: dict[int, list[ValueKind]] = field(default_factory=dict)

    def note(self, number: int, value: Any) -> Any:
        """Record the kind of a value and return the value."""
        self.kinds.setdefault(number, []).append(kind_of(value))
        return value


@dataclass(frozen=True)
class ValueKinds:
    """Kinds of the values of expressions of one file, from one run of each call."""

    file: str
    by_spot: dict[Spot, Sequence[ValueKind]]

    def kinds_of(self, node: ast.AST) -> Sequence[ValueKind]:
        """Kinds of an expression's values, in order; empty if no value was recorded."""
        if not isinstance(node, ast.expr):
            return ()
        return self.by_spot.get(Spot.of_node(self.file, node, "value"), ())

    def one_of(self, node: ast.AST) -> ValueKind | None:
        """The first kind of an expression's values if all have the same form, type, dtype and keys, else None."""
        kinds = self.kinds_of(node)
        return (
            kinds[0] if kinds and len({(kind.form, kind.type, kind.dtype, kind.keys) for kind in kinds}) == 1 else None
        )


def kinds_in_runs(search: Search, calls: Iterable[Call], file: str, roots: Iterable[ast.AST]) -> ValueKinds:
    """Run each call once and record the kinds of all expressions in `roots`, which are nodes of `file`."""
    nodes = (node for root in roots for node in ast.walk(root) if isinstance(node, ast.expr) and _has_place(node))
    own = dict.fromkeys(Spot.of_node(file, node, "value") for node in nodes)
    numbers = dict(search.spots)
    for spot in own:
        numbers.setdefault(spot, len(numbers))
    noted = Kinds()
    for call in calls:
        with repeatable(call) as restore:
            program = Program(search.functions, numbers)
            Bench(call, restore, search.limit).run_noting(program, noted, frozenset(search.left_out))
    return ValueKinds(file, {spot: noted.kinds.get(numbers[spot], []) for spot in own})


def _has_place(node: ast.expr) -> bool:
    """Whether a node's value can be recorded: no constant, and no f-string, as parts of an f-string share a place."""
    if isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.Constant):
        return False
    return can_be_replaced(node) and not (isinstance(node, ast.Name) and node.id == "super")
