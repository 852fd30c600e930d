"""Where the time of a cold start went: sentences, tables and a flame chart; which caches missed, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from compiler.logs.cache_keys import CACHES, CacheComparison, CacheOutcome, KeyChange, RemoteCache
from compiler.logs.cold_start import ColdStart, Span
from compiler.record.plain_text import one_line, pluralize
from explorer.findings.job_names import display_name
from explorer.reading.shapes import seconds_text
from explorer.render.document import Bar, Chart, Document, Only, Parts, Picture, Row, Section, Table, Text

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
_MODULE = re.compile(r"\.?\s*Function module:.*", re.DOTALL)
"""What torch adds to the name of an operator that it can't cache."""
_ADVICE = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        ("custom pass", "give the pass a uuid: derive it from CustomGraphPass of torch._inductor.custom_graph_pass"),
        ("autograd_function_apply", "torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True"),
        ("HigherOrderOperator|target (cond|map|while|scan)", "none: torch can't cache this operator; compile it apart"),
        ("Unsupported call_function", "name the function in torch._inductor.config.unsafe_marked_cacheable_functions"),
        ("freezing", "TORCHINDUCTOR_FREEZING=0: frozen code has the weights in it"),
        ("mkldnn tensors", "TORCHINDUCTOR_FREEZING=0: weights were packed for oneDNN"),
        ("not enabled", "torch._inductor.config.fx_graph_cache = True (TORCHINDUCTOR_FX_GRAPH_CACHE=1)"),
        ("solver|estimator", "give the memory budget's solver or estimator a uuid()"),
        ("cache_hash", "give the checkpoint's context_fn a cache_hash"),
        ("unpicklable|pickle", "replace the object that can't be pickled, in a setting or in the graph"),
    )
)
"""What helps against a bypass, by torch's reason."""


def cold_start_document(
    start: ColdStart, outcomes: Sequence[CacheOutcome] = (), remote: Sequence[RemoteCache] = ()
) -> Document:
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
    parts += _cache_parts(outcomes, remote)
    return parts


def _table(head: str, seconds: Mapping[str, float]) -> Table:
    total = sum(seconds.values())
    rows = []
    for name, each in list(seconds.items())[:ROWS_SHOWN]:
        bar = Bar(((each, name if name in COLOURS else "time"),), f"seconds by {head}")
        share = f"{each / total:.0%}" if total else ""
        rows.append(Row((name, seconds_text(each), share, bar)))
    return Table((head, "time", "share", ""), tuple(rows), right=(1, 2), label=f"Compile time by {head}")


def _cache_parts(outcomes: Sequence[CacheOutcome], remote: Sequence[RemoteCache]) -> Iterator[Parts]:
    counts = Counter((one.cache, one.outcome) for one in outcomes)
    for cache, name in CACHES.items():
        listed = [
            pluralize(count, outcome, plural)
            for outcome, plural in (("hit", "hits"), ("miss", "misses"), ("bypass", "bypasses"))
            if (count := counts[cache, outcome])
        ]
        if listed:
            yield Text(f"{name}: {', '.join(listed)}.")
    yield from bypass_parts([one for one in outcomes if one.outcome == "bypass"])
    for each in remote:
        found = f"{pluralize(each.hits, 'hit')}, {pluralize(each.misses, 'miss', 'misses')}"
        if not each.hits + each.misses:
            found = "asked for, but no look-up was made in it: its client (redis) or its server is missing"
        yield Text(f"Remote {CACHES[each.cache]}: {found}.")


def bypass_parts(bypasses: Iterable[CacheOutcome]) -> Iterator[Parts]:
    """A table of the reasons for which caches were bypassed, with what helps; nothing if none was."""
    reasons = Counter((one.cache, one_line(_MODULE.sub("", one.why)), one.function, one.place) for one in bypasses)
    if not reasons:
        return
    rows = tuple(
        Row((CACHES[cache], why or "no reason logged", display_name(function), place, str(count), _advice(why)))
        for (cache, why, function, place), count in reasons.most_common()
    )
    yield Table(("cache", "bypassed because", "function", "where", "look-ups", "what helps"), rows, right=(4,))


def _advice(why: str) -> str:
    return next((advice for pattern, advice in _ADVICE if pattern.search(why)), "")


def cache_change_document(found: CacheComparison) -> Document:
    """Why the second of two runs missed caches that the first run had filled: the parts of the keys that changed."""
    parts: list[Parts] = [Text(_change_lead(found), "lead")]
    causes = Counter((each.kind, each.name, each.was, each.now) for change in found.changes for each in change.changes)
    if causes:
        ranked = sorted(causes.items(), key=lambda item: (item[0][0] in ("source", "input"), -item[1]))
        rows = tuple(Row((kind, name, was, now, str(count))) for (kind, name, was, now), count in ranked[:ROWS_SHOWN])
        parts.append(Table(("what changed", "part of the key", "was", "is", "look-ups"), rows, right=(4,)))
    missed = [change for change in found.changes if change.now.outcome == "miss"]
    same = [change.now for change in missed if change.has_same_key]
    if causes and same:
        parts.append(Text(f"With an unchanged key: {_names(same)}."))
    silent = [change.now for change in missed if not change.has_same_key and not change.changes]
    if silent:
        parts.append(Text(f"With another key, of which torch logs no parts: {_names(silent)}."))
    if found.unmatched:
        parts.append(Text(f"Not looked up by the first run: {_names(found.unmatched)}."))
    parts += bypass_parts(change.now for change in found.changes if change.now.outcome == "bypass")
    parts += _process_parts(found.process, {name for _, name, _, _ in causes})
    return parts


def _change_lead(found: CacheComparison) -> str:
    lookups = pluralize(len(found.lookups), "cache look-up")
    bad = [*(change.now for change in found.changes), *found.unmatched]
    if not found.lookups:
        return "The second run logged no cache look-up."
    if not bad:
        return f"The second run missed nothing that the first looked up: {_outcome_counts(found.lookups)}."
    if all(change.has_same_key for change in found.changes) and not found.unmatched:
        was, now = (", ".join(sorted(folders)) for folders in found.folders)
        where = f"its folder was {was}, and is {now}" if was != now else f"its folder is {now}, as before"
        return (
            f"The keys are equal: {len(bad)} of {lookups} of the second run missed with the key of the first run, "
            f"so the cache had no such entry{f' ({where})' if was and now else ''}."
        )
    return f"{len(bad)} of {lookups} of the second run found nothing: {_outcome_counts(bad)}."


def _outcome_counts(outcomes: Iterable[CacheOutcome]) -> str:
    counts = Counter(one.outcome for one in outcomes)
    words = (("hit", "hits"), ("miss", "misses"), ("bypass", "bypasses"))
    return ", ".join(pluralize(counts[one], one, many) for one, many in words if counts[one])


def _names(outcomes: Iterable[CacheOutcome]) -> str:
    """`step (train.py:3) in the FX graph cache, look-up 2` for each look-up."""
    listed = [
        f"{display_name(one.function) or 'a graph'} ({one.place or 'no line'}) in the {CACHES[one.cache]}"
        + (f", look-up {one.number + 1}" if one.number else "")
        for one in outcomes
    ]
    more = f" and {len(listed) - CHANGES_SHOWN} more" if len(listed) > CHANGES_SHOWN else ""
    return "; ".join(listed[:CHANGES_SHOWN]) + more


def _process_parts(changes: Sequence[KeyChange], told: set[str]) -> Iterator[Parts]:
    """Differences of the processes that no part of a key has named."""
    bare = {name.partition("[")[2].rstrip("]") for name in told}
    left = [each for each in changes if each.name.partition(".")[2] not in bare]
    if left:
        rows = tuple(Row((each.kind, each.name, each.was or "unset", each.now or "unset")) for each in left)
        more = f" (the first {ROWS_SHOWN} of {len(rows)})" if len(rows) > ROWS_SHOWN else ""
        table = Table(("what", "name", "was", "is"), rows[:ROWS_SHOWN])
        yield Section((table,), f"What else differs between the processes{more}")


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
