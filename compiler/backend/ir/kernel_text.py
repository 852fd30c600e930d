"""What writing a kernel in C++ and in Triton has in common: lines, each for a loop, and expressions in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch

from compiler.backend.ir import Kernel, Loop, Program
from compiler.backend.ir.expr import Const, Expr, Guard, Load, Op
from compiler.backend.ir.index import Atom, Index, Indirect, Product, Quotient, Remainder


class Lines:
    """Lines of code. `targets` maps line numbers to the loops whose values they compute: what `line` is given, or else
    `target`. `mark` begins a comment.
    """

    mark = "#"

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.targets: dict[int, str] = {}
        self.depth = 0
        self.target = self.source = ""

    def line(self, text: str, target: str = "") -> None:
        if target := target or self.target:
            self.targets[len(self.lines)] = target
        self.lines.append("    " * self.depth + text)

    def head(self, start: str, arguments: list[str], end: str) -> None:
        """A function's head, or a call."""
        if len(start) + sum(len(argument) + 2 for argument in arguments) < 110:
            self.line(f"{start}{', '.join(arguments)}{end}")
            return
        self.line(start)
        row = ""
        for argument in arguments:
            if len(row) + len(argument) > 100:
                self.line(f"    {row.rstrip()}")
                row = ""
            row += f"{argument}, "
        self.line(f"    {row.rstrip()}")
        self.line(end)

    def comment(self, loop: Loop) -> None:
        """The line of Python that a loop implements, unless it is that of the loop before."""
        if loop.source and loop.source != self.source:
            self.source = loop.source
            self.line(f"{self.mark} {loop.source}".rstrip("\\"), loop.target)


class KernelText(Lines, ABC):
    """Writes a kernel. Each language writes in its own way what is abstract. `known` are names of values, `called` the
    functions called so far.
    """

    suffix = ""
    """What a number in an index ends with."""

    def __init__(self, kernel: Kernel, program: Program) -> None:
        super().__init__()
        self.kernel, self.program = kernel, program
        self.known: dict[str, str] = {}
        self.called: set[str] = set()

    def text(self, value: Expr) -> str:
        """An expression."""
        if isinstance(value, Const):
            return self.constant(value.value, value.dtype)
        if isinstance(value, Load):
            return self.load(value)
        if isinstance(value, Index):
            return self.number(value)
        if isinstance(value, Guard):
            return self.choice(value)
        assert isinstance(value, Op), "a loop adds, not a value"
        return self.cast(value.args[0], value.dtype) if value.name == "cast" else self.operation(value)

    def index(self, index: Index) -> str:
        """An index, of the kernel's type for indices."""
        terms = []
        for atoms, factor in self.sorted_terms(index):
            names = [self.atom(atom) for atom in atoms]
            terms.append("*".join(names if factor == 1 and names else [f"{factor}{self.suffix}", *names]))
        return " + ".join(terms).replace("+ -", "- ") or f"0{self.suffix}"

    def sorted_terms(self, index: Index) -> Iterable[tuple[Product, int]]:
        """The terms of an index in the order in which they are written."""
        return index.terms

    def atom(self, atom: Atom) -> str:
        if isinstance(atom, Indirect):
            return self.checked_index(atom)
        return self.ratio(atom) if isinstance(atom, Quotient | Remainder) else atom.name

    def offset(self, name: str, index: tuple[Index, ...]) -> Index:
        """Where an element of a buffer lies."""
        return self.program.by_name[name].offset(index)

    @abstractmethod
    def constant(self, value: bool | int | float, dtype: torch.dtype) -> str:
        """A number."""

    @abstractmethod
    def load(self, load: Load) -> str:
        """An element: a value that the kernel has computed, or one from memory."""

    @abstractmethod
    def number(self, index: Index) -> str:
        """An index as a number, of dtype int64."""

    @abstractmethod
    def choice(self, value: Guard) -> str:
        """One of two values; the loads of the other one are not done."""

    @abstractmethod
    def cast(self, value: Expr, dtype: torch.dtype) -> str:
        """A value in a dtype."""

    @abstractmethod
    def operation(self, value: Op) -> str:
        """An operation, as `scalar.OPERATIONS` says it is written."""

    @abstractmethod
    def checked_index(self, atom: Indirect) -> str:
        """An index that a tensor holds, whose range is checked."""

    @abstractmethod
    def ratio(self, atom: Quotient | Remainder) -> str:
        """A quotient or a remainder."""
