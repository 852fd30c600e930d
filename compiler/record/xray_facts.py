"""Results of an x-ray: sites of graph breaks, the origins of the values in them, and fixes that were tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.record.capture_facts import Span, Suggestion


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """The origin of a name in a breaking expression: `span` is the assignment, loop or argument that sets the name."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Site:
    """An expression that breaks the graph even if nothing before it does.

    `file`, `line` and `span` are its place in the user's code (or in a package other than torch). `chain` leads from
    the explored function to this place. `branch` are the headers of the enclosing blocks, outermost first. `origins`
    trace the expression's value back. `kind` and `reason` are torch's words, `what` is one plain sentence.

    `as_it_is` is whether TorchDynamo reported the break in the unchanged program; else `behind` is the id of the site
    that hid it. `passed` is whether the x-ray could continue after it; `note` says why not, or which expression was
    replaced. `report` is the text of an issue for the authors of an installed package that breaks; "" for other code.
    """

    id: str
    file: str
    line: int
    span: Span
    kind: str
    what: str
    reason: str
    chain: tuple[Span, ...]
    branch: tuple[str, ...] = ()
    origins: tuple[ValueOrigin, ...] = ()
    as_it_is: bool = True
    behind: str = ""
    suggestions: tuple[Suggestion, ...] = ()
    passed: bool = True
    note: str = ""
    report: str = ""

    @property
    def function(self) -> str:
        """Name of the function that contains the expression."""
        return self.span.function


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """Cost of a program under torch.compile: numbers of graphs, lines that break, operations and guards."""

    graphs: int
    breaks: int
    operations: int
    guards: int


FixState = Literal["verified", "changes when a side effect happens", "moves the break", "no fix known"]


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix that was tried for a site. `words` describe the result; `moved_to` is the place of a new break.

    `also` are further changes that the fix needs, if the suggestion alone would only move the break. `together` is set
    for the fixes that work together. `cost` is the cost of the program with this fix alone.
    """

    site: str
    suggestion: Suggestion | None
    state: FixState
    words: str
    moved_to: Span | None = None
    together: bool = False
    cost: ProgramCost | None = None
    also: tuple[Suggestion, ...] = ()

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """All changes of the fix."""
        return (self.suggestion, *self.also) if self.suggestion is not None else ()


CauseFixState = Literal["verified", "moves the recompilation", "no fix known"]


@dataclass(frozen=True, slots=True)
class CauseFix:
    """A change that was tried for a cause of recompilation; `words` describe the result.

    `code` are statements to run before the first call or before compilation, in the form in which they were tried;
    `edits` are changed lines of the user's files. `before` and `after` are the numbers of compilations of all calls
    without and with the change, None if the calls could not be made again.
    """

    state: CauseFixState
    text: str
    words: str
    code: str = ""
    edits: tuple[Suggestion, ...] = ()
    before: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """A changing value that causes recompilation, and the place in the user's code that owns the change.

    `kind` is the property that changes ("shape", "number", "requires_grad", ...), `what` is one plain sentence, and
    `reason` are torch's words. `argument` is the name in the first failed guard, `old` and `new` are its values.
    `functions` were compiled again; `frames` are these compilations, and `calls` the calls in which they were made.
    `origins` lead from the guarded value to its owner. `as_it_is` is whether the unchanged program recompiles; if
    not, it recompiles once its graph breaks are gone. `site` is the id of the graph break whose value changes, or "".
    """

    id: str
    file: str
    line: int
    span: Span
    kind: str
    what: str
    reason: str
    argument: str
    old: str
    new: str
    functions: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()
    origins: tuple[ValueOrigin, ...] = ()
    as_it_is: bool = True
    site: str = ""
    advice: str = ""
    fix: CauseFix | None = None

    @property
    def count(self) -> int:
        """Number of recompilations."""
        return len(self.frames)


@dataclass(frozen=True, slots=True)
class XRay:
    """The sites of a call, in the order in which they were found, and fixes that were tried.

    `consequences` are breaks of the unchanged program that only follow from an earlier break; they are not sites.
    `problems` are the reasons why there may be more sites.

    `fixes` has the best fix of each site. `patch` is a unified diff of the fixes that work together. `left` are the
    sites that remain with it, None if no fix was tried; `left_problems` are the reasons why there may be more.
    `cost` is the cost of the unchanged program, and `cost_after` the cost with the patch.

    `causes` are the causes of recompilation, `cause_notes` the reasons why there may be more.
    """

    sites: tuple[Site, ...]
    consequences: tuple[Span, ...] = ()
    problems: tuple[str, ...] = ()
    captures: int = 0
    seconds: float = 0.0
    fixes: tuple[Fix, ...] = ()
    patch: str = ""
    left: tuple[Site, ...] | None = None
    left_problems: tuple[str, ...] = ()
    cost: ProgramCost | None = None
    cost_after: ProgramCost | None = None
    causes: tuple[Cause, ...] = ()
    cause_notes: tuple[str, ...] = ()
