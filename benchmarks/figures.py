"""A measured figure with its bar: printed as a line, written as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """A measured value and its bar.

    `bar` is the maximum of the value, or with `at_least` its minimum; None if there is no bar. `runs` are the single
    measurements behind the value, in its unit; `details` has further data for readers of the JSON.
    """

    name: str
    value: float
    unit: str = ""
    bar: float | None = None
    at_least: bool = False
    note: str = ""
    runs: tuple[float, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the value meets the bar; None without one."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def line(self) -> str:
        sign = "≥" if self.at_least else "≤"
        bar = "" if self.bar is None else f"bar {sign} {number(self.bar)} {self.unit}".rstrip()
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        return f"{self.name:<62} {number(self.value):>9} {self.unit:<4} {bar:<18} {verdict:<7} {self.note}".rstrip()


def number(value: float) -> str:
    """Three significant digits; whole numbers from 100 on, with a comma in the thousands."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def load() -> str:
    """How busy the machine was: its one-minute load average, and the number of cores."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def write(section: str, figures: Sequence[Figure], load_before: str, load_after: str) -> Path:
    """Write a section's figures to results/explore-SECTION.json; returns the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"explore-{section}.json"
    content = {
        "section": section,
        "load": [load_before, load_after],
        "figures": [asdict(figure) | {"met": figure.met} for figure in figures],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
