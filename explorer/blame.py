"""What a graph break or a recompilation is put down to: the user's line, the guard that came closest to holding."""

from __future__ import annotations

from compiler.record import GraphBreak, GuardFailure, Recompile, Span
from explorer.provenance import place_text


def users_span(found: GraphBreak) -> Span | None:
    """The innermost line of a break that is not in an installed package, or the culprit's."""
    own = [span for span in found.chain if not span.installed]
    return own[-1] if own else found.chain[-1] if found.chain else None


def users_place(found: GraphBreak) -> str:
    """That line, as `m.py:12`."""
    span = users_span(found)
    return place_text(span.file, span.line) if span else place_text(found.file, found.line)


def culprit_code(found: GraphBreak) -> str:
    """The piece of code that ended the graph; where only the line is known, the line."""
    return found.chain[-1].code if found.chain and found.chain[-1].code else found.code


def closest_failure(found: Recompile) -> GuardFailure | None:
    """The failed guard that a recompilation is put down to."""
    blamed = [item for item in found.failures if (item.cause, item.argument) == (found.cause, found.argument)]
    return next(iter(blamed or found.failures), None)
