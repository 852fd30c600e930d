"""Advice as a document of cards, each linked to the kernels, lines, breaks and guards that are its evidence."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.advise import Advice, Change, Evidence, advise, can_try
from compiler.record import Entity, Record
from compiler.record.measure_facts import Trial
from compiler.record.plain_text import pluralize
from explorer.findings.advice.words import BASES, gain_source, gain_words, holds, snippet, trial_words
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Card, Code, Items, Link, Only, Parts, Tag, Text, Words
from explorer.render.document import Change as ChangePart
from explorer.render.finding import Finding
from explorer.render.places import change_part
from explorer.render.text import document_finding

FINDINGS = {"breaks": "the break", "guards": "a guard", "recompiles": "the recompilation"}
"""Stage prefix of an entity id in another finding -> text of a link to the entity."""
MOST_LINKS, MOST_OPEN = 5, 2


def advice_finding(record: Record) -> Finding | None:
    """Finding with the advice on a record; None if nothing was captured or there is no advice."""
    cards = advice_cards(record)
    if not record.of_stage("captured") or not cards:
        return None
    found = advise(record)
    labels = labels_of(record)
    entities = {advice_id(advice): entity(advice, labels) for advice in found}
    changes = pluralize(sum(advice.change is not None for advice in found), "finding")
    return document_finding("advice", "what would make it faster", cards, entities, changes, is_open=False)


def advice_cards(record: Record, *, is_open: bool = True) -> list[Card]:
    """A card for each piece of advice, largest gain first; `is_open` unfolds the first two in HTML."""
    labels, lines = labels_of(record), SourceLines(record)
    trials = {trial.advice: trial for trial in record.trials}
    return [
        Card(
            title=advice.title,
            ids=(advice_id(advice),),
            lead=advice.found,
            parts=(*_parts(advice, labels, lines), *_trial(number, trials.get(advice.id), can_try(advice, record))),
            kind="advice",
            line=f"[{number}] {advice.title}" + (f" · {gain_words(advice.gain)}" if advice.change else ""),
            tag=Tag(gain_words(advice.gain), "gain" if advice.gain else "muted") if advice.change else None,
            warns=False,
            is_open=is_open and number < MOST_OPEN,
        )
        for number, advice in enumerate(advise(record))
    ]


def _parts(advice: Advice, labels: Mapping[str, str], lines: SourceLines) -> list[Parts]:
    """The evidence, the suggested change, and the effect of the change on the numerical results."""
    items = [_evidence(item, labels) for item in advice.evidence]
    items += [gain_source(advice.gain)] if advice.gain is not None else []
    parts: list[Parts] = [Items(tuple(items), "Evidence", "- ")] if items else []
    parts += [_change(advice.change, lines)] if advice.change is not None else []
    return parts + ([Text(advice.numbers, "why", "numbers: ")] if advice.numbers else [])


def _evidence(item: Evidence, labels: Mapping[str, str]) -> Words:
    known = [name for name in dict.fromkeys(item.ids) if _is_known(name, labels)][:MOST_LINKS]
    links = [
        Link("", id=name, detail=labels.get(name) or FINDINGS[name.partition(".")[0]], title=f"Show {name}")
        for name in known
    ]
    return (item.text, " ", Tag(BASES[item.basis], "badge"), *links)


def _change(change: Change, lines: SourceLines) -> ChangePart:
    """The change as a part; a rewrite includes the lines it replaces, as on the cards of breaks."""
    suggestion = change.suggestion
    if suggestion is None or not suggestion.rewrite:
        return ChangePart("change", change.text, change.applicability, settings=tuple(snippet(change)))
    rewrite = change_part(suggestion, "change", lines)
    return ChangePart(
        "change", change.text, change.applicability, rewrite.place, rewrite.where, rewrite.old, rewrite.new
    )


def _trial(number: int, trial: Trial | None, can_be_tried: bool) -> list[Parts]:
    """Result of the trial, or how to start the trial; empty if the advice can't be tried."""
    if trial is not None:
        fell_short = holds(trial) is False
        label = "not tried: " if trial.problem else "tried, less than claimed: " if fell_short else "tried: "
        return [Text(trial_words(trial), "short" if fell_short or trial.problem else "trial", label)]
    if not can_be_tried:
        return []
    call = f"run.advice.measure({number})"
    shown = Only(("view",), (Text("Measure it on this call:", "why"), Code((call,), copy=call)))
    return [Only(("text",), (Text(call, label="try it: "),)), Only(("html",), (Text(f"`{call}` measures it."),)), shown]


def labels_of(record: Record) -> dict[str, str]:
    """Entity id -> text of a link to the entity."""
    return {entity.id: _label(entity) for entity in record.entities()}


def advice_id(advice: Advice) -> str:
    """Id of the entity of a piece of advice."""
    return f"advice.{advice.id}"


def entity(advice: Advice, labels: Mapping[str, str]) -> Entity:
    """Entity of a piece of advice, linked to its evidence."""
    ids = dict.fromkeys(name for item in advice.evidence for name in item.ids if _is_known(name, labels))
    attrs = {"rule": advice.rule, "gain": gain_words(advice.gain)}
    return Entity(advice_id(advice), "advice", advice.title, attrs, (), tuple(ids))


def _is_known(name: str, labels: Mapping[str, str]) -> bool:
    return name in labels or name.partition(".")[0] in FINDINGS


def _label(found: Entity) -> str:
    if found.kind == "line":
        return f"{found.attrs.get('file', '')}:{found.attrs.get('line', 0)}"
    if found.kind == "extern" and "line" in found.attrs:  # several calls may share a name
        return f"{found.label}, line {found.attrs['line']}"
    return found.label
