"""Two backends' code for one call as a stage to look at: the table of both."""

from __future__ import annotations

from compiler.record import Artifact, Record
from explorer import versus
from explorer.findings.finding import Finding

STAGE = "versus"


def versus_finding(record: Record) -> Finding | None:
    """The table of both sides; None where there is no other side."""
    if record.versus is None:
        return None
    first, second = versus.names_of(record)
    title, count = f"{first} beside {second}", {"count": len(versus.rows(record, record.versus))}
    return Finding(Artifact(STAGE, STAGE, title, "text", versus.told(record) + "\n", attrs=count))
