"""One program in one setting, as a row of `benchmarks.breadth`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A program in a setting. `missing` are the stages that it lacks; `verdicts` are those of its values, by name.

    `why_not` is what the record says about stages that could not be had.
    """

    program: str
    setting: str
    missing: tuple[str, ...]
    verdicts: dict[str, str]
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    why_not: str = ""

    @property
    def is_right(self) -> bool:
        wrong = not {"equal", "close"}.issuperset(self.verdicts.values())
        return not (self.missing or self.problems or wrong) and bool(self.verdicts)

    def __str__(self) -> str:
        values = ", ".join(f"{name} {verdict}" for name, verdict in self.verdicts.items())
        lacking = f"; no {', '.join(self.missing)}" if self.missing else ""
        told = "".join(f"; {problem}" for problem in self.problems)
        said = f"; told: {self.why_not}" if self.why_not else ""
        mark = "right" if self.is_right else "WRONG"
        return f"{mark} {self.program} [{self.setting}] {self.seconds:.1f} s: {values}{lacking}{told}{said}"
