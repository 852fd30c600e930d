"""Base classes of the C++ and Triton writers: lines of code, and expressions as text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from compiler.backend.ir import Kernel, Loop, Program
from compiler.backend.ir.expr import Expr
from compiler.backend.ir.index import Atom, Index, Product, Symbol, Var


class Lines:
    """Writes lines of code. `targets` maps line numbers, from 0, to the target of the loop that the line computes.
    `target` is the default target of new lines. `mark` begins a comment.
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
        """Write the head of a function, or a function call, over several lines if it is long."""
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
        """Write the user's line of Python as a comment, unless it is the same as for the previous loop."""
        if loop.source and loop.source != self.source:
            self.source = loop.source
            self.line(f"{self.mark} {loop.source}".rstrip("\\"), loop.target)


@cache
def _method(kind: str) -> str:
    return f"write_{kind.lower()}"


class KernelText(Lines):
    """Writes a kernel. Subclasses, one per language, have a method `write_…` for each class of expressions. `known` has
    the variable names of computed values, by buffer. `called` has the names of called functions.
    """

    suffix = ""
    """Suffix of integer literals in indices."""

    def __init__(self, kernel: Kernel, program: Program) -> None:
        super().__init__()
        self.kernel, self.program = kernel, program
        self.known: dict[str, str] = {}
        self.called: set[str] = set()

    def text(self, value: Expr | Atom) -> str:
        """Text of an expression or an atom of an index. An `Index` is written as an int64 value."""
        found: str = getattr(self, _method(type(value).__name__))(value)
        return found

    def write_var(self, value: Var | Symbol) -> str:
        return value.name

    write_symbol = write_var

    def index(self, index: Index) -> str:
        """Text of an index, in the kernel's index type."""
        terms = []
        for atoms, factor in self.sorted_terms(index):
            names = [self.text(atom) for atom in atoms]
            terms.append("*".join(names if factor == 1 and names else [f"{factor}{self.suffix}", *names]))
        return " + ".join(terms).replace("+ -", "- ") or f"0{self.suffix}"

    def sorted_terms(self, index: Index) -> Iterable[tuple[Product, int]]:
        """Terms of an index, in the order in which they are written."""
        return index.terms

    def offset(self, name: str, index: tuple[Index, ...]) -> Index:
        """Offset of an element in a buffer, in elements."""
        return self.program.by_name[name].offset(index)
