"""All compilations in the order of the calls that led to them, and a card for each that an earlier one had made
unnecessary, had its guards held.
"""

from __future__ import annotations

from compiler.record import Entity, Recompile, Record
from explorer.findings.cards import recompile_card
from explorer.findings.guards import guard_id
from explorer.findings.recompile_cards import Known, group_cards
from explorer.findings.timeline import call_columns, call_data, code_objects, recompile_id, row_data, timeline_lines
from explorer.reading.cause import recompile_reason
from explorer.reading.sites import recompile_count, recompile_groups
from explorer.render.finding import Finding, LinkedText


def recompiles_finding(record: Record) -> Finding | None:
    """Every compilation of a record by call; None where the function was called once and nothing compiled again."""
    rows = code_objects(record)
    if not rows or (not record.recompiles and record.calls < 2):
        return None
    text, known, calls = LinkedText(), Known(record), call_columns(record)
    text.add("\n".join(timeline_lines(rows, calls, record)))
    groups = recompile_groups(record.recompiles)
    for number, group in enumerate(groups, 1):
        text.add("")
        card = recompile_card(group[0], number, len(groups), group[1:])
        text.add(card, *(recompile_entity(found, known) for found in group))
    data = {
        "calls": [call_data(some, record, known.lines) for some in calls],
        "rows": [row_data(frames, calls, record, known.lines) for frames in rows],
        "cards": [
            card for number, group in enumerate(groups, 1) for card in group_cards(number, len(groups), group, known)
        ],
    }
    artifact = text.artifact("recompiles", "recompilations", count=recompile_count(record.recompiles))
    return Finding(artifact, "view", "recompiles", data)


def recompile_entity(found: Recompile, known: Known) -> Entity:
    """A recompilation as an entity; it comes from the line of the call, and from the guards that failed."""
    call = known.lines.id_of(found.call.file, found.call.line) if found.call else ""
    guards = (guard_id(guard) for failure in found.failures for guard in known.failed(failure))
    attrs = {"frame": found.frame, "cause": found.cause, "argument": found.argument}
    origins = tuple(dict.fromkeys(name for name in (call, *guards) if name))
    return Entity(recompile_id(found), "recompile", recompile_reason(found), attrs, (), origins)
