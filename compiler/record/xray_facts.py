"""Results of an x-ray: sites of graph breaks, causes of recompilation, and the fixes that were tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.record.capture_facts import Frame, GraphBreak, Span, Suggestion

UNTRIED = "not tried, as the time for trying fixes was over"
"""The end of the words of a fix that nobody tried."""


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """The origin of a name's value. `span` is the assignment, loop or argument that sets the name."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Site:
    """An expression that breaks the graph by itself, not as a consequence of an earlier break.

    `file`, `line` and `span` are its place, in the user's code or in a package that uses torch. `chain` leads from the
    explored function to this place. `branch` are the headers of the enclosing blocks, outermost first. `origins` are
    the origins of the names in the expression. `kind` and `reason` are torch's words, `what` is one plain sentence.

    `as_it_is` is True if TorchDynamo reported the break in the unchanged program; otherwise, `behind` is the id of the
    site that hid it. `passed` is False if the search ended at the site, or if only the exploration reached it. `note`
    is a remark, such as the replaced expression, or "". `report` is the text of an issue for the authors of an
    installed package, or "".
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
    """Numbers of graphs, of lines that break the graph, of operations and of guards of a compiled program.

    `kernels` and `launches` are the numbers of generated kernels and of their launches in the generated code; None if
    no kernels were generated. `milliseconds` is the median time of all calls together; None if it was not measured.
    """

    graphs: int
    breaks: int
    operations: int
    guards: int
    kernels: int | None = None
    launches: int | None = None
    milliseconds: float | None = None


FixState = Literal["verified", "changes when a side effect happens", "moves the break", "no fix known"]


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix that was tried for a site. `words` describe the result.

    `suggestion` is None if no fix is known. `also` are further changes, if the suggestion alone only moves the break.
    `moved_to` is the place of a new or remaining break. `together` is True for the fixes that the patch combines.
    `cost` is the cost of the program with this fix alone, None if unknown.
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


@dataclass(frozen=True, slots=True)
class GraphLines:
    """Source lines of the operations of a captured graph.

    `id` is the graph's artifact id, as in `Frame.graphs`. `stacks` are the call stacks of the operations, outermost
    first, each a sequence of (file, line); `counts` are the numbers of operations with each stack.
    """

    id: str
    graph: str
    stacks: tuple[tuple[tuple[str, int], ...], ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProgramState:
    """The program as TorchDynamo captured it with the first `count` of the fixes that work together."""

    count: int
    frames: tuple[Frame, ...]
    breaks: tuple[GraphBreak, ...]
    graphs: tuple[GraphLines, ...]


CauseFixState = Literal["verified", "moves the recompilation", "no fix known"]


@dataclass(frozen=True, slots=True)
class CauseFix:
    """A change that was tried for a cause of recompilation. `text` is the change, `words` describe the result.

    `code` are statements to run before the first call or before compilation. `edits` are changed lines of the user's
    files. `before` and `after` are the numbers of compilations of all calls without and with the change, None if
    unknown.
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
    """A changing value that causes recompilations, and the place in the user's code where it changes.

    `kind` is the property that changes ("shape", "number", "requires_grad", ...), `what` is one plain sentence, and
    `reason` are torch's words. `argument` is the name in the first failed guard, `old` and `new` are its values.
    `functions` are compiled again. `frames` are the ids of the recompiled frames, `calls` the numbers of the calls that
    recompile. `origins` lead from the guarded value to the place where it changes. `as_it_is` is True if the unchanged
    program recompiles, False if only the program without its graph breaks does. `site` is the id of the graph break
    whose value changes, or "".
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
    """The result of an x-ray: sites in the order in which they were found, tried fixes, and causes of recompilation.

    `consequences` are breaks of the unchanged program that only follow from an earlier break; they are not sites.
    `problems` are the reasons why there may be more sites. `captures` is the number of captures that were made.

    `fixes` has the best fix of each site. `patch` is a unified diff of the fixes that work together. `left` are the
    sites that remain with the patch, None if no fix was tried. `left_problems` are the reasons why more may remain.
    `cost` is the cost of the unchanged program, `cost_after` the cost with the patch.

    `states` are captures of the program with one more fix each, in the order of the fixes that work together; the last
    one has all of them. Of many fixes, some counts are left out, and so is a state whose calls raise.

    `causes` are the causes of recompilation. `cause_notes` are the reasons why there may be more causes.
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
    states: tuple[ProgramState, ...] = ()
