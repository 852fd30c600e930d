"""Cards of the causes of recompilation that an x-ray found: the owner of the changing value, and the change tried."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from compiler.record import Cause, CauseFix, Entity, ValueOrigin, XRay
from compiler.record.plain_text import pluralize
from explorer.reading.provenance import place_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Card, Change, Code, Fold, Items, Parts, Section, Text, Words
from explorer.render.places import change_part, line_link, span_code


def cause_id(cause: Cause) -> str:
    """Id of a cause's entity."""
    return f"xray.{cause.id}"


def cause_entity(cause: Cause, lines: SourceLines) -> Entity:
    """Entity of a cause, linked to the lines that its value passes through."""
    attrs = {"place": place_text(cause.file, cause.line), "code": cause.span.code}
    spans = (cause.span, *(origin.span for origin in cause.origins))
    return Entity(cause_id(cause), "cause", cause.what, attrs, (), lines.ids(spans))


def cause_cards(found: XRay, lines: SourceLines) -> list[Card]:
    """A card for each cause of recompilation, with the change that was tried, if any."""
    return [_card(cause, number, found, lines) for number, cause in enumerate(found.causes, 1)]


def _card(cause: Cause, number: int, found: XRay, lines: SourceLines) -> Card:
    parts: list[Parts] = [span_code(cause.span, lines), Text(seen_words(cause, found), "why")]
    if cause.origins:
        rows: tuple[Words, ...] = tuple(_origin_words(origin, lines) for origin in cause.origins)
        parts.append(Section((Items(rows),), "How the value gets there, from the guard back:", "origins"))
    parts += _fix_parts(cause.fix, lines) if cause.fix else []
    if cause.advice and (cause.fix is None or cause.fix.state != "verified"):
        parts.append(Change("change", cause.advice, "explanation"))
    parts.append(Fold("In torch's words", (Code(tuple(cause.reason.splitlines()), language=""),)))
    return Card(
        title=f"Recompilation, cause {number} of {len(found.causes)}",
        ids=(cause_id(cause),),
        lead=cause.what,
        parts=tuple(parts),
        kind="recompile",
        about=line_link(cause.file, cause.line, lines),
        aside=f"in {cause.span.function}" if cause.span.function else "",
        line=f"cause {number} of {len(found.causes)}: {cause.kind} at {place_text(cause.file, cause.line)}",
        count=cause.count,
    )


def seen_words(cause: Cause, found: XRay) -> str:
    """Sentence on the recompiled functions, the calls, and the graph break that the value comes from, if any."""
    functions = ", ".join(f"`{name}`" for name in cause.functions)
    calls = f"call{'s' if len(cause.calls) > 1 else ''} {', '.join(map(str, cause.calls))}"
    head = f"{pluralize(cause.count, 'recompilation')} of {functions} in {calls}."
    if not cause.as_it_is:
        head = f"Not yet: once the graph breaks are gone, {functions} is compiled again for this in {calls}."
    site = next((number for number, site in enumerate(found.sites, 1) if site.id == cause.site), None)
    return head if site is None else f"{head} The value comes from the graph break of site {site}."


def _origin_words(origin: ValueOrigin, lines: SourceLines) -> Words:
    code = " ".join(origin.span.code.split())
    return (f"`{origin.name}` at ", line_link(origin.span.file, origin.span.line, lines), f": `{code}`")


def _fix_parts(fix: CauseFix, lines: SourceLines) -> Iterable[Parts]:
    counts = "" if fix.before is None else f" Compilations of all calls: {fix.before} before, {fix.after} after."
    yield Text(f"Tried: {fix.state}. {fix.words[:1].upper()}{fix.words[1:]}.{counts}", "why")
    if fix.state != "no fix known":
        yield Text(fix.text, label="change: ")
        if fix.code:
            yield Code(tuple(fix.code.splitlines()), language="python")
        yield from (change_part(edit, "change", lines) for edit in fix.edits)


def cause_promises(causes: Sequence[Cause], removed: Container[str], at_call: Sequence[str]) -> list[str]:
    """Sentences on the causes of recompilation that a patch removes (their ids are `removed`), and on those it leaves.

    `at_call` are statements that are not in the diff, as they belong where the function is compiled or called.
    """
    gone, left = ([cause for cause in causes if (cause.id in removed) is each] for each in (True, False))
    mended, unmended = ([cause for cause in left if _has_change(cause) is each] for each in (True, False))
    told = []
    if gone:
        told = [f"Changes for {_causes_words(gone)}. Results, gradients, output and attributes are the same."]
    told += [f"Add where you compile or call it: {statement}" for statement in at_call]
    if mended:
        told.append(f"Left, with a change that works alone, on its card in run.xray(): {_causes_words(mended)}.")
    return [*told, f"Left, without a change that was tried and works: {_causes_words(unmended)}."] if unmended else told


def _has_change(cause: Cause) -> bool:
    return cause.fix is not None and cause.fix.state == "verified"


def _causes_words(causes: Sequence[Cause]) -> str:
    places = ", ".join(dict.fromkeys(place_text(cause.file, cause.line) for cause in causes))
    return f"{pluralize(len(causes), 'cause')} of recompilation: {places}"


def list_origins(origins: Sequence[ValueOrigin]) -> str | None:
    """Names and lines of origins for a table cell, like `h: line 12; x: line 3`; None without origins."""
    return "; ".join(f"{each.name}: line {each.span.line}" for each in origins) or None


def cause_row(cause: Cause) -> dict[str, Any]:
    """Row of a cause in a table."""
    fix = cause.fix
    return {
        "file": cause.file,
        "line": cause.line,
        "column": cause.span.column,
        "code": " ".join(cause.span.code.split()),
        "kind": cause.kind,
        "what": cause.what,
        "argument": cause.argument,
        "old": cause.old,
        "new": cause.new,
        "count": cause.count,
        "functions": ", ".join(cause.functions),
        "calls": ", ".join(map(str, cause.calls)),
        "as_it_is": cause.as_it_is,
        "site": cause.site or None,
        "origins": list_origins(cause.origins),
        "fix": fix.state if fix else None,
        "change": fix.text if fix else cause.advice or None,
        "code_tried": fix.code if fix else None,
        "before": fix.before if fix else None,
        "after": fix.after if fix else None,
        "tried": fix.words if fix else None,
        "id": cause.id,
    }


def cause_words(causes: Sequence[Cause]) -> str:
    """Numbers of causes and recompilations: `3 causes of recompilation, 13 recompilations`; "" without causes."""
    if not causes:
        return ""
    total = len({frame for cause in causes if cause.as_it_is for frame in cause.frames})
    many = f"{pluralize(len(causes), 'cause')} of recompilation"
    return f"{many}, {pluralize(total, 'recompilation')}" if total else many
