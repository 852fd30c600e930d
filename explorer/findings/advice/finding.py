"""Advice as a stage to look at: each finding is linked to the kernels, lines, breaks and guards that show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.advise import Advice, Evidence, advise, can_try
from compiler.record import Entity, Record
from compiler.record.measure_facts import Trial
from explorer.findings.advice.words import BASES, advice_text, gain_source, gain_words, holds, snippet, trial_words
from explorer.reading.plain_text import counted
from explorer.reading.source_lines import SourceLines
from explorer.reading.spots import line_spot
from explorer.render.finding import Finding, LinkedText

FINDINGS = {"breaks": "the break", "guards": "a guard", "recompiles": "the recompilation"}
"""What is linked in other findings, by the stage that an id begins with."""
MOST_LINKS = 5


def advice_finding(record: Record) -> Finding | None:
    """The advice on a record; None where nothing was compiled."""
    found = advise(record)
    if not record.of_stage("captured") or not found:
        return None
    trials = {trial.advice: trial for trial in record.trials}
    labels = {entity.id: _label(entity) for entity in record.entities()}
    text, lines = LinkedText(), SourceLines(record)
    for number, advice in enumerate(found):
        text.add(
            "\n".join(advice_text(advice, number, trials.get(advice.id), can_try(advice, record))),
            entity(advice, labels),
        )
        text.add("")
    cards = [
        _card(number, advice, trials.get(advice.id), labels, lines, can_try(advice, record))
        for number, advice in enumerate(found)
    ]
    changes = counted(sum(advice.change is not None for advice in found), "finding")
    artifact = text.artifact("advice", "what would make it faster", count=changes)
    return Finding(artifact, "view", "advice", {"cards": cards})


def advice_id(advice: Advice) -> str:
    """The id of a finding's entity."""
    return f"advice.{advice.id}"


def entity(advice: Advice, labels: Mapping[str, str]) -> Entity:
    """A finding as an entity; it comes from what shows it."""
    ids = dict.fromkeys(name for item in advice.evidence for name in item.ids if _is_known(name, labels))
    attrs = {"rule": advice.rule, "gain": gain_words(advice.gain)}
    return Entity(advice_id(advice), "advice", advice.title, attrs, (), tuple(ids))


def _is_known(name: str, labels: Mapping[str, str]) -> bool:
    return name in labels or name.partition(".")[0] in FINDINGS


def _label(found: Entity) -> str:
    if found.kind == "line":
        return f"{found.attrs.get('file', '')}:{found.attrs.get('line', 0)}"
    if found.kind == "extern" and "line" in found.attrs:  # many calls have the same name
        return f"{found.label}, line {found.attrs['line']}"
    return found.label


def _card(
    number: int, advice: Advice, trial: Trial | None, labels: Mapping[str, str], lines: SourceLines, can_be_tried: bool
) -> dict[str, Any]:
    """All that a card says, in plain JSON values."""
    return {
        "ids": [advice_id(advice)],
        "number": number,
        "title": advice.title,
        "gain": gain_words(advice.gain) if advice.change is not None else "",
        "known": advice.gain is not None,
        "found": advice.found,
        "evidence": [_evidence(item, labels) for item in advice.evidence],
        "source": gain_source(advice.gain) if advice.gain is not None else "",
        "change": _change(advice, lines),
        "numbers": advice.numbers,
        "trial": _trial(trial) if trial is not None else None,
        "call": f"run.try_advice({number})" if can_be_tried else "",
    }


def _evidence(item: Evidence, labels: Mapping[str, str]) -> dict[str, Any]:
    known = [name for name in dict.fromkeys(item.ids) if _is_known(name, labels)]
    links = [{"id": name, "label": labels.get(name) or FINDINGS[name.partition(".")[0]]} for name in known[:MOST_LINKS]]
    return {"text": item.text, "basis": BASES[item.basis], "links": links}


def _change(advice: Advice, lines: SourceLines) -> dict[str, Any] | None:
    """The change as the cards of breaks have it: a rewrite comes with the lines that it replaces."""
    change = advice.change
    if change is None:
        return None
    suggestion = change.suggestion
    if suggestion is None or not suggestion.rewrite:
        words = {"words": change.text, "applicability": change.applicability}
        return words | {"at": None, "old": [], "new": [], "settings": snippet(change)}
    first, last = suggestion.line, suggestion.end_line
    return {
        "words": change.text,
        "applicability": change.applicability,
        "at": line_spot(suggestion.file, first, lines),
        "old": list(lines.code(suggestion.file, first, last)),
        "new": suggestion.rewrite.splitlines(),
        "settings": [],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {"words": trial_words(trial), "holds": holds(trial), "failed": bool(trial.problem)}
