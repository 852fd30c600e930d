"""The cards of graph breaks and recompilations as static HTML: what they say stands below a line that opens."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from compiler.record import GraphBreak, Recompile, Suggestion
from explorer.findings.cards import (
    advice_text,
    again_words,
    failure_lines,
    first_call_words,
    outcome_words,
    place_lines,
)
from explorer.reading.cause import break_reason, recompile_reason, rewritten_lines, users_place
from explorer.reading.plain_text import clip, one_line
from explorer.render.html import details, muted, note, pre, prose, safe


def break_html(group: Sequence[GraphBreak]) -> str:
    """One card for breaks of one place and kind."""
    found = group[0]
    times = f" ({len(group)} times)" if len(group) > 1 else ""
    title = f"<b>{safe(users_place(found))}</b> {prose(break_reason(found))}{times}"
    return details(title, "".join(_break_parts(found)))


def recompile_html(group: Sequence[Recompile]) -> str:
    """One card for the recompilations of one cause."""
    found, *others = group
    times = f" ({len(group)} times)" if others else ""
    title = f"<b>{safe(found.frame)}</b> {prose(recompile_reason(found))}{times}"
    again = _paragraph(f"And again: {'; '.join(map(again_words, others))}.") if others else ""
    return details(title, "".join(_recompile_parts(found)) + again + "".join(_change_parts(group[-1])))


def _break_parts(found: GraphBreak) -> Iterator[str]:
    yield pre([safe(line) for line in _dedented(place_lines(found)) or [found.code]])
    yield _paragraph(f"{outcome_words(found)} {first_call_words(found)}".rstrip())
    for number, suggestion in enumerate(found.suggestions):
        yield from _suggestion(suggestion, "Change" if number == 0 else "Or")
    words = " ".join([f"{found.kind}.", found.explanation or found.reason, *found.hints])
    yield _paragraph(f"torch says: {clip(one_line(words), 1000)}")
    if found.link:
        yield note(f"{found.gb_id} {found.link}".strip())


def _suggestion(suggestion: Suggestion, label: str) -> Iterator[str]:
    yield f"<div><b>{label}</b> ({suggestion.applicability}): {prose(advice_text(suggestion))}</div>"
    code = [*textwrap.dedent(suggestion.rewrite).splitlines(), *suggestion.settings]
    if suggestion.rewrite:
        yield f"<div>{muted(rewritten_lines(suggestion))}</div>"
    if code:
        yield pre([safe(line) for line in code])


def _recompile_parts(found: Recompile) -> Iterator[str]:
    if found.call is not None:
        which = f"call {found.call_number}, " if found.call_number else ""
        yield _paragraph(f"{which}in {found.call.file}:{found.call.line}  {found.call.code}")
    yield pre([safe(line) for line in _dedented(failure_lines(found))])


def _change_parts(found: Recompile) -> Iterator[str]:
    if found.advice:
        yield f"<div><b>Change</b> ({found.applicability}): {prose(found.advice)}</div>"
    if found.settings:
        yield pre([safe(line) for line in found.settings])
    if found.limit:
        yield _paragraph(f"torch gave up on this function: {found.limit} is reached.")


def _dedented(lines: Iterator[str]) -> list[str]:
    return textwrap.dedent("\n".join(lines)).splitlines()


def _paragraph(content: str) -> str:
    return f'<div style="margin:0.4em 0">{prose(content)}</div>' if content else ""
