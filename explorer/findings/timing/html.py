"""The measured candidates as static HTML: what it comes to, a picture, a table, notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.record import Record
from explorer.findings.timing.chart import svg, timing_chart
from explorer.findings.timing.compared import Timed, by_call, timed
from explorer.findings.timing.estimate_words import estimate_words
from explorer.findings.timing.text import HEAD, cells, heading, method_lines, note_lines, part_words, why_not
from explorer.findings.timing.words import lead_sentences, shared_unit, warnings
from explorer.render.html import WARNING, note, picture, prose, table_html

_APART = "margin:0.8em 0;padding:0.5em 0.8em;border:2px dashed rgba(127,127,127,0.6);border-radius:4px"


def timing_html(record: Record) -> str:
    """All of it; "" where nothing was timed."""
    if not record.candidates:
        return ""
    groups = by_call(timed(record))
    above = [f'<div style="{WARNING}">{prose(warning)}</div>' for warning in warnings(record)]
    drawn = any(item.candidate.seconds for item in timed(record))
    picture_of_all = [picture("Times of a call as bars", svg(timing_chart(record)))] if drawn else []
    leads = [part for group in groups for part in _lead(group, record)]
    numbers = [part for group in groups for part in _numbers(group, record)]
    return "\n".join([*above, *leads, *picture_of_all, *numbers, *_estimate(record)])


def _estimate(record: Record) -> Iterator[str]:
    """In a frame of its own, after all that was measured."""
    words = estimate_words(record)
    if words is None:
        return
    figures = table_html(("estimated", ""), words.figures)
    inside = f"<b>{prose(words.heading)}</b><div>{prose(words.lead)}</div>{figures}{''.join(map(note, words.sources))}"
    yield f'<div style="{_APART}">{inside}</div>'


def _lead(group: Sequence[Timed], record: Record) -> Iterator[str]:
    first, *rest = lead_sentences(group, record)
    yield note(heading(group, record))
    yield f"<div><b>{prose(first)}</b> {prose(' '.join(rest))}</div>"


def _numbers(group: Sequence[Timed], record: Record) -> Iterator[str]:
    unit = shared_unit(group)
    yield table_html(HEAD, [cells(item, unit) for item in group if item.candidate.seconds is not None])
    for item in group:
        if item.candidate.seconds is None:
            yield f"<div><b>{prose(item.candidate.name)}</b> {prose(why_not(item.candidate))}</div>"
    split = [(found.name, ", ".join(part_words(found))) for item in group if (found := item.candidate).host is not None]
    if split:
        yield table_html(("where the time of a call goes", ""), split)
    noted = [line for item in group for line in note_lines(item.candidate)]
    yield from map(note, [*noted, *method_lines(record.measurement, group)])
