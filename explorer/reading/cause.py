"""What a fact is put down to: of a graph break the user's line, of a recompilation the guard that came closest to
holding, of what was assumed of a size the line that needed it.
"""

from __future__ import annotations

from compiler.capture.function_names import function_name
from compiler.record import Condition, GraphBreak, GuardFailure, Recompile, Span, Suggestion
from compiler.record.plain_text import one_line
from explorer.reading.provenance import place_text


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
    """The failed guard that a recompilation is put down to, of the code that came closest."""
    blamed = [item for item in found.failures if (item.cause, item.argument) == (found.cause, found.argument)]
    blamed.sort(key=lambda item: item.entry != found.closest)
    return next(iter(blamed or found.failures), None)


def place_and_code(span: Span) -> str:
    """A line and its code: `m.py:12  x.view(8, -1)`."""
    return f"{place_text(span.file, span.line)}  {one_line(span.code)}".rstrip()


def condition_text(condition: Condition) -> str:
    """What was assumed, and the line that asked for it."""
    why = "0 and 1 have code of their own; first used at" if condition.default else "because of"
    place = place_text(condition.file, condition.line)
    return (
        f"{condition.words} {why} {place}  {one_line(condition.code)}".rstrip() if condition.file else condition.words
    )


def break_reason(found: GraphBreak) -> str:
    """Why a graph ended, in one sentence: plainly where that is known, else torch's explanation or its reason."""
    return one_line(found.what or found.explanation or found.reason or found.kind)


def recompile_reason(found: Recompile) -> str:
    """Why a function was compiled again, in one line; torch's own reasons if the cause is not known.

    For example `forward: `n` was the int 1, is now the int 2`.
    """
    closest = closest_failure(found)
    return f"{function_name(found.function)}: {one_line(closest.words if closest else '; '.join(found.reasons))}"


def rewritten_lines(suggestion: Suggestion) -> str:
    """Which lines a rewrite replaces: `m.py, lines 3 to 5`."""
    first, last = suggestion.line, suggestion.end_line
    return f"{suggestion.file}, {f'line {first}' if first == last else f'lines {first} to {last}'}"
