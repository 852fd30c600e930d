"""Rules: the breaks that a rule matches, their description, and suggested changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from compiler.capture.suggestions.case import Case
from compiler.record import Applicability, Suggestion

Lines = tuple[int, int, str]
"""First line, last line, and their new text."""
Rewrite = Callable[[Case], Lines | None]
"""Rewrites the code of a case; None if this code can't be rewritten."""
Condition = Callable[[Case], bool]


def holds_always(_case: Case) -> bool:
    return True


def holds_never(_case: Case) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Change:
    """One fix: in words, as a rewrite of the user's lines, or as settings. `{code}` stands for the user's code.

    `caveat` names possible effects of the edit; it is left out if the code is `safe`. A change is offered if `when`
    holds and `unless` does not; else `otherwise` is offered, if it is set.
    """

    text: str
    rewrite: Rewrite | None = None
    settings: tuple[str, ...] = ()
    caveat: str = ""
    safe: Condition | None = None
    when: Condition = holds_always
    unless: Condition = holds_never
    otherwise: str = ""

    def offer(self, case: Case) -> Change | None:
        """Return this change if its conditions hold; else its alternative, None if there is none."""
        if self.when(case) and not self.unless(case):
            return self
        return Change(self.otherwise) if self.otherwise else None

    def applicability(self, case: Case) -> Applicability:
        """Reliability of the edit for this case."""
        is_safe = not self.caveat or (self.safe is not None and self.safe(case))
        return "machine-applicable" if is_safe else "maybe"


class Rule:
    """The description of a kind of break (`what`), the changes to suggest, and the conditions for a match.

    A rule matches torch's type exactly (any of `kinds`), the callee as the user wrote it or as torch names it (`calls`,
    a regular expression), the user's code (`text`) and torch's context (`context`). A condition that is not given
    matches everything; `when` is a condition on the user's code.
    """

    def __init__(
        self,
        what: str,
        *changes: Change | str,
        kinds: tuple[str, ...] = (),
        calls: str = "",
        context: str = "",
        text: str = "",
        when: Condition = holds_always,
    ) -> None:
        self.what, self.changes = what, changes
        self.kinds, self.calls, self.context, self.text, self.when = kinds, calls, context, text, when

    def matches(self, case: Case) -> bool:
        if self.kinds and case.kind not in self.kinds:
            return False
        if self.calls and not any(re.fullmatch(self.calls, name) for name in (case.callee, case.target) if name):
            return False
        if self.text and not re.fullmatch(self.text, " ".join(case.span.code.split())):
            return False
        return self.when(case) and bool(re.search(self.context, case.context))

    def words(self, case: Case) -> str:
        words = self.what.replace("{code}", code_of(case))
        return words[:1].upper() + words[1:]

    def suggestions(self, case: Case) -> tuple[Suggestion, ...]:
        """All changes that apply. A rewrite that is impossible for this code is kept only if nothing else applies."""
        changes = (Change(change) if isinstance(change, str) else change for change in self.changes)
        offered = filter(None, (change.offer(case) for change in changes))
        rewritten = [(change, change.rewrite(case) if change.rewrite else None) for change in offered]
        fitting = [(change, lines) for change, lines in rewritten if lines or not change.rewrite]
        return tuple(_suggestion(change, lines, case, n == 0) for n, (change, lines) in enumerate(fitting or rewritten))


def _suggestion(change: Change, lines: Lines | None, case: Case, is_first: bool) -> Suggestion:
    text = change.text.replace("{code}", code_of(case))
    if is_first and text.startswith("Or "):
        text = text[3].upper() + text[4:]
    if lines is None and not change.settings:
        return Suggestion(text, case.span.file, case.span.line)
    first, last, rewrite = lines or (case.span.line, 0, "")
    applicability = change.applicability(case)
    caveat = change.caveat if applicability == "maybe" else ""
    return Suggestion(text, case.span.file, first, last, rewrite, change.settings, applicability, caveat)


def code_of(case: Case) -> str:
    """The user's code in backticks, shortened to one line."""
    return quoted_code(case.span.code)


def quoted_code(code: str) -> str:
    """Code in backticks, shortened to one line without backticks; `this line` if it is empty."""
    text = " ".join(code.split())
    if not text:
        return "this line"
    if "`" in text:
        text = f"{text[: text.index('`')]}..."
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
