"""All break sites and causes of recompilation of a program as a document of cards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from compiler.capture.function_names import function_name
from compiler.record import Entity, Fix, ProgramCost, Record, Site, ValueOrigin, XRay
from compiler.record.plain_text import one_line, pluralize
from explorer.findings.cause_cards import cause_cards, cause_entity, cause_id, cause_words
from explorer.reading.provenance import place_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Card, Code, Document, Fold, Items, Make, Only, Parts, Section, Text, Words
from explorer.render.finding import Finding
from explorer.render.places import change_part, line_link, way
from explorer.render.text import document_finding

VIEW = "xray"
_TRY_FIXES = Make("xray", "Try fixes", "`run.xray().try_fixes()` tries a fix for each site, and all of them together.")


def xray_finding(record: Record) -> Finding | None:
    """Finding with the cards of all sites and causes; None if the record has no x-ray."""
    found = record.xray
    if found is None:
        return None
    lines = SourceLines(record)
    entities = {site_id(site): _site_entity(site, lines) for site in found.sites}
    entities |= {cause_id(cause): cause_entity(cause, lines) for cause in found.causes}
    causes = [f"{pluralize(len(found.causes), 'cause')} of recompilation"] if found.causes else []
    count = ", ".join([pluralize(len(found.sites), "site"), *causes])
    made = document_finding("xray", "x-ray", xray_document(found, lines), entities, count, VIEW)
    return replace(made, data={**made.data, **_handover(found)})


def _handover(found: XRay) -> dict[str, Any]:
    """Fixes to choose from in the view, and the patch that was tried; {} if no fix was tried."""
    if found.left is None:
        return {}
    sites = {site.id: site for site in found.sites}
    fixes = [
        {
            "id": fix.site,
            "place": place_text(sites[fix.site].file, sites[fix.site].line),
            "code": one_line(sites[fix.site].span.code),
            "state": fix.state,
            "together": fix.together,
        }
        for fix in found.fixes
        if fix.suggestion is not None and fix.suggestion.can_be_applied
    ]
    return {"fixes": fixes, "patch": {"text": found.patch, "promise": promise_in(found.patch), "problem": ""}}


def promise_in(patch: str) -> list[str]:
    """Promises of a patch: the comment lines above its diff."""
    return [
        line.removeprefix("# ") for line in itertools.takewhile(lambda line: line.startswith("# "), patch.splitlines())
    ]


def site_id(site: Site) -> str:
    """Id of a site's entity."""
    return f"xray.{site.id}"


def _site_entity(site: Site, lines: SourceLines) -> Entity:
    """Entity of a site, linked to the lines of its call chain."""
    attrs = {"place": place_text(site.file, site.line), "code": site.span.code}
    return Entity(site_id(site), "site", site.what or site.kind, attrs, (), lines.ids((*site.chain, site.span)))


def xray_document(found: XRay, lines: SourceLines) -> Document:
    """A summary, a card for each site and each cause of recompilation, and notes on the search."""
    untried = () if found.left is not None or not found.sites else (Only(("view",), (_TRY_FIXES,)),)
    document: list[Parts] = [Text(count_words(found), "lead"), *untried, *site_cards(found, lines)]
    document += cause_cards(found, lines)
    if found.patch:
        patch = Fold("Patch: run.patch()", (Code(tuple(found.patch.splitlines()), language=""),))
        document.insert(1, Only(("html",), (patch,)))
    if found.cost and found.cost_after and found.patch:
        document.insert(1, Text(f"With the patch: {cost_words(found.cost, found.cost_after)}."))
    if notes := tuple(search_notes(found)):
        document.append(Section((Items(notes),), "What else there is to know:", "notes"))
    return document


def site_cards(found: XRay, lines: SourceLines) -> list[Card]:
    """A card for each site, with the fix that was tried, if any."""
    tried = {fix.site: fix for fix in found.fixes}
    return [_card(site, number, found, lines, tried.get(site.id)) for number, site in enumerate(found.sites, 1)]


def _card(site: Site, number: int, found: XRay, lines: SourceLines, fix: Fix | None) -> Card:
    parts: list[Parts] = [way(site.chain, site.span, lines), Text(seen_words(site, found), "why")]
    if site.branch:
        parts.append(Text(f"It is in {', in '.join(f'`{header}`' for header in site.branch)}."))
    if site.origins:
        rows: tuple[Words, ...] = tuple(_origin_words(origin, lines) for origin in site.origins)
        parts.append(Section((Items(rows),), "Where its value comes from:", "origins"))
    if fix is not None:
        parts.append(Text(f"Tried: {fix.state}. {fix.words[:1].upper()}{fix.words[1:]}.".replace("..", "."), "why"))
    if fix is not None and fix.cost and found.cost:
        parts.append(Text(f"With this change alone: {cost_words(found.cost, fix.cost)}."))
    own = fix.suggestions if fix else ()
    suggestions = [*own, *(item for item in site.suggestions if item not in own)]
    labels = ("change", *["and"] * (len(own) - 1), *["or"] * len(suggestions))
    parts += [change_part(item, label, lines) for label, item in zip(labels, suggestions, strict=False)]
    if site.report and not (fix is not None and fix.together):
        report = Code(tuple(site.report.splitlines()), copy=site.report, language="")
        words = "This is upstream: it is not in your code. `run.xray().reports` has the text for an issue."
        parts += [Text(words, "why"), Fold("Text for an issue", (report,))]
    if site.note:
        parts.append(Text(f"{site.note[:1].upper()}{site.note[1:]}.", "again"))
    parts.append(Fold(f"In torch's words: {site.kind}", (Text(one_line(site.reason)),)))
    return Card(
        title=f"Site {number} of {len(found.sites)}",
        ids=(site_id(site),),
        lead=site.what or site.kind,
        parts=tuple(parts),
        kind="break",
        about=line_link(site.file, site.line, lines),
        aside=f"in {function_name(site.function)}",
        line=f"site {number} of {len(found.sites)}: {site.kind}",
    )


def _origin_words(origin: ValueOrigin, lines: SourceLines) -> Words:
    code = " ".join(origin.span.code.split())
    return (f"`{origin.name}` at ", line_link(origin.span.file, origin.span.line, lines), f": `{code}`")


def seen_words(site: Site, found: XRay) -> str:
    """Sentence on whether the break occurs in the unmodified program, or which site hides it."""
    if site.as_it_is:
        return "TorchDynamo breaks here in the program as it is."
    hiding = next((other for other in found.sites if other.id == site.behind), None)
    if hiding is None:
        return "It shows only when other breaks are gone."
    return f"It shows only when the break at {place_text(hiding.file, hiding.line)} is gone."


def promises(found: XRay, left: XRay, why_not: str) -> list[str]:
    """Promises of a patch as sentences. `found` has the costs, and marks the fixes that the patch combines.

    `left` is the x-ray with the patch, `why_not` a problem of the trial or "".
    """
    places = {site.id: place_text(site.file, site.line) for site in found.sites}
    chosen = [fix for fix in found.fixes if fix.together]
    mended = mended_sites(found, left)
    where = ", ".join(dict.fromkeys(places[site] for site in mended))
    head = f"Fixes for {len(mended)} of {pluralize(len(found.sites), 'site')}: {where}."
    if why_not:
        return [head, f"NOT VERIFIED: tried together, {why_not}."]
    if not chosen:
        head = f"No working fix for {pluralize(len(found.sites), 'site')}; the cards in run.xray() say why."
    same = "Tried together: results, gradients, output and attributes are the same, also on random inputs."
    exceptions = [f"But at {places[fix.site]}: {fix.words.rstrip('.')}." for fix in chosen if fix.state != "verified"]
    rest = ", ".join(dict.fromkeys(place_text(site.file, site.line) for site in left.sites))
    remaining = f"{pluralize(len(left.sites), 'site')} left: {rest}." if rest else "No site is left."
    counted = [_break_words(found.cost, found.cost_after)] if found.cost and found.cost_after else []
    more = [f"There may be more: {problem}." for problem in left.problems]
    return [head, *([same] if chosen else []), *exceptions, *counted, remaining, *more]


def mended_sites(found: XRay, left: XRay) -> list[str]:
    """Ids of the sites that a patch mends: those of its fixes, and those that are gone because of its settings."""
    own = {fix.site for fix in found.fixes if fix.together}
    there = {site.span for site in left.sites}
    gone = {site.id for site in found.sites if own and site.span not in there and not left.problems}
    return [site.id for site in found.sites if site.id in own | gone]


def _break_words(before: ProgramCost, after: ProgramCost) -> str:
    """Numbers of lines in torch's log of graph breaks: `Lines in torch's log of graph breaks: 7 before, 4 after.`"""
    return f"Lines in torch's log of graph breaks: {before.breaks} before, {after.breaks} after."


def cost_words(before: ProgramCost, after: ProgramCost) -> str:
    """Format the numbers that change: `5 graphs become 1, 1 break becomes 0, 90 operations become 92`."""
    nouns = {"graphs": "graph", "breaks": "break", "kernels": "kernel", "launches": "launch",
             "operations": "operation", "guards": "guard"}  # fmt: skip
    numbers = [(nouns[name], name, getattr(before, name), getattr(after, name)) for name in nouns]
    changes = [
        f"{pluralize(mine, noun, name)} {'becomes' if mine == 1 else 'become'} {its:,}"
        for noun, name, mine, its in numbers
        if mine != its and None not in (mine, its)
    ]
    if before.milliseconds is not None and after.milliseconds is not None:
        changes.append(f"{before.milliseconds:.3g} ms become {after.milliseconds:.3g} ms")
    return ", ".join(changes) or "the numbers of graphs, breaks, operations and guards stay the same"


def count_words(found: XRay) -> str:
    """Summary in numbers: `10 sites, 6 of them only behind others; 11 captures, 2.3 s`."""
    hidden = sum(not site.as_it_is for site in found.sites)
    behind = f", {hidden} of them only behind others" if hidden else ""
    causes = f"; {words}" if (words := cause_words(found.causes)) else ""
    captures = f"{pluralize(found.captures, 'capture')}, {found.seconds:.1f} s"
    return f"{pluralize(len(found.sites), 'site')}{behind}; {captures}{causes}"


def search_notes(found: XRay) -> Sequence[str]:
    """Problems of the search, breaks that occur only as a consequence of other breaks, and notes on causes."""
    places = [f"{place_text(span.file, span.line)} `{' '.join(span.code.split())}`" for span in found.consequences]
    consequences = [
        f"{place} breaks only because the program broke before: it goes with the others" for place in places
    ]
    return [*found.problems, *consequences, *found.cause_notes]
