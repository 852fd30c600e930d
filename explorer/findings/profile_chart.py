"""The timeline of a profile as SVG: a row for each step, drawn to the step's own scale."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from compiler.logs.profiles import Span, Trace
from explorer.findings.timing.words import time_text
from explorer.reading.plain_text import clip

MOST_STEPS = 12
MOST_SPANS = 400
"""Maximum spans of one kind in a row; shorter ones are left out."""
LANES = (
    ("compiling", "#d55e00"),
    ("compiled code", "#0072b2"),
    ("between graphs", "#cc79a7"),
)
"""Kinds of time with their colours, which colour-blind readers can tell apart."""
WIDTH, LEFT, RIGHT, ROW, LEGEND = 900, 150, 70, 26, 26
GREY = "#808080"


def draw_profile(trace: Trace) -> str:
    """The timeline of the slowest steps and the last one, as SVG."""
    steps = shown_steps(trace)
    height = LEGEND + ROW * len(steps) + 8
    body = "".join([*_legend(), *(part for at, step in enumerate(steps) for part in _row(at, step, trace))])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12">{body}</svg>'
    )


def shown_steps(trace: Trace) -> list[Span]:
    """The steps to draw, in order: the slowest ones, and the last."""
    steps = list(trace.steps) or [Span(0.0, trace.seconds, "the profile")]
    slowest = sorted(range(len(steps)), key=lambda at: -steps[at].seconds)[: MOST_STEPS - 1]
    return [steps[at] for at in sorted({*slowest, len(steps) - 1})]


def step_spans(step: Span, trace: Trace) -> dict[str, Any]:
    """A step for the front end: name, time, and the kind, start and width in percent of each span."""
    spans = [
        [name, *(round(100 * each / (step.seconds or 1.0), 3) for each in (begin - step.begin, end - begin))]
        for name, _, span in _spans(step, trace)
        for begin, end in [(max(span.begin, step.begin), min(span.end, step.end))]
    ]
    return {"name": clip(step.name, 20), "time": time_text(step.seconds), "spans": spans}


def _spans(step: Span, trace: Trace) -> Iterator[tuple[str, str, Span]]:
    """Kind, colour and extent of the spans in a step; compilations last, so that they are drawn on top."""
    kinds = (
        [gap.span for gap in trace.compilations],
        [run.span for run in trace.runs],
        [gap.span for gap in trace.breaks],
    )
    for (name, colour), spans in reversed([*zip(LANES, kinds, strict=True)]):
        inside = [span for span in spans if span.end > step.begin and span.begin < step.end]
        for span in sorted(inside, key=lambda span: -span.seconds)[:MOST_SPANS]:
            yield name, colour, span


def _legend() -> Iterator[str]:
    x = LEFT
    for name, colour in LANES:
        yield f'<rect x="{x}" y="6" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 15}" y="15" fill="{GREY}">{name}</text>'
        x += 130
    yield f'<text x="{x}" y="15" fill="{GREY}">each row has its own scale</text>'


def _row(at: int, step: Span, trace: Trace) -> Iterator[str]:
    y = LEGEND + ROW * at
    name = escape(clip(step.name, 20))
    yield f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end" fill="{GREY}">{name}</text>'
    yield f'<rect x="{LEFT}" y="{y + 2}" width="{WIDTH - LEFT - RIGHT}" height="{ROW - 8}" fill="{GREY}" opacity=".2"/>'
    for _, colour, span in _spans(step, trace):
        yield _rectangle(span, step, y, colour)
    yield f'<text x="{WIDTH - RIGHT + 6}" y="{y + 15}" fill="{GREY}">{time_text(step.seconds)}</text>'


def _rectangle(span: Span, step: Span, y: int, colour: str) -> str:
    scale = (WIDTH - LEFT - RIGHT) / (step.seconds or 1.0)
    begin, end = max(span.begin, step.begin), min(span.end, step.end)
    x, width = LEFT + (begin - step.begin) * scale, max(0.7, (end - begin) * scale)
    return f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{ROW - 8}" fill="{colour}"/>'
