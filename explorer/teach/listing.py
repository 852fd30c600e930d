"""The code that a learner sees: numbered lines, and which of them compute something."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property

from compiler.record import Artifact, Record

_COMPUTES = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript)
_STATEMENTS = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr, ast.If, ast.While, ast.For, ast.Assert, ast.With,
)  # fmt: skip
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Listing:
    """Python code of one cell or file, with line numbers from 1, of which lines `first` to `last` are shown.

    `last` is 0 for the last line.
    """

    text: str
    first: int = 1
    last: int = 0

    @cached_property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.text.rstrip().splitlines())

    @property
    def shown(self) -> range:
        """Numbers of the lines that are shown."""
        return range(self.first, (self.last or len(self.lines)) + 1)

    @cached_property
    def computing(self) -> tuple[int, ...]:
        """Numbers of the lines in functions on which a statement that computes something starts."""
        return tuple(sorted({node.lineno for node in self._statements if _computes(node)}))

    def lines_that_assign(self, name: str) -> frozenset[int]:
        """Numbers of the lines in functions that belong to an assignment to a variable."""
        found = (node for node in self._statements if name in _targets(node))
        return frozenset(line for node in found for line in range(node.lineno, _last_line(node) + 1))

    def files_in(self, record: Record) -> frozenset[str]:
        """The names that a record has for this code: records rename cells, so the lines are compared."""
        return frozenset(artifact.title for artifact in record.of_stage("source") if self._is_text_of(artifact))

    def _is_text_of(self, source: Artifact) -> bool:
        rows = [(entity.attrs.get("line", 0), entity.attrs.get("code", "")) for entity in source.entities]
        inside = (0 < line <= len(self.lines) and self.lines[line - 1].strip().startswith(code) for line, code in rows)
        return bool(rows) and all(inside)

    def at_statements(self, text: str) -> str:
        """Replace each line number in a text by its statement's. Raises ValueError for a line that is not shown."""
        for number in map(int, _NUMBER.findall(text)):
            if number not in self.shown:
                raise ValueError(f"there is no line {number}: the lines are {self.shown[0]} to {self.shown[-1]}")
        return _NUMBER.sub(lambda found: str(self.statement_at(int(found[0]))), text)

    def statement_at(self, line: int) -> int:
        """The first line of the statement that a line is part of; the header's, for a compound statement."""
        spans = [(node.lineno, _last_line(node)) for node in self._statements]
        return max((first for first, last in spans if first <= line <= last), default=line)

    @cached_property
    def _statements(self) -> tuple[ast.stmt, ...]:
        try:
            tree = ast.parse(self.text)
        except SyntaxError:  # IPython's own syntax: such a cell has no statements to ask about
            return ()
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        inside = {(node.lineno, node.col_offset): node for function in functions for node in ast.walk(function)
                  if isinstance(node, _STATEMENTS)}  # fmt: skip
        return tuple(node for node in inside.values() if node.lineno in self.shown)


def _last_line(node: ast.stmt) -> int:
    """The last line of a statement's own expressions, without the body of a compound statement."""
    inside = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return max([node.lineno, *(getattr(child, "end_lineno", 0) or 0 for child in inside)])


def _computes(node: ast.stmt) -> bool:
    shown = [node.test] if isinstance(node, ast.If | ast.While) else _expressions(node)
    return any(isinstance(each, _COMPUTES) for expression in shown for each in ast.walk(expression))


def _expressions(node: ast.stmt) -> list[ast.expr]:
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _targets(node: ast.stmt) -> set[str]:
    places = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {name.id for place in places if place for name in ast.walk(place) if isinstance(name, ast.Name)}
