"""Format times, speed-ups and conclusions as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from compiler.record import Candidate, Measurement, Record
from compiler.record.plain_text import pluralize, size_text
from compiler.targets import is_virtual, known_target
from explorer.findings.timing.compared import Ratio, Timed, Verdict, explored_candidate, fastest, median_of


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time, and its length in seconds."""

    name: str
    seconds: float


UNITS = (Unit("ns", 1e-9), Unit("µs", 1e-6), Unit("ms", 1e-3), Unit("s", 1.0))


def unit_of(seconds: float) -> Unit:
    """Unit in which a time has one to three digits before the decimal point."""
    return next((unit for unit in UNITS[:-1] if seconds < 999.5 * unit.seconds), UNITS[-1])


def shared_unit(group: Sequence[Timed]) -> Unit | None:
    """Common unit for a column of times: the unit of the first time, usually eager's; None without times."""
    known = (item.candidate.seconds for item in group if item.candidate.seconds is not None)
    return next(map(unit_of, known), None)


def time_text(seconds: float, unit: Unit | None = None) -> str:
    """Format a time with three digits: `812 ns`, `1.23 ms`, `24.0 s`; in `unit` if given."""
    chosen = unit or unit_of(seconds)
    return f"{three_digits(seconds / chosen.seconds)} {chosen.name}"


def three_digits(value: float) -> str:
    """Format a number with three significant digits: `0.0312`, `0.980`, `1.23`, `24.0`, `1,940`."""
    if value >= 99.95:
        return f"{value:,.0f}"
    decimals = 1 if value >= 9.995 else 2 if value >= 0.9995 or value <= 0 else 2 - floor(log10(value))
    return f"{value:.{decimals}f}"


def unbroken(sentence: str) -> str:
    """Replace spaces between numbers and units by non-breaking spaces."""
    return re.sub(r"(?<=\d) (?=(?:ns|µs|ms|s|calls)\b|×)", "\u00a0", sentence)


def spread_text(candidate: Candidate, unit: Unit | None = None) -> str:
    """Format the quartiles: `1.20 to 1.26 ms`; "" without quartiles."""
    if candidate.low is None or candidate.high is None:
        return ""
    chosen = unit or unit_of(candidate.high)
    low, high = (three_digits(seconds / chosen.seconds) for seconds in (candidate.low, candidate.high))
    return f"{low} to {high} {chosen.name}"


def ratio_text(found: Ratio) -> str:
    """Format a speed-up: `1.71 ×`."""
    return f"{_times(found.value)} ×"


def range_text(found: Ratio) -> str:
    """Format the quartiles of a speed-up: `1.63 to 1.83`."""
    return f"{_times(found.low)} to {_times(found.high)}"


def _times(value: float) -> str:
    """Format a speed-up: two decimals below 10, else three digits (`0.77`, `1.71`, `14.1`)."""
    return f"{value:.2f}" if value < 9.995 else three_digits(value)


def pays_text(item: Timed) -> str:
    """Break-even point: `after 24,000 calls`, "never" or "unclear"; "" for eager and if unknown."""
    if item.ratio is None:
        return ""
    if item.ratio.verdict != "faster":
        return "never" if item.ratio.verdict == "slower" else "unclear"
    calls = item.break_even
    return "" if calls is None else f"after {pluralize(round_to_three_digits(calls), 'call')}"


def round_to_three_digits(count: int) -> int:
    """Round to three significant digits, as measurements are no more precise."""
    return int(float(f"{count:.3g}"))


def memory_text(candidate: Candidate) -> str:
    return "" if candidate.peak_bytes is None else size_text(candidate.peak_bytes)


def lead_sentences(group: Sequence[Timed], record: Record) -> list[str]:
    """Conclusions: the explored candidate, the fastest if it is a different candidate, and their break-even points."""
    best, own = fastest(group), explored_candidate(group, record)
    first = own if own is not None and own.ratio is not None else best
    if first is None or best is None:
        return ["Nothing that was compiled could be compared with eager."]
    unit = shared_unit(group)
    if best.id == first.id or best.ratio is None or best.ratio.verdict != "faster":
        return [_comparison_sentence(first, unit), *_paid_sentences(first), *_none_faster(group)]
    took = f"{time_text(median_of(best.candidate), unit)}, {ratio_text(best.ratio)} ({range_text(best.ratio)})"
    return [
        _comparison_sentence(first, unit),
        *_paid_sentences(first),
        f"Fastest is {best.candidate.name}: {took}.",
        *_paid_sentences(best),
    ]


_OUTCOMES: dict[Verdict, str] = {
    "faster": "Compiled it is {ratio} as fast ({range})",
    "slower": "Compiled it is slower, {ratio} as fast ({range})",
    "equal": "Compiled it takes as long as eager, within noise ({ratio}, {range})",
}


def _comparison_sentence(item: Timed, unit: Unit | None) -> str:
    assert item.ratio is not None
    assert item.eager is not None
    outcome = _OUTCOMES[item.ratio.verdict].format(ratio=ratio_text(item.ratio), range=range_text(item.ratio))
    compiled, eager = (time_text(median_of(one), unit) for one in (item.candidate, item.eager))
    return f"{outcome}: {item.candidate.name} takes {compiled} a call, eager {eager}."


def _none_faster(group: Sequence[Timed]) -> list[str]:
    """Sentence that none of several candidates is faster than eager; empty otherwise."""
    ratios = [item.ratio for item in group if item.ratio is not None]
    none = len(ratios) > 1 and all(ratio.verdict != "faster" for ratio in ratios)
    return ["None that was tried is faster than eager."] if none else []


def _paid_sentences(item: Timed) -> list[str]:
    if item.break_even is None or item.candidate.compile_seconds is None:
        return []
    return [f"Its {time_text(item.candidate.compile_seconds)} of compiling have paid {pays_text(item)}."]


def device_text(found: Measurement | None) -> str:
    """Device of the measurement: `the CPU (Xeon), 2 threads`, `the GPU`; "" if unknown."""
    if found is None:
        return ""
    name = f" ({found.device_name})" if found.device_name else ""
    if found.device != "cpu":
        return f"the GPU{name}"
    return f"the CPU{name}" + (f", {pluralize(found.threads, 'thread')}" if found.threads else "")


def elsewhere_text(record: Record) -> str:
    """Warning if the times are from the CPU although the code targets a virtual GPU; "" otherwise."""
    return cpu_text(record.target) if record.candidates else ""


def cpu_text(target_name: str) -> str:
    """Warning that the times of a virtual GPU target are from the CPU; "" for other targets."""
    if not is_virtual(target_name):
        return ""
    found = known_target(target_name)
    title = found.title if found else target_name
    return f"Times of the CPU, not of the {title} that the code is for: that GPU was not there."


def warnings(record: Record) -> list[str]:
    """Caveats to show above the numbers: wrong device, an interrupted measurement, noise."""
    found = record.measurement
    stopped = ["It was stopped before all candidates were measured."] if found and found.interrupted else []
    return [*filter(None, [elsewhere_text(record)]), *stopped, *(found.noise if found else ())]
