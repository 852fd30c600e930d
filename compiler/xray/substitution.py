"""A program with some expressions replaced: by a recorded value, or by code that records the value.

The files are parsed, nodes are replaced in the syntax trees, and functions get the resulting code. Every instruction
keeps its place in the user's file, so that TorchDynamo's messages about the changed program refer to the user's lines.
A replaced expression stays in `... if True else expression`: Python generates no code for it, but its names remain
names of the function.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from types import CodeType, FunctionType
from typing import Any, Literal

import numpy as np
import torch

from compiler.calls.call import nested_codes
from compiler.calls.state import is_builtin_iterator
from compiler.capture.sources import imported_modules, is_installed
from compiler.record.break_facts import Place
from compiler.torch_api.operators import forbid_mutation, forget_operators
from compiler.torch_api.pytrees import tree_leaves, tree_map
from compiler.torch_api.settings import with_settings

PREFIX = "_tcompile_value_"
NOTE, TRUTH, ENTER = "_tcompile_note", "_tcompile_truth", "_tcompile_enter"
EMPTY = "_tcompile_empty"
_NOTES = {"value": NOTE, "truth": TRUTH, "context": ENTER}
_CONSTANTS = (type(None), bool, int, float, str, bytes)
_LONGEST_INT = 2**62
MOST_ITEMS = 10_000
"""Maximum number of recorded items of an iterator, which may have no end."""

Kind = Literal["value", "truth", "context", "statement"]
"""Kind of record at a spot: a value, a truth value, the value that a `with` binds, or the result of a statement."""


@dataclass(frozen=True, slots=True)
class Spot:
    """An expression, a context manager of a `with`, or a statement to replace, by its place: lines and byte columns."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    kind: Kind = "value"

    @classmethod
    def of_node(cls, file: str, node: ast.expr | ast.stmt, kind: Kind) -> Spot:
        end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
        return cls(file, (node.lineno, node.col_offset), end, kind)

    @classmethod
    def of_place(cls, place: Place) -> Spot:
        """The spot of the expression at a place with known columns."""
        start = (place.line, place.column or 0)
        return cls(place.file, start, (place.end_line or place.line, place.end_column or 0))

    def covers(self, file: str, position: tuple[int, int]) -> bool:
        """Whether a position (line, column) of a file is in this spot."""
        return self.file == file and self.start <= position < self.end

    def is_inside(self, other: Spot) -> bool:
        """Whether this spot is inside another one."""
        return self.file == other.file and other.start <= self.start and self.end <= other.end and self != other


@dataclass(frozen=True, slots=True)
class Edit:
    """A text that replaces lines `line` to `end_line` of a file."""

    file: str
    line: int
    end_line: int
    text: str

    def overlaps(self, other: Edit) -> bool:
        return self.file == other.file and self.line <= other.end_line and other.line <= self.end_line

    def merge(self, other: Edit) -> Edit | None:
        """One edit for two of the same lines that change different parts of them; None for any others."""
        if self == other:
            return self
        if (self.file, self.line, self.end_line) != (other.file, other.line, other.end_line):
            return None
        lines = linecache.getlines(self.file)[self.line - 1 : self.end_line]
        old = "\n".join(line.rstrip("\r\n") for line in lines)
        first, second = sorted((self, other), key=lambda edit: _changed_part(old, edit.text))
        (_, end), (start, _) = (_changed_part(old, edit.text) for edit in (first, second))
        if end >= start:
            return None
        return replace(self, text=first.text[: len(first.text) - len(old) + start] + second.text[start:])


def _changed_part(old: str, new: str) -> tuple[int, int]:
    """Start and end of the part of a text that is replaced in a new text."""
    start = _count_equal(old, new)
    return start, len(old) - _count_equal(old[start:][::-1], new[start:][::-1])


def _count_equal(first: str, second: str) -> int:
    """Number of characters at the start of two texts that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


@dataclass(frozen=True, slots=True)
class Definition:
    """A function to add to a file, after its imports."""

    file: str
    text: str


@dataclass(frozen=True)
class Change:
    """A change of the program: edits of files, new functions that the edits call, and torch settings."""

    edits: tuple[Edit, ...] = ()
    settings: tuple[str, ...] = ()
    definitions: tuple[Definition, ...] = ()

    def __add__(self, other: Change) -> Change:
        return Change(
            _merge_edits(self.edits, other.edits),
            tuple(dict.fromkeys((*self.settings, *other.settings))),
            tuple(dict.fromkeys((*self.definitions, *other.definitions))),
        )

    def fits(self, other: Change) -> bool:
        """Whether both changes can be combined: no part of a line is edited in two different ways."""
        pairs = ((mine, its) for mine in self.edits for its in other.edits if mine.overlaps(its))
        return all(mine.merge(its) is not None for mine, its in pairs)

    @contextmanager
    def apply_settings(self) -> Iterator[None]:
        """Apply the settings during a block."""
        with with_settings(self.settings) if self.settings else nullcontext():
            yield


def _merge_edits(edits: Sequence[Edit], others: Sequence[Edit]) -> tuple[Edit, ...]:
    """All of these edits, in which one takes the place of several of the same lines."""
    merged = list(edits)
    for other in others:
        same = next((edit for edit in merged if edit.overlaps(other)), other)
        both = same.merge(other)
        merged = [both if edit is same and both else edit for edit in merged]
        merged += [other] if both is None or same is other else []
    return tuple(dict.fromkeys(merged))


@dataclass
class Noted:
    """Values recorded in one run, in order, by number of the spot."""

    values: dict[int, list[Any]] = field(default_factory=dict)

    def note(self, number: int, value: Any) -> Any:
        """Record a value and return it; an iterator, which recording consumes, is replaced by an equal one."""
        if is_builtin_iterator(value):
            first = list(islice(value, MOST_ITEMS))
            self.values.setdefault(number, []).append(list(first))
            return chain(first, value) if len(first) == MOST_ITEMS else iter(first)
        self.values.setdefault(number, []).append(_copy_of(value))
        return value

    def truth(self, number: int, value: Any) -> bool:
        """Record and return the truth value of a value."""
        return bool(self.note(number, bool(value)))

    def enter(self, number: int, manager: Any) -> Any:
        """Wrap a context manager so that the value it yields is recorded."""

        @contextmanager
        def enter_noted() -> Iterator[Any]:
            with manager as value:
                yield self.note(number, value)

        return enter_noted()

    def is_plain(self, number: int) -> bool:
        """Whether the values at a spot consist of tensors and constants, which TorchDynamo supports."""
        leaves = tree_leaves(self.values.get(number, []))
        return all(isinstance(leaf, (torch.Tensor, *_CONSTANTS)) for leaf in leaves)

    def stand_ins(self) -> dict[int, StandIn]:
        """The replacement for each spot that was reached, by number."""
        return {number: _stand_in(values) for number, values in self.values.items()}


class _Empty:
    """The value of an expression that is not run. Its attributes, items and results of calls are empty too."""

    def __getattr__(self, name: str) -> _Empty:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Empty:
        return self

    def __getitem__(self, _key: Any) -> _Empty:
        return self

    def __setitem__(self, _key: Any, _value: Any) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0

    def __str__(self) -> str:
        return ""

    def __enter__(self) -> _Empty:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@dataclass(frozen=True, slots=True)
class StandIn:
    """The replacement for a spot: one constant, or items that are used in order. The last item is repeated."""

    constant: Any = None
    items: tuple[Any, ...] = ()

    @property
    def words(self) -> str:
        """The constant or the items, in a few words."""
        if not self.items:
            return repr(self.constant)
        kinds = dict.fromkeys(_short(item) for item in self.items)
        return ", ".join(list(kinds)[:3]) + (", …" if len(kinds) > 3 else "")


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {'×'.join(map(str, value.shape)) or 'one number'}"
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"


def _stand_in(values: Sequence[Any]) -> StandIn:
    """The replacement for recorded values: one constant if they are equal constants, else items.

    Tensors that differ only in their elements become one item, the first tensor. NumPy's numbers become Python's.
    """
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    first = values[0]
    if _is_constant(first) and all(type(value) is type(first) and value == first for value in values):
        return StandIn(first)
    alike = all(isinstance(value, torch.Tensor) and _kind(value) == _kind(first) for value in values)
    return StandIn(items=(first,) if alike else tuple(values))


def _kind(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, torch.Tensor):
        return ()
    return type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _is_constant(value: Any) -> bool:
    if isinstance(value, int) and abs(value) > _LONGEST_INT:
        return False
    return type(value) in _CONSTANTS and value == value  # False for NaN


def _copy_of(value: Any) -> Any:
    """A copy of a value with cloned tensors; parameters and sparse tensors are shared.

    The copy of a tensor that requires grad is no leaf: it has its own grad_fn.
    """

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter) or leaf.is_sparse:
            return leaf
        own = leaf.detach().clone()
        return own.requires_grad_().clone() if leaf.requires_grad else own

    with torch.enable_grad():
        return tree_map(copy, value)


class _Replace(ast.NodeTransformer):
    """Replaces the spots of one file. Without stand-ins, values are recorded instead; `left_out` spots are not run."""

    def __init__(
        self, spots: Mapping[Spot, int], stand_ins: Mapping[int, StandIn] | None, left_out: frozenset[int]
    ) -> None:
        self.spots, self.stand_ins, self.left_out = spots, stand_ins, left_out
        self.places: dict[tuple[Any, ...], Spot] = {}
        for spot in spots:
            self.places.setdefault((spot.kind == "statement", spot.start, spot.end), spot)

    def visit(self, node: ast.AST) -> Any:
        spot = self._spot_at(node)
        self.generic_visit(node)
        if spot is None:
            return node
        number = self.spots[spot]
        if isinstance(node, ast.stmt):
            return self._statement(node, number)
        assert isinstance(node, ast.expr)
        new = self._expression(node, number, spot.kind)
        return node if new is None else _place_at(ast.IfExp(ast.Constant(True), new, node), node)

    def _spot_at(self, node: ast.AST) -> Spot | None:
        if not isinstance(node, ast.stmt | ast.expr):
            return None
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return self.places.get((isinstance(node, ast.stmt), start, end))

    def _expression(self, node: ast.expr, number: int, kind: Kind) -> ast.expr | None:
        if number in self.left_out:
            return ast.Name(EMPTY, ast.Load())
        if self.stand_ins is None:
            return ast.Call(ast.Name(_NOTES[kind], ast.Load()), [ast.Constant(number), node], [])
        if number not in self.stand_ins:
            return None
        value = _value(number, self.stand_ins[number])
        if kind == "context":
            manager = ast.Name(f"{PREFIX}manager", ast.Load())
            return ast.Call(manager, [value], [])
        return value

    def _statement(self, node: ast.stmt, number: int) -> ast.stmt | list[ast.stmt]:
        """Drop a statement, or assign the recorded result of `x += y` to `x`. Without stand-ins, record that it ran."""
        target = node.target if isinstance(node, ast.AugAssign) else None
        never = _place_at(ast.If(ast.Constant(False), [node], []), node)
        if number in self.left_out:
            return never
        if not isinstance(target, ast.Name):
            if self.stand_ins is None:
                noted = ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(number), ast.Constant(None)], []))
                return [node, _place_at(noted, node)]
            return never if number in self.stand_ins else node
        if self.stand_ins is None:
            noted = ast.Expr(
                ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(number), ast.Name(target.id, ast.Load())], [])
            )
            return [node, _place_at(noted, node)]
        if number not in self.stand_ins:
            return node
        assigned = ast.Assign([ast.Name(target.id, ast.Store())], _value(number, self.stand_ins[number]))
        return [_place_at(assigned, node), never]


def _value(number: int, stand_in: StandIn) -> ast.expr:
    if not stand_in.items:
        return ast.Constant(stand_in.constant)
    name = f"{PREFIX}{number}"
    return ast.parse(f"{name}.pop(0) if len({name}) > 1 else {name}[0]", mode="eval").body


def _place_at(new: Any, old: ast.AST) -> Any:
    """Give a new node, and its parts that are not from the file, the location of the old node."""
    of_file = {id(part) for part in ast.walk(old)}
    for node in ast.walk(new):
        if isinstance(node, ast.expr | ast.stmt) and id(node) not in of_file:
            ast.copy_location(node, old)
    return new


@dataclass(frozen=True)
class Program:
    """A program to change: functions by file, numbers of the spots to replace, edits of lines, and new functions."""

    functions: Mapping[str, Sequence[FunctionType]]
    spots: Mapping[Spot, int] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    definitions: tuple[Definition, ...] = ()

    @contextmanager
    def with_notes(self, noted: Noted, left_out: frozenset[int] = frozenset()) -> Iterator[None]:
        """Run the block with a program that records values at its spots. `left_out` spots do not run and are empty."""
        with self._with_changes(None, left_out, {NOTE: noted.note, TRUTH: noted.truth, ENTER: noted.enter}):
            yield

    @contextmanager
    def with_stand_ins(
        self, stand_ins: Mapping[int, StandIn], left_out: frozenset[int] = frozenset()
    ) -> Iterator[None]:
        """Run the block with values in place of the spots."""
        names = {f"{PREFIX}{number}": list(each.items) for number, each in stand_ins.items() if each.items}
        with self._with_changes(stand_ins, left_out, {**names, f"{PREFIX}manager": nullcontext}):
            yield

    def set_values(self, values: Mapping[int, Sequence[Any]]) -> None:
        """Set the values that replace the spots in the next run; for use in a block of `with_stand_ins`."""
        for functions in self.functions.values():
            for names in {id(each.__globals__): each.__globals__ for each in functions}.values():
                for number, items in values.items():
                    if f"{PREFIX}{number}" in names:
                        names[f"{PREFIX}{number}"] = list(items)

    @contextmanager
    def _with_changes(
        self, stand_ins: Mapping[int, StandIn] | None, left_out: frozenset[int], names: Mapping[str, Any]
    ) -> Iterator[None]:
        names = {**names, EMPTY: _Empty()}
        files = dict.fromkeys([*(spot.file for spot in self.spots), *(edit.file for edit in self.edits)])
        codes: dict[CodeKey, CodeType] = {}
        for file in files:
            own = {spot: number for spot, number in self.spots.items() if spot.file == file}
            edits = [edit for edit in self.edits if edit.file == file]
            codes |= codes_of(file, _Replace(own, stand_ins, left_out).visit(parse_edited(file, edits)))
        functions = [each for file in files for each in self.functions.get(file, ())]
        with swap_code(functions, codes, names), with_definitions(self.functions, self.definitions):
            yield


_defined = set[Definition]()


@contextmanager
def with_definitions(
    functions: Mapping[str, Sequence[FunctionType]], definitions: Iterable[Definition]
) -> Iterator[None]:
    """Add new functions to the modules of their files; remove them and their operators after the block.

    Does nothing for functions that are there already, as registering an operator takes time. A file that was run
    several times has several modules: they share the functions, as an operator that is registered again is lost to
    those who have it.
    """
    with contextlib.ExitStack() as stack:
        for each in [each for each in dict.fromkeys(definitions) if each not in _defined]:
            own = functions.get(each.file, ())
            spaces = list({id(function.__globals__): function.__globals__ for function in own}.values()) or [{}]
            known = set(spaces[0])
            exec(compile(each.text, f"<a function for {each.file}>", "exec", dont_inherit=True), spaces[0])
            new = {name: spaces[0][name] for name in set(spaces[0]) - known}
            _defined.add(each)
            stack.callback(_defined.discard, each)
            stack.callback(_forget, spaces, new)
            for space in spaces:
                space.update(new)
            forbid_mutation(new.values())
        yield


def _forget(spaces: Sequence[dict[str, Any]], new: Mapping[str, Any]) -> None:
    """Remove functions, and what torch left of them: results of `assume_constant_result`, as `<function>_<number>`."""
    for space in spaces:
        for name in [name for name in space if name in new or re.sub(r"_\d+$", "", name) in new]:
            del space[name]
    forget_operators(new.values())


def parse_edited(file: str, edits: Sequence[Edit] = ()) -> ast.Module:
    """Parse an edited file; unedited code keeps its location. Raises SyntaxError."""
    lines = linecache.getlines(file)
    if not lines:
        raise SyntaxError(f"there is no source of {file}")
    text, origin = edit_lines(lines, edits)
    tree = ast.parse("".join(text))
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.excepthandler | ast.arg | ast.keyword | ast.alias):
            node.lineno, node.end_lineno = origin[node.lineno - 1], origin[(node.end_lineno or node.lineno) - 1]
    return tree


def edit_lines(lines: Sequence[str], edits: Sequence[Edit]) -> tuple[list[str], list[int]]:
    """The lines of an edited file, and the line number of each in the original file.

    New lines get the line end of the first replaced line; the last new line gets that of the last replaced line.
    """
    text, origin = list(lines), list(range(1, len(lines) + 1))
    for edit in sorted(edits, key=lambda edit: edit.line, reverse=True):
        end = _line_end(text[edit.line - 1]) or _line_end(text[0]) or "\n"
        *new, last = edit.text.split("\n")
        new = [*(f"{line}{end}" for line in new), last + _line_end(text[edit.end_line - 1])]
        text[edit.line - 1 : edit.end_line] = new
        origin[edit.line - 1 : edit.end_line] = [min(edit.line + n, edit.end_line) for n in range(len(new))]
    return text, origin


def _line_end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


CodeKey = tuple[str, str, int]
"""File, qualified name and first line of a function."""


def codes_of(file: str, tree: ast.Module) -> dict[CodeKey, CodeType]:
    """Code objects of all functions of a changed file, by key."""
    module = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
    return {key_of(code): code for code in nested_codes(module)}


def key_of(code: CodeType) -> CodeKey:
    return code.co_filename, code.co_qualname, code.co_firstlineno


@contextmanager
def swap_code(
    functions: Iterable[FunctionType], codes: Mapping[CodeKey, CodeType], names: Mapping[str, Any]
) -> Iterator[None]:
    """Temporarily swap the code of functions, and add `names`, which the new code uses, to their globals."""
    with contextlib.ExitStack() as stack:
        for function in functions:
            new = codes.get(key_of(function.__code__))
            if new is not None and new.co_freevars == function.__code__.co_freevars:
                stack.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = new
            for name in names.keys() - function.__globals__.keys():
                stack.callback(function.__globals__.pop, name, None)
            function.__globals__.update(names)
        yield


def all_functions() -> dict[str, list[FunctionType]]:
    """All existing functions by file, found through the garbage collector, so that methods of any object are included.

    Frozen objects (`gc.freeze`) are found through their modules.
    """
    found: dict[str, dict[int, FunctionType]] = {}
    for each in (*gc.get_objects(), *_functions_of_modules()):
        if type(each) is FunctionType:
            found.setdefault(each.__code__.co_filename, {})[id(each)] = each
    return {file: list(functions.values()) for file, functions in found.items()}


def _functions_of_modules() -> Iterator[Any]:
    """Yield all values in the user's modules and in the modules' classes, including functions."""
    for module in imported_modules().values():
        file = getattr(module, "__file__", None) or "<unknown>"
        for value in () if is_installed(file) else list(vars(module).values()):
            yield value
            if isinstance(value, type):
                yield from list(vars(value).values())
