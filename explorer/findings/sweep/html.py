"""A sweep as static HTML: what it comes to, a picture, a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.findings.sweep.chart import sweep_chart
from explorer.findings.timing.chart import svg
from explorer.render.html import WARNING, details, note, picture, prose, table_html

if TYPE_CHECKING:
    from explorer.findings.sweep.sweep import Sweep


def sweep_html(sweep: Sweep) -> str:
    """All of it, in one `<div>`; every string of the user's is escaped."""
    from explorer.findings.sweep.sweep import rows

    head, *body = rows(sweep.spots)
    failed = [f"<div><b>{prose(spot.name)}</b> {prose(spot.problem)}</div>" for spot in sweep.spots if spot.problem]
    compared = any(curve.points for curve in sweep.curves)
    parts = [
        note(sweep.heading),
        *(f'<div style="{WARNING}">{prose(told)}</div>' for told in sweep.notes()),
        *(f"<div><b>{prose(told)}</b></div>" for told in sweep.sentences()),
        *([picture("Speed-up over eager by size", svg(sweep_chart(sweep)))] if compared else []),
        *failed,
        details("All times", table_html(head, body) + note(sweep.method), is_open=not compared),
    ]
    return f'<div style="max-width:100%;overflow:auto">{"".join(parts)}</div>'
