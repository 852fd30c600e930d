"""What an x-ray finds: sites of graph breaks, and where the values in them came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.record import Span, Suggestion


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a name in a breaking expression got its value: `span` is the assignment, the loop or the argument."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Site:
    """An expression that breaks the graph even where nothing before it does.

    `file`, `line` and `span` are the place in the user's code (or in a package that is not torch); `chain` leads there
    from the explored function. `branch` are the headers of the blocks around it, outermost first. `origins` follow its
    value backwards. `kind` and `reason` are torch's words, `what` is one plain sentence.

    `as_it_is` is whether TorchDynamo saw the break in the program as it is; else `behind` is the id of a site that hid
    it. `passed` is whether the x-ray could go on behind it; `note` says why not, or what stood in its place.
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
    origins: tuple[Origin, ...] = ()
    as_it_is: bool = True
    behind: str = ""
    suggestions: tuple[Suggestion, ...] = ()
    passed: bool = True
    note: str = ""

    @property
    def function(self) -> str:
        """The function that the expression is in."""
        return self.span.function


FixState = Literal["verified", "changes when a side effect happens", "moves the break", "no fix known"]


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix of a site that was tried. `words` say what was seen; `moved_to` is where it breaks then.

    `together` is whether it is among the fixes that hold together.
    """

    site: str
    suggestion: Suggestion | None
    state: FixState
    words: str
    moved_to: Span | None = None
    together: bool = False


@dataclass(frozen=True, slots=True)
class XRay:
    """The sites of a call, in the order in which they were found, and what kept the x-ray from more.

    `consequences` are places where the program as it is breaks only because it broke before: they are no sites.
    """

    sites: tuple[Site, ...]
    consequences: tuple[Span, ...] = ()
    problems: tuple[str, ...] = ()
    captures: int = 0
    seconds: float = 0.0
