"""The chain rule on a graph has a view that goes through it step by step."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.record import Record
from explorer.render.finding import Finding

STAGE = "chain_rule"
SHOWN = ("cards", "note", "health", "sick")
"""What of the artifact's attrs the view is given."""


def chain_views(record: Record) -> Iterator[Finding]:
    """The artifact of the chain rule, if the record has one."""
    for artifact in record.of_stage(STAGE):
        data = {name: artifact.attrs[name] for name in SHOWN if name in artifact.attrs}
        if "cards" in data:  # saved records may be of a version without
            yield Finding(artifact, "view", "chain_rule", data)
