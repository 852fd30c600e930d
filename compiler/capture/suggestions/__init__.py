"""Suggestions that remove a graph break: rules that match torch's type of break and the user's own line.

Each rule is tested by applying it to code with a break and checking that the break is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.capture.suggestions import calls, python, training, values
from compiler.capture.suggestions.case import Case, case_of, kind_in_rules, narrow_to_header
from compiler.capture.suggestions.rule import Rule, quoted_code
from compiler.record import Suggestion

__all__ = ["Advice", "Case", "advise", "case_of", "kind_in_rules", "narrow_to_header", "quoted_code"]

RULES: tuple[Rule, ...] = (*calls.ASKED_FOR, *values.RULES, *training.RULES, *calls.RULES, *python.RULES)


@dataclass(frozen=True, slots=True)
class Advice:
    """A sentence that describes a break ("" if no rule matches), and suggested changes."""

    what: str = ""
    suggestions: tuple[Suggestion, ...] = ()


def advise(case: Case, of_calls: bool = False) -> Advice:
    """Advice of the first rule that matches, empty if none does; with `of_calls`, only rules about calls are tried."""
    rules = (rule for rule in RULES if rule.calls or not of_calls)
    rule = next((rule for rule in rules if rule.matches(case)), None)
    return Advice(rule.words(case), rule.suggestions(case)) if rule is not None else Advice()
