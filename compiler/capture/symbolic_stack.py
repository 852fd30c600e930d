"""A stack of Python expressions instead of values, and the lines of Python that evaluate them in the bytecode's order.

An expression that does something waits on the stack until it is used; it is written inline only where Python then
evaluates everything in the order of the bytecode, and gets a name (`v1`) of its own otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any


class StoppedError(Exception):
    """An instruction that can't be written as Python, with the reason in plain words."""


@dataclass(eq=False, slots=True)
class Value:
    """A stack entry: Python text, whether a dot may follow it, and whether it is still to be evaluated.

    `local` is the variable that it reads, `key` how it is written between brackets (`0:1` for a slice), `truth` what
    it is the truth value of. `offsets` are those of the instructions that it stands for.
    """

    text: str
    primary: bool = True
    waiting: bool = False
    local: str = ""
    key: str = ""
    truth: str = ""
    offsets: tuple[int, ...] = ()

    def become_variable(self, name: str) -> None:
        """Make this entry refer to a variable."""
        self.text, self.primary, self.waiting, self.local = name, True, False, ""
        self.key = self.truth = ""
        self.offsets = ()


NULL = Value("NULL")


@dataclass
class SymbolicStack:
    """`lines` is the Python so far, `stands_for` the offsets of the instructions behind each line.

    `taken` are the names that the code uses itself, `offset` is the instruction under way, `used` those of which it
    takes what they made.
    """

    taken: frozenset[str]
    lines: list[str] = field(default_factory=list)
    stands_for: list[tuple[int, ...]] = field(default_factory=list)
    stack: list[Value] = field(default_factory=list)
    waiting: list[Value] = field(default_factory=list)
    indent: int = 1
    offset: int = 0
    used: list[int] = field(default_factory=list)
    made: int = 0

    def begin_instruction(self, offset: int) -> None:
        self.offset = offset
        self.used = [offset]

    def emit(self, text: str, offsets: Iterable[int] | None = None) -> None:
        self.lines.append("    " * self.indent + text)
        self.stands_for.append(tuple(sorted(set(self.used if offsets is None else offsets))))

    def fresh_name(self) -> str:
        self.made += 1
        while f"v{self.made}" in self.taken:
            self.made += 1
        return f"v{self.made}"

    def name_it(self, value: Value) -> None:
        name = self.fresh_name()
        self.emit(f"{name} = {value.text}", value.offsets)
        value.become_variable(name)

    def name_reads(self) -> None:
        """Give a name to what reads a variable: a block that comes may change the variable."""
        for value in self.stack:
            if value.local:
                self.name_it(value)

    def keep_reads_of(self, name: str, but: Value | None = None) -> None:
        for other in self.stack:
            if other.local == name and other is not but:
                self.name_it(other)

    def flush(self, but: Value | None = None) -> None:
        """Evaluate all that waits, in order. `but`, if it waits last, is left to the statement that comes."""
        last = self.waiting.pop() if but is not None and self.waiting and self.waiting[-1] is but else None
        for value in self.waiting:
            self.name_it(value)
        self.waiting = []
        if last is not None:
            last.waiting = False

    def pop(self, count: int) -> list[Value]:
        if count > len(self.stack):
            raise StoppedError(f"the instruction at {self.offset} takes more than there is")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def from_top(self, depth: int) -> Value:
        """The entry so far down, 1 for the top, left where it is."""
        if not 0 < depth <= len(self.stack):
            raise StoppedError(f"the instruction at {self.offset} reaches further down than there is")
        return self.stack[-depth]

    def on_stack(self, value: Value) -> bool:
        return any(value is other for other in self.stack)

    def consume(self, operands: list[Value]) -> None:
        """Evaluate operands in this order; name the waiting ones if that is not the bytecode's order."""
        inline = [value for value in operands if value.waiting]
        tail = self.waiting[len(self.waiting) - len(inline) :] if inline else []
        in_order = len(inline) == len(tail) and all(a is b for a, b in zip(inline, tail, strict=True))
        if any(map(self.on_stack, inline)) or not in_order:
            self.flush()
        elif inline:
            del self.waiting[len(self.waiting) - len(inline) :]
        for value in operands:
            self.used.extend(value.offsets)

    def load(self, text: str, *, primary: bool = True, local: str = "") -> None:
        """Push a constant or a variable."""
        self.stack.append(Value(text, primary, local=local, offsets=(self.offset,)))

    def push(self, text: str, *, primary: bool = True, truth: str = "") -> None:
        """Push an expression that is still to be evaluated."""
        value = Value(text, primary, waiting=True, truth=truth, offsets=tuple(self.used))
        self.waiting.append(value)
        self.stack.append(value)

    def compute(self, count: int, text: Callable[..., str], *, primary: bool = True) -> None:
        operands = self.pop(count)
        self.consume(operands)
        self.push(text(*(value.text for value in operands)), primary=primary)

    def statement(self, operands: list[Value], text: Callable[..., str]) -> None:
        """A statement that evaluates these operands, in this order, once all before it is done."""
        self.consume(operands)
        self.flush()
        self.emit(text(*(value.text for value in operands)))


def literal(value: Any) -> str | None:
    """The text that spells a constant exactly, or None."""
    if not isinstance(value, int | float | str | bytes | bool | tuple | frozenset | type(None) | type(...)):
        return None
    try:
        text = repr(value)
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return text if type(read) is type(value) and repr(read) == text else None


def tuple_text(*items: str) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "function"


def parameters(code: CodeType) -> Iterator[str]:
    """The parameters as in a `def`; defaults belong to the function, not to its code."""
    names = list(code.co_varnames)
    for number, name in enumerate(names[: code.co_argcount], 1):
        yield name
        if number == code.co_posonlyargcount:
            yield "/"
    only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = names[code.co_argcount + code.co_kwonlyargcount :]
    if code.co_flags & 4:
        yield f"*{rest.pop(0)}"
    elif only:
        yield "*"
    yield from only
    if code.co_flags & 8:
        yield f"**{rest.pop(0)}"


def parameter_names(code: CodeType) -> tuple[str, ...]:
    """The variables that a call fills."""
    stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
