"""Symbolic sizes and numbers as facts: hints, ranges, and the lines that specialized them."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

from compiler.capture.guard_words import SymbolNames, plain, strip_brackets
from compiler.capture.guards import Asked, find_asker, line_that_asked
from compiler.capture.sources import SourceBook, is_installed
from compiler.record import Condition, Span, Symbol
from compiler.torch_api.open_sizes import ConditionFacts, SymbolFacts


def names_of(facts: Sequence[SymbolFacts]) -> SymbolNames:
    """Names of the symbolic sizes of one compilation."""
    return SymbolNames(
        all={source: fact.became or fact.name for fact in facts for source in fact.sources},
        own={fact.sources[0]: fact.name for fact in facts if not fact.became},
    )


def symbol_of(frame: str, fact: SymbolFacts, book: SourceBook) -> Symbol:
    """Convert torch's facts about one symbol of a compilation to a Symbol."""
    names = {file: book.name(file) for file in book.lines}
    first, *also = map(plain, fact.sources)
    return Symbol(
        name=fact.name,
        frame=frame,
        source=first,
        hint=fact.hint,
        low=fact.low,
        high=fact.high,
        also=tuple(also),
        became=fact.became,
        specialized_by=_line(fact.stack, book) or _line_in_comment(fact.asked, names),
        conditions=tuple(_condition(condition, names) for condition in fact.conditions),
        asked_by=find_asker([(fact.frame.filename, fact.frame.name)] if fact.frame else []),
    )


def _line(stack: Sequence[traceback.FrameSummary], book: SourceBook) -> Span | None:
    """The innermost line of the user's own code, or else the innermost line; None if the stack is empty."""
    own = [entry for entry in stack if not is_installed(entry.filename)]
    chosen = (own or list(stack))[-1:]
    if not chosen:
        return None
    return book.span(chosen[0].filename, chosen[0].lineno or 0, chosen[0].name)


def _line_in_comment(comment: str, names: Mapping[str, str]) -> Span | None:
    """The source line in torch's comment, with its code and abbreviated file name; None if there is none."""
    asked = line_that_asked(comment, names)
    return Span(asked.file, asked.line, asked.line, code=_code(comment)) if asked else None


def _condition(fact: ConditionFacts, names: Mapping[str, str]) -> Condition:
    asked = line_that_asked(fact.asked, names) or Asked()
    return Condition(strip_brackets(fact.code), asked.file, asked.line, _code(fact.asked), fact.default)


def _code(comment: str) -> str:
    return comment.rpartition("  #")[0].strip()
