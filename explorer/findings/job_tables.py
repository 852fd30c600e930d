"""Graph breaks, recompilations and graphs of a whole job as tables: one row for each place, cause or graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compiler.record.plain_text import file_name, one_line, pluralize
from explorer.findings.job_names import (
    Found,
    RankCompilations,
    all_compilations,
    change_words,
    failure_of_reason,
    opened_name,
    place_of,
    shown_name,
)
from explorer.reading.plain_text import clip
from explorer.reading.shapes import seconds_text
from explorer.render.document import Document, Row, Table, Text

_IDS_SHOWN, _MOST_ROWS, _WORDS = 4, 500, 90


def breaks_of_job(ranks: Sequence[RankCompilations]) -> Document:
    """The places at which graphs of a job end, those that ended most graphs first."""
    places: dict[tuple[str, int, str], list[Found]] = {}
    for rank, one in all_compilations(ranks):
        for each in one.breaks:
            places.setdefault((each.file, each.line, each.reason), []).append((rank, one))
    if not places:
        return (Text("No graph breaks.", "lead"),)
    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    count = pluralize(_count(places.values()), "compilation")
    lead = f"{pluralize(len(places), 'place')} with a graph break, in {count}"
    rows = [
        (
            f"{file_name(file)}:{line}" if line else "unknown", clip(one_line(reason), _WORDS), str(len(found)),
            ", ".join(dict.fromkeys(shown_name(one) for _, one in found)), _names(found),
        )
        for (file, line, reason), found in ordered
    ]  # fmt: skip
    head = ("where", "why", "times", "function", "compilations")
    return (*_document(lead, head, rows, (2,)), _card("breaks", ordered[0][1]))


def recompiles_of_job(ranks: Sequence[RankCompilations]) -> Document:
    """The causes of recompilations in a job, those that cost most first: a function, and what changed between calls."""
    causes: dict[tuple[object, ...], list[Found]] = {}
    for rank, one in all_compilations(ranks):
        if one.is_recompilation:
            failure = failure_of_reason(one.recompile_reasons[0])
            what = failure.cause, failure.argument, failure.words.partition(" was ")[0]
            causes.setdefault((one.file, one.line, one.function, *what), []).append((rank, one))
    if not causes:
        return (Text("No recompilations.", "lead"),)
    ordered = sorted(causes.values(), key=lambda found: -_seconds(found))
    counts = f"{pluralize(_count(ordered), 'recompilation')} of {pluralize(len(ordered), 'cause')}"
    rows = [
        (shown_name(one), place_of(one), _change(found), str(len(found)), seconds_text(_seconds(found)), _names(found))
        for found in ordered
        for _, one in found[:1]
    ]
    head = ("function", "where", "what changed first", "times", "time", "compilations")
    lead = f"{counts}, {seconds_text(sum(map(_seconds, ordered)))} in all"
    return (*_document(lead, head, rows, (3, 4)), _card("recompiles", ordered[0]))


def graphs_of_job(ranks: Sequence[RankCompilations]) -> Document:
    """The graphs of a job, the largest first."""
    found = [each for each in all_compilations(ranks) if each[1].nodes]
    found.sort(key=lambda each: -(each[1].nodes or 0))
    if not found:
        return (Text("No graphs.", "lead"),)
    lead = f"{pluralize(len(found), 'graph')} with {sum(one.nodes or 0 for _, one in found):,} operations in all"
    rows = [
        (
            opened_name(rank, one.id), shown_name(one), place_of(one), f"{one.nodes:,}",
            f"{one.kernels:,}" if one.kernels else "", "" if one.guards is None else f"{one.guards:,}",
            seconds_text(one.total),
        )
        for rank, one in found
    ]  # fmt: skip
    return _document(lead, ("id", "function", "where", "operations", "kernels", "guards", "time"), rows, (3, 4, 5, 6))


def _change(found: Sequence[Found]) -> str:
    words = clip(change_words(failure_of_reason(found[0][1].recompile_reasons[0])), _WORDS)
    return words + (" (recompile limit reached)" if any(one.status == "limit" for _, one in found) else "")


def _seconds(found: Iterable[Found]) -> float:
    return sum(one.total for _, one in found)


def _count(groups: Iterable[Sequence[Found]]) -> int:
    return sum(map(len, groups))


def _document(lead: str, head: tuple[str, ...], rows: Sequence[Sequence[str]], right: tuple[int, ...]) -> Document:
    more = [Text(f"and {len(rows) - _MOST_ROWS:,} more")] if len(rows) > _MOST_ROWS else []
    return (Text(lead, "lead"), Table(head, tuple(Row(tuple(row)) for row in rows[:_MOST_ROWS]), right=right), *more)


def _card(fact: str, found: Sequence[Found]) -> Text:
    """How to see the card of a compilation, which says what to change."""
    rank, one = found[0]
    name = opened_name(rank, one.id)
    return Text(f"What to change: `tcompile show LOGS {name} {fact}`, or in Python `job[{name!r}][{fact!r}]`")


def _names(found: Iterable[Found]) -> str:
    names = list(dict.fromkeys(opened_name(rank, one.id) for rank, one in found))
    more = f" and {len(names) - _IDS_SHOWN} more" if len(names) > _IDS_SHOWN else ""
    return ", ".join(names[:_IDS_SHOWN]) + more
