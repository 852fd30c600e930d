"""Data of the adviser: findings, evidence, expected gain, changes, and numbers with units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from compiler.record.capture_facts import Suggestion

Basis = Literal["measured", "recorded", "estimate"]
"""Where a number is from: a clock; the record of what was compiled; a formula, which says what it takes for granted."""
ON_ANY_DEVICE: frozenset[str] = frozenset({"break", "recompile", "regions"})
"""Rules whose change can be tried on the CPU too where the code is for a GPU that is not here."""
REPEATED: frozenset[str] = frozenset({"break", "recompile", "specialised"})
"""Rules that may find something more than once."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact that shows it, as a sentence with its numbers. `ids` are entities that it is about: kernels, lines,
    breaks.
    """

    text: str
    basis: Basis = "recorded"
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gain:
    """What the change saves: `seconds` of each call, or of compiling. An estimate is a careful one, so that trying the
    change shows as much.

    `share` is what part of the whole that is, from 0 to 1, None where the whole is not known. `how` says in words how
    it was estimated.
    """

    seconds: float
    of: Literal["call", "compile"]
    how: str
    basis: Basis = "estimate"
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change in words, and in a form that a machine can apply where there is one.

    `options` are torch.compile's arguments to add (`mode`, `dynamic`, `options` …), `settings` statements to run
    before. `suggestion` holds a rewrite of lines. `autocast` is a dtype to run the call in under torch.autocast.
    `regions` are paths of modules to compile one by one in place of the whole. `eager` takes torch.compile away.
    """

    text: str
    options: dict[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    suggestion: Suggestion | None = None
    autocast: str = ""
    regions: tuple[str, ...] = ()
    eager: bool = False

    @property
    def applicability(self) -> str:
        """The applicability of the suggestion that a break's card gives; "" for other advice."""
        return self.suggestion.applicability if self.suggestion is not None else ""

    @property
    def can_be_tried(self) -> bool:
        """Whether there is a change that a machine can make to a call."""
        own = self.suggestion is not None and bool(self.suggestion.rewrite or self.suggestion.settings)
        return bool(self.options or self.settings or self.autocast or self.regions or self.eager or own)


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding. `rule` names what found it ("cuda-graphs"), `title` is a few words, `found` a sentence or two.

    `change` is None for what nothing is to be done about. `numbers` says how results change with it, "" where they stay
    the same within the dtype's tolerance. `plain_lines` is how many lines of the user's code run as plain Python
    because of it: such findings come first, those with most lines before the others.
    """

    rule: str
    title: str
    found: str
    evidence: tuple[Evidence, ...] = ()
    gain: Gain | None = None
    change: Change | None = None
    numbers: str = ""
    plain_lines: int = 0

    @property
    def id(self) -> str:
        """Stable as long as the finding is the same: its rule, and what it is about."""
        about = next((item.ids[0] for item in self.evidence if item.ids), "") if self.rule in REPEATED else ""
        return f"{self.rule}:{about}" if about else self.rule

    @property
    def can_be_tried(self) -> bool:
        """Whether the change can be put to the test by a machine."""
        return self.change is not None and self.change.can_be_tried


def seconds(value: float) -> str:
    """`3.2 µs`, `410 µs`, `2.5 s`: two or three digits."""
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
    amount, unit = next(
        ((value * factor, unit) for unit, factor in units if abs(value * factor) >= 1), (value * 1e9, "ns")
    )
    return f"{amount:.2g} {unit}" if abs(amount) < 10 else f"{amount:.0f} {unit}"


def percent(share: float) -> str:
    """A share in percent, `7 %`; shares just above 0 or below 1 are not rounded to 0 or 100 %."""
    if 0 < share < 0.01:
        return "less than 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")
