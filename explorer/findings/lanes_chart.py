"""The schedule of a rank as SVG: one lane for compute, one for communication."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from compiler.advise.facts import seconds as duration
from compiler.timing.overlap import HIDDEN, Schedule, Span
from explorer.reading.plain_text import clip

COLOURS = {"compute": "#0072b2", "communication, hidden": "#009e73", "communication, exposed": "#d55e00"}
"""Colours that colour-blind readers can tell apart."""
LANES = ("compute", "communication")
GREY = "#808080"
WIDTH, LEFT, LEGEND, LANE = 900, 110, 26, 26
MOST_DRAWN = 2_000
_CHARACTER = 6.5


def draw_lanes(schedule: Schedule) -> str:
    """Both lanes of one half of a graph, drawn to one scale; each span has a title."""
    height = LEGEND + LANE * len(LANES) + 20
    longest = sorted(schedule.spans, key=lambda span: -span.seconds)[:MOST_DRAWN]
    body = "".join([*_legend(), *_lanes(), *(_box(span, schedule) for span in longest), *_axis(schedule, height)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img">{body}</svg>'
    )


def _legend() -> Iterator[str]:
    x = LEFT
    for name, colour in COLOURS.items():
        yield f'<rect x="{x}" y="6" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 15}" y="15" fill="{GREY}">{name}</text>'
        x += 40 + int(_CHARACTER * len(name))


def _lanes() -> Iterator[str]:
    for at, name in enumerate(LANES):
        y = LEGEND + LANE * at
        yield f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end" fill="{GREY}">{name}</text>'
        yield f'<rect x="{LEFT}" y="{y + 2}" width="{WIDTH - LEFT}" height="{LANE - 4}" fill="{GREY}" opacity=".15"/>'


def _box(span: Span, schedule: Schedule) -> str:
    scale = (WIDTH - LEFT) / (schedule.seconds or 1.0)
    exposed = schedule.exposed.get(span.collective, 0.0)
    colours = list(COLOURS.values())
    colour = colours[0] if span.lane == "compute" else colours[1 if exposed < HIDDEN * span.seconds else 2]
    x, y, width = LEFT + span.start * scale, LEGEND + LANE * LANES.index(span.lane), max(0.8, span.seconds * scale)
    words = f"{span.name}, {duration(span.seconds)} (estimate)"
    room = int(width / _CHARACTER) - 1
    shown = f'<text x="{x + 3:.1f}" y="{y + 17}" fill="#fff">{escape(clip(span.name, room))}</text>' if room > 3 else ""
    return (
        f'<g><title>{escape(words)}</title><rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{LANE - 4}" '
        f'fill="{colour}" stroke="#fff" stroke-width="0.4"/>{shown}</g>'
    )


def _axis(schedule: Schedule, height: int) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="{height - 5}" fill="{GREY}">0</text>'
    end = duration(schedule.seconds)
    yield f'<text x="{WIDTH}" y="{height - 5}" text-anchor="end" fill="{GREY}">{end} (estimate)</text>'
