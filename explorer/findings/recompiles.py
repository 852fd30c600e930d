"""Timeline of all compilations by call, and a card for each cause of recompilation."""

from __future__ import annotations

from compiler.record import Entity, Recompile, Record
from explorer.findings.guards import guard_id
from explorer.findings.recompile_cards import Known, recompile_cards
from explorer.findings.timeline import code_objects, recompile_id, timeline
from explorer.reading.cause import recompile_reason
from explorer.reading.sites import recompile_count
from explorer.render.document import Make, Only, Parts, Text
from explorer.render.finding import Finding
from explorer.render.text import document_finding

_ALL_CAUSES = Make(
    "xray",
    "X-ray: find what changes, and try to end the recompilations",
    "`run.xray()` finds where each value changes, and `run.patch()` has changes that were tried. Call them before "
    "saving, and the page has them.",
)


def recompiles_finding(record: Record) -> Finding | None:
    """Finding with every compilation by call; None without compilations, or after one call without recompilation."""
    rows = code_objects(record)
    if not rows or (not record.recompiles and record.calls < 2):
        return None
    known = Known(record)
    entities = {recompile_id(found): recompile_entity(found, known) for found in record.recompiles}
    asked: list[Parts] = [Only(("view",), (_ALL_CAUSES,))] if record.recompiles and record.xray is None else []
    document: list[Parts] = [*asked, timeline(rows, record, known.lines), *recompile_cards(record)]
    if not record.recompiles:
        document.append(Only(("view",), (Text("Nothing was compiled again.", "why"),)))
    count = recompile_count(record.recompiles)
    return document_finding("recompiles", "recompilations", document, entities, count)


def recompile_entity(found: Recompile, known: Known) -> Entity:
    """Entity of a recompilation, linked to the line of the call and to the guards that failed."""
    call = known.lines.id_of(found.call.file, found.call.line) if found.call else ""
    guards = (guard_id(guard) for failure in found.failures for guard in known.failed_guards(failure))
    attrs = {"frame": found.frame, "cause": found.cause, "argument": found.argument}
    origins = tuple(dict.fromkeys(name for name in (call, *guards) if name))
    return Entity(recompile_id(found), "recompile", recompile_reason(found), attrs, (), origins)
