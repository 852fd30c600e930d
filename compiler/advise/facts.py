"""Data types of the adviser: findings, evidence, expected gain, changes, and numbers with units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from compiler.record.capture_facts import Suggestion

Basis = Literal["measured", "recorded", "estimate"]
"""The source of a number: a measurement, the record, or a formula that states its assumptions."""
ON_ANY_DEVICE: frozenset[str] = frozenset({"break", "recompile", "regions"})
"""Rules with changes that can be tried on the CPU too, if the code is for a GPU that is not present."""
SIMULATED: frozenset[str] = frozenset({"bucket-collectives", "exposed-communication"})
"""First words of rules whose changes are tried by simulation: what the rank sends is compared, and nothing is timed."""
REPEATED: frozenset[str] = frozenset({"break", "recompile", "specialised"})
"""Rules that may report several findings."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact that supports a finding, as a sentence with its numbers. `ids` are related kernels, lines or breaks."""

    text: str
    basis: Basis = "recorded"
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gain:
    """The expected gain of a change, in seconds of each call or of compilation (`of`). Estimates are conservative.

    `share` is the gain's share of the whole, from 0 to 1, None if the whole is unknown. `how` says how it was
    estimated.
    """

    seconds: float
    of: Literal["call", "compile"]
    how: str
    basis: Basis = "estimate"
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change in words and, if possible, in a form that can be applied automatically.

    `options` are additional arguments of torch.compile (`mode`, `dynamic`, `options` …), `settings` are statements to
    run before. `suggestion` holds a rewrite of lines. `autocast` is a dtype for torch.autocast around the call.
    `regions` are paths of modules to compile one by one instead of the whole. `eager` removes torch.compile.
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
        """Applicability of the suggestion from a break's card; "" for other advice."""
        return self.suggestion.applicability if self.suggestion is not None else ""

    @property
    def can_be_tried(self) -> bool:
        """Whether the change can be applied to a call automatically."""
        own = self.suggestion is not None and self.suggestion.can_be_applied
        return bool(self.options or self.settings or self.autocast or self.regions or self.eager or own)


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding. `rule` is the rule's name ("cuda-graphs"), `title` a few words, `found` a sentence or two.

    `change` is None if nothing needs to change. `numbers` describes the effect on results, "" if they stay within the
    dtype's tolerance. `plain_lines` is the number of the user's lines that the finding keeps in plain Python;
    findings with such lines come first, most lines first.
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
        """Identifier that is stable as long as the finding is the same: its rule, and its subject."""
        about = next((item.ids[0] for item in self.evidence if item.ids), "") if self.rule in REPEATED else ""
        return f"{self.rule}:{about}" if about else self.rule

    @property
    def is_simulated(self) -> bool:
        """Whether the change is tried by simulation, and not by timing."""
        return self.rule.split(" ")[0] in SIMULATED

    @property
    def can_be_tried(self) -> bool:
        """Whether the change can be tried automatically."""
        return self.change is not None and self.change.can_be_tried


def seconds(value: float) -> str:
    """Format seconds with two or three digits: `3.2 µs`, `410 µs`, `2.5 s`."""
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
    amount, unit = next(
        ((value * factor, unit) for unit, factor in units if abs(value * factor) >= 1), (value * 1e9, "ns")
    )
    return f"{amount:.2g} {unit}" if abs(amount) < 10 else f"{amount:.0f} {unit}"


def percent(share: float) -> str:
    """Format a share in percent, `7 %`; shares just above 0 or below 1 are not rounded to 0 or 100 %."""
    if 0 < share < 0.01:
        return "less than 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")
