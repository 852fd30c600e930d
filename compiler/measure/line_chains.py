"""The places in the source that each entity of a record came from: a line, with the lines that called it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from compiler.record import Record

LINE = re.compile(r"source\[.+\]\.L\d+")

Chain = tuple[str, ...]
"""Ids of source lines, outermost first."""


def line_chains(record: Record) -> dict[str, tuple[Chain, ...]]:
    """Entity id -> the chains that it and all it was made of came from. One that came from none is left out."""
    origins = {entity.id: entity.origins for entity in record.entities()}
    known: dict[str, tuple[Chain, ...]] = {}
    for identity in origins:
        _follow(identity, origins, known)
    return {identity: chains for identity, chains in known.items() if chains}


def _follow(identity: str, origins: Mapping[str, tuple[str, ...]], known: dict[str, tuple[Chain, ...]]) -> None:
    """Add an entity's chains to `known`; the stages are few, so the recursion is shallow."""
    if identity in known:
        return
    known[identity] = ()
    parents = origins.get(identity, ())
    own = tuple(parent for parent in parents if LINE.fullmatch(parent))
    found = [own] if own else []
    for parent in parents:
        if parent not in own:
            _follow(parent, origins, known)
            found.extend(known[parent])
    known[identity] = tuple(dict.fromkeys(found))
