"""Advice as static HTML, which needs no script."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.advise import Advice, advise, can_try
from compiler.record import Record
from compiler.record.measure_facts import Trial
from explorer.findings.advice.words import BASES, change_lines, gain_source, gain_words, trial_words
from explorer.render.html import details, muted, pre, prose, safe


def advice_html(record: Record, *, is_open: bool = True) -> str:
    """Every piece of advice, what gains most first; "" where there is none."""
    trials = {trial.advice: trial for trial in record.trials}
    cards = [
        _card(advice, number, trials.get(advice.id), is_open and number < 2, can_try(advice, record))
        for number, advice in enumerate(advise(record))
    ]
    return "\n".join(cards)


def _card(advice: Advice, number: int, trial: Trial | None, is_open: bool, can_be_tried: bool) -> str:
    gain = f" {muted(gain_words(advice.gain))}" if advice.change is not None else ""
    return details(
        f"<b>{safe(advice.title)}</b>{gain}", "\n".join(_inside(advice, number, trial, can_be_tried)), is_open
    )


def _inside(advice: Advice, number: int, trial: Trial | None, can_be_tried: bool) -> Iterator[str]:
    yield f"<div>{prose(advice.found)}</div>"
    yield from (f"<div>· {prose(item.text)} {muted(BASES[item.basis])}</div>" for item in advice.evidence)
    if advice.gain is not None:
        yield f"<div>· {prose(gain_source(advice.gain))}</div>"
    if advice.change is not None:
        kind = f" ({advice.change.applicability})" if advice.change.applicability else ""
        yield f"<div><b>Change</b>{kind} {prose(advice.change.text)}</div>"
        code = list(change_lines(advice.change))
        if code:
            yield pre([safe(line) for line in code])
    if advice.numbers:
        yield f"<div><b>Numbers</b> {prose(advice.numbers)}</div>"
    if trial is not None:
        yield f"<div><b>Tried</b> {prose(trial_words(trial))}</div>"
    elif can_be_tried:
        yield f"<div>{muted(f'run.try_advice({number}) measures it on this call')}</div>"
