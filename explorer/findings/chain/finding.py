"""View that steps through the chain rule on a graph."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.record import Record
from explorer.render.finding import Finding

STAGE = "chain_rule"
SHOWN = ("cards", "note", "health", "sick", "program")
"""The artifact's attrs that the view receives."""


def chain_views(record: Record) -> Iterator[Finding]:
    """Finding for the artifact of the chain rule, if the record has this artifact with cards."""
    for artifact in record.of_stage(STAGE):
        data = {name: artifact.attrs[name] for name in SHOWN if name in artifact.attrs}
        if "cards" in data:  # older saved records lack them
            yield Finding(artifact, "view", "chain_rule", data)
