"""A rule: the breaks that it matches, what they are in plain words, and what to change."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from compiler.capture.suggestions.case import Case
from compiler.record import Applicability, Suggestion

Lines = tuple[int, int, str]
"""First line, last line, and the text to put there."""
Rewrite = Callable[[Case], Lines | None]
"""None where this very code can't be rewritten by rule."""
Condition = Callable[[Case], bool]


def holds_always(_case: Case) -> bool:
    return True


def holds_never(_case: Case) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Change:
    """One fix: in words, as a rewrite of the user's lines, or as settings. `{code}` stands for the user's code.

    `caveat` is what the edit may lead to where the code is not `safe`; by default no code is. A change is offered only
    `when` its condition holds and not where `unless` holds; there, `otherwise` is offered if it is set.
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
        """Return this change, the one in its place, or None, as the conditions say."""
        if self.when(case) and not self.unless(case):
            return self
        return Change(self.otherwise) if self.otherwise else None

    def applicability(self, case: Case) -> Applicability:
        """Applicability of an edit of this class."""
        is_safe = not self.caveat or (self.safe is not None and self.safe(case))
        return "machine-applicable" if is_safe else "maybe"


class Rule:
    """What a kind of break is in plain words (`what`), what to change, and which breaks it is about.

    It matches torch's type exactly (any of `kinds`), the callee as the user wrote it or as torch names it (`calls`, a
    regular expression), the user's code (`text`) and torch's context (`context`). Without one of these, it matches
    everything; `when` is a condition on the user's code.
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
        """Every change that fits, without rewrites that do not apply to this code unless there is nothing else."""
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
    """The user's code in one short line."""
    return quoted_code(case.span.code)


def quoted_code(code: str) -> str:
    """Code in backticks, cut to one short line before any backtick of its own; `this line` for none."""
    text = " ".join(code.split())
    if not text:
        return "this line"
    if "`" in text:
        text = f"{text[: text.index('`')]}..."
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
