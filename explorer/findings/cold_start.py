"""Where the time of a cold start went: sentences, tables and a flame chart; which caches missed, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from compiler.logs.cache_keys import CACHES, CacheChange, CacheOutcome
from compiler.logs.cold_start import ColdStart, Span
from compiler.record.plain_text import pluralize
from explorer.findings.job_names import display_name
from explorer.reading.shapes import seconds_text
from explorer.render.document import Bar, Chart, Document, Items, Only, Parts, Picture, Row, Table, Text

COLOURS = {
    "tracing": "#0072b2", "TorchDynamo": "#56b4e9", "guards": "#cc79a7", "AOTAutograd": "#009e73",
    "Inductor": "#e69f00", "kernels": "#d55e00", "caches": "#b9c1ca",
}  # fmt: skip
_OTHER = "#8b95a1"
ROWS_SHOWN, CHANGES_SHOWN = 20, 6
_WIDTH, _ROW = 960, 18
_SHORTEST = 0.0007
"""The part of the whole time below which a span is not drawn; the tables count it."""
_DEEPEST, _MOST_DRAWN = 14, 1_500


def cold_start_document(start: ColdStart, outcomes: Sequence[CacheOutcome] = ()) -> Document:
    """The time until every function was compiled, by phase and by function; empty if the log has no times."""
    if not start.spans:
        return ()
    share = start.compiling / start.seconds if start.seconds else 0.0
    lead = (
        f"Cold start: {seconds_text(start.seconds)} from the first event until every function was compiled once; "
        f"{seconds_text(start.compiling)} ({share:.0%}) of it in torch.compile."
    )
    parts: list[Parts] = [Text(lead, "lead")]
    if start.in_all > start.compiling * 1.01:
        parts.append(Text(f"With later recompilations, torch.compile took {seconds_text(start.in_all)} in all:"))
    parts.append(Only(("html",), (Picture("Flame chart of torch.compile, by time", flame_svg, start),)))
    phases = _table("phase", start.by_phase)
    parts += [Only(("view",), (Chart("flame", _flame_data(start), phases),)), Only(("text", "html"), (phases,))]
    functions = {
        f"{display_name(name)} ({place})" if place else name: seconds
        for (name, place), seconds in start.by_function.items()
    }
    parts.append(_table("function", functions))
    parts += _cache_parts(outcomes)
    return parts


def _table(head: str, seconds: Mapping[str, float]) -> Table:
    total = sum(seconds.values())
    rows = []
    for name, each in list(seconds.items())[:ROWS_SHOWN]:
        bar = Bar(((each, name if name in COLOURS else "time"),), f"seconds by {head}")
        share = f"{each / total:.0%}" if total else ""
        rows.append(Row((name, seconds_text(each), share, bar)))
    return Table((head, "time", "share", ""), tuple(rows), right=(1, 2), label=f"Compile time by {head}")


def _cache_parts(outcomes: Sequence[CacheOutcome]) -> Iterator[Parts]:
    counts = Counter((one.cache, one.outcome) for one in outcomes)
    for cache, name in CACHES.items():
        listed = [
            pluralize(count, outcome, plural)
            for outcome, plural in (("hit", "hits"), ("miss", "misses"), ("bypass", "bypasses"))
            if (count := counts[cache, outcome])
        ]
        if listed:
            yield Text(f"{name}: {', '.join(listed)}.")
    reasons = Counter((one.why, one.function, one.place) for one in outcomes if one.outcome == "bypass")
    if reasons:
        items = tuple(f"{why or 'no reason logged'}: {function} ({place})" for why, function, place in reasons)
        yield Items(items, label="Bypassed because of ", bullet="- ")


def cache_change_document(changes: Sequence[CacheChange]) -> Document:
    """Why the second of two runs missed caches that the first run had filled: the parts of the keys that changed."""
    if not changes:
        return (Text("No cache missed in the second run that the first run looked up in the same way.", "lead"),)
    causes = Counter((each.kind, each.name, each.was, each.now) for change in changes for each in change.changes)
    parts: list[Parts] = [Text(f"{pluralize(len(changes), 'cache look-up')} missed in the second run.", "lead")]
    if causes:
        ranked = sorted(causes.items(), key=lambda item: (item[0][0] == "source", -item[1]))
        rows = tuple(Row((kind, name, was, now, str(count))) for (kind, name, was, now), count in ranked[:ROWS_SHOWN])
        parts.append(Table(("what changed", "part of the key", "was", "is", "look-ups"), rows, right=(4,)))
    same = [change.now for change in changes if not change.changes and change.now.parts]
    if same:
        names = dict.fromkeys(f"{one.function} ({one.place})" for one in same)
        parts.append(Text(f"With an unchanged key, so the cache was empty or another one: {', '.join(names)}."))
    silent = sum(not change.now.parts for change in changes)
    if silent:
        parts.append(
            Text(f"{pluralize(silent, 'look-up')} logged no parts of the key (AOTAutograd's cache logs none).")
        )
    return parts


@dataclass(frozen=True, slots=True)
class FlameRow:
    """A span as it is drawn: its row from the top, and its name. Helper threads have rows below the others."""

    row: int
    span: Span
    name: str


def flame_rows(start: ColdStart) -> list[FlameRow]:
    """The spans that are long enough to be seen, in order of time, at most `_MOST_DRAWN`."""
    end = _end(start)
    of = {one.compile_id: one.function for one in start.compilations}
    seen = [span for span in start.spans if span.seconds >= end * _SHORTEST and span.depth < _DEEPEST]
    seen = sorted(seen, key=lambda span: -span.seconds)[:_MOST_DRAWN]
    deepest = 1 + max((span.depth for span in seen if not span.is_helper), default=-1)
    rows = []
    for span in sorted(seen, key=lambda span: (span.start, span.depth)):
        function = of.get(span.compile_id) if span.depth == 0 and not span.is_helper else None
        name = f"{display_name(function)} [{span.compile_id}]" if function else span.name
        rows.append(FlameRow(deepest + span.thread if span.is_helper else span.depth, span, name))
    return rows


def _end(start: ColdStart) -> float:
    return max((span.start + span.seconds for span in start.spans), default=0.0) or 1.0


def _flame_data(start: ColdStart) -> dict[str, Any]:
    """The flame chart for the view (`static/flame.js`)."""
    rows = flame_rows(start)
    phases = list(dict.fromkeys(row.span.phase for row in rows))
    return {
        "end": _end(start),
        "rows": 1 + max((row.row for row in rows), default=0),
        "phases": [[phase, COLOURS.get(phase, _OTHER), _ink(phase)] for phase in phases],
        "spans": [[row.row, row.span.start, row.span.seconds, phases.index(row.span.phase), row.name] for row in rows],
    }


def flame_svg(start: ColdStart) -> str:
    """The flame chart as SVG; each span has a title."""
    rows, end = flame_rows(start), _end(start)
    rects = [_rect(row, _WIDTH / end) for row in rows]
    height = (1 + max((row.row for row in rows), default=0)) * _ROW + 24
    axis = "".join(
        f'<text x="{tick * _WIDTH / 4 + (4 if tick < 4 else -4):.0f}" y="{height - 6}" '
        f'text-anchor="{"start" if tick < 4 else "end"}" fill="#7a7a7a">'
        f"{seconds_text(end * tick / 4) if tick else '0 s'}</text>"
        for tick in range(5)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-size="11" '
        f'font-family="Arial,Helvetica,sans-serif" role="img">{"".join(rects)}{axis}</svg>'
    )


def _ink(phase: str) -> str:
    return "#ffffff" if phase in ("tracing", "AOTAutograd", "kernels") else "#1a1a1a"


def _rect(row: FlameRow, scale: float) -> str:
    span, x, y, width = row.span, row.span.start * scale, row.row * _ROW, row.span.seconds * scale
    title = f"{span.name} [{span.compile_id}], {span.phase}: {seconds_text(span.seconds)}"
    shown = row.name[: int(width / 7.2)] if width > 30 else ""
    return (
        f'<g><title>{escape(title)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 2}" '
        f'fill="{COLOURS.get(span.phase, _OTHER)}" stroke="#ffffff" stroke-width="0.4"/>'
        f'<text x="{x + 3:.1f}" y="{y + 12}" fill="{_ink(span.phase)}">{escape(shown)}</text></g>'
    )
