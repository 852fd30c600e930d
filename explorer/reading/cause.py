"""The cause of a fact: the user's line of a graph break, the failed guard of a recompilation, the line that
specialised a size.
"""

from __future__ import annotations

from compiler.capture.function_names import function_name
from compiler.record import Condition, GraphBreak, GuardFailure, Recompile, Span, Suggestion
from compiler.record.plain_text import one_line
from explorer.reading.provenance import place_text


def users_span(found: GraphBreak) -> Span | None:
    """Innermost line of a break outside installed packages, or else the innermost line; None if no line is known."""
    own = [span for span in found.chain if not span.installed]
    return own[-1] if own else found.chain[-1] if found.chain else None


def users_place(found: GraphBreak) -> str:
    """Location of the user's line of a break: `m.py:12`."""
    span = users_span(found)
    return place_text(span.file, span.line) if span else place_text(found.file, found.line)


def culprit_code(found: GraphBreak) -> str:
    """The expression that ended the graph; the whole line if its columns are unknown."""
    return found.chain[-1].code if found.chain and found.chain[-1].code else found.code


def closest_failure(found: Recompile) -> GuardFailure | None:
    """The failed guard that caused a recompilation, preferably of the closest cache entry; None if unknown."""
    blamed = [item for item in found.failures if (item.cause, item.argument) == (found.cause, found.argument)]
    blamed.sort(key=lambda item: item.entry != found.closest)
    return next(iter(blamed or found.failures), None)


def place_and_code(span: Span) -> str:
    """A line and its code: `m.py:12  x.view(8, -1)`."""
    return f"{place_text(span.file, span.line)}  {one_line(span.code)}".rstrip()


def condition_text(condition: Condition) -> str:
    """An assumption about a size, and the line that caused it."""
    why = "0 and 1 have code of their own; first used at" if condition.default else "because of"
    place = place_text(condition.file, condition.line)
    return (
        f"{condition.words} {why} {place}  {one_line(condition.code)}".rstrip() if condition.file else condition.words
    )


def break_reason(found: GraphBreak) -> str:
    """Reason of a graph break in one sentence: our explanation if there is one, else torch's."""
    return one_line(found.what or found.explanation or found.reason or found.kind)


def recompile_reason(found: Recompile) -> str:
    """Reason of a recompilation in one line; torch's own reasons if the cause is unknown.

    For example `forward: `n` was the int 1, is now the int 2`.
    """
    closest = closest_failure(found)
    return f"{function_name(found.function)}: {one_line(closest.words if closest else '; '.join(found.reasons))}"


def rewritten_lines(suggestion: Suggestion) -> str:
    """Lines that a rewrite replaces: `m.py, lines 3 to 5`."""
    first, last = suggestion.line, suggestion.end_line
    return f"{suggestion.file}, {f'line {first}' if first == last else f'lines {first} to {last}'}"
