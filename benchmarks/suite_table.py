"""The suite's results as tables in Markdown: speed-ups over eager, compile seconds, memory, geometric means.

`python -m benchmarks.suite_table FILE` prints the tables of a file that `benchmarks.suite` wrote.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Case = Mapping[str, Any]
_EAGER = "eager"
WITHIN = 0.05


def summary(found: Mapping[str, Any]) -> str:
    """One table per candidate, with a row per model and a column per case; and the tables of compile costs."""
    cases: Sequence[Case] = found["cases"]
    if not cases:
        return "no case was measured"
    names = dict.fromkeys(one["name"] for case in cases for one in case["candidates"] if one["name"] != _EAGER)
    tables = [table(f"Speed-up of {name} over eager", cases, lambda case, name=name: speed_up(case, name))
              for name in names]  # fmt: skip
    for own, other in ((own, own.replace("tcompile", "inductor")) for own in names if own.startswith("tcompile")):
        if other in names:
            tables += _beside(cases, own, other)
    first = next(iter(names), "")
    tables.append(table(f"Seconds of the first call, {first}", cases, lambda case: _of(case, first, "compile_seconds")))
    tables.append(table(f"Peak memory of {first} ÷ eager", cases, lambda case: _memory(case, first), mean=False))
    return "\n\n".join(tables) + "\n\n" + _agreement(cases)


def _beside(cases: Sequence[Case], own: str, other: str) -> list[str]:
    """Our compiler against Inductor, in the same mode: above 1 ours is faster."""

    def ratio(what: str) -> Any:
        def of(case: Case) -> float | None:
            mine, theirs = _of(case, own, what), _of(case, other, what)
            return theirs / mine if mine and theirs else None

        return of

    return [
        table(f"Speed of {own} ÷ {other}", cases, ratio("seconds")),
        table(f"Time of the GPU alone, {other} ÷ {own}", cases, ratio("gpu")),
        table(f"Seconds of the first call, {other} ÷ {own}", cases, ratio("compile_seconds")),
        table(f"Seconds of the first call, {own}", cases, lambda case: _of(case, own, "compile_seconds")),
        table(f"Peak memory, {other} ÷ {own}", cases, ratio("peak_bytes"), mean=False),
    ]


def speed_up(case: Case, name: str) -> float | None:
    """Eager's median ÷ this candidate's; None where one of them is missing."""
    eager, own = _of(case, _EAGER, "seconds"), _of(case, name, "seconds")
    return eager / own if eager and own else None


def geometric_mean(values: Iterable[float]) -> float | None:
    found = [math.log(value) for value in values]
    return math.exp(sum(found) / len(found)) if found else None


def _of(case: Case, name: str, what: str) -> float | None:
    """A figure of a candidate; `gpu` is the GPU's busy time in a call."""
    found = next((one for one in case["candidates"] if one["name"] == name), {})
    return (found.get("host") or {}).get("gpu") if what == "gpu" else found.get(what)


def _memory(case: Case, name: str) -> float | None:
    eager, own = _of(case, _EAGER, "peak_bytes"), _of(case, name, "peak_bytes")
    return own / eager if eager and own else None


def table(title: str, cases: Sequence[Case], value: Any, *, mean: bool = True) -> str:
    """A table of `value(case)`, with a row per model and a column per case; `mean` adds geometric means."""
    columns = list(dict.fromkeys(case["case"] for case in cases))
    rows = {model: dict.fromkeys(columns) for model in dict.fromkeys(case["model"] for case in cases)}
    for case in cases:
        rows[case["model"]][case["case"]] = value(case)
    lines = [f"| {title} | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    lines += [_line(model, row, columns) for model, row in rows.items()]
    if not mean:
        return "\n".join(lines)
    means = {column: geometric_mean(row[column] for row in rows.values() if row[column]) for column in columns}
    return "\n".join([*lines, _line("**geometric mean**", means, columns)])


def _line(name: str, row: Mapping[str, float | None], columns: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(_number(row[column]) for column in columns)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _agreement(cases: Sequence[Case]) -> str:
    """The difference of an independent loop of CUDA events, and of a second measurement, from these results."""
    apart = [abs(one["ratio"] - 1) for case in cases for one in case.get("independent", ())]
    again = [abs(one["ratio"] - 1) for case in cases for one in case.get("again", ())]
    silent = sum(abs(one["ratio"] - 1) > WITHIN and not one["noise"] for case in cases for one in case.get("again", ()))
    spreads = (_spread(what, found) for what, found in (("An independent loop", apart), ("A second run", again)))
    return "\n".join([*spreads, f"Beyond 5 % in a second run with no note of noise: {silent}"])


def _spread(what: str, found: Sequence[float]) -> str:
    if not found:
        return f"{what}: not measured"
    within = sum(value <= WITHIN for value in found)
    ordered = sorted(found)
    return (
        f"{what}: {within} of {len(found)} medians within 5 % "
        f"(middle {100 * ordered[len(ordered) // 2]:.1f} %, most {100 * ordered[-1]:.1f} %)"
    )


if __name__ == "__main__":
    print(summary(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
