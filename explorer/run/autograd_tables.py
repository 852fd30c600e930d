"""The eager autograd graphs of a record as DataFrames: nodes, saved tensors, leaves.

The columns are fixed, the most important first. An empty table has the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from compiler.record import Artifact, Entity, Record, Saved
from explorer.reading.columns import columns
from explorer.reading.data_frames import cells_of, frame_of
from explorer.reading.provenance import place_text
from explorer.reading.shapes import shape_text

NODES = columns(
    ("string", "name op rule dtype shape where module code call"),
    ("Int64", "gradients_added saves saved_bytes"),
    ("string", "formula hooks derivative_of notes"),
    ("category", "kind"),
    ("string", "file"),
    ("Int64", "line"),
    ("string", "graph id"),
)
SAVED = columns(
    ("string", "node name dtype shape"),
    ("Int64", "bytes"),
    ("string", "of shared_with storage"),
    ("Int64", "storage_bytes"),
    ("boolean", "free view"),
    ("Int64", "version"),
    ("string", "problem op where module graph id"),
)
LEAVES = columns(
    ("string", "name dtype shape"),
    ("Int64", "bytes gradients"),
    ("string", "comes_from"),
    ("boolean", "parameter has_grad"),
    ("Int64", "version"),
    ("string", "hooks module notes graph id"),
)
STOPS = columns(
    ("string", "name"),
    ("category", "kind"),
    ("string", "dtype shape taken_by cut_off_from where code module why graph id"),
)
HEALTH = columns(
    ("string", "name op"),
    ("Float64", "gradient_norm gradient_zeros"),
    ("Int64", "gradient_nans gradient_infinite"),
    ("Float64", "value_norm value_zeros"),
    ("Int64", "value_nans value_infinite"),
    ("category", "first"),
    ("string", "where module code"),
    ("category", "kind"),
    ("string", "graph id"),
)


def nodes(record: Record) -> pd.DataFrame:
    """One row per node, in backward order."""
    rows = [_node_row(artifact, entity, record) for artifact, entity in _entities(record)]
    return frame_of(rows, NODES)


def saved_table(record: Record) -> pd.DataFrame:
    """One row per tensor saved for backward.

    Tensors with the same `storage` share memory. `free` marks memory of a leaf, which exists anyway.
    """
    known = {entity.id: (artifact, entity) for artifact, entity in _entities(record)}
    return frame_of(
        [_saved_row(fact, *known[fact.node]) for fact in record.autograd_saved if fact.node in known], SAVED
    )


def leaves(record: Record) -> pd.DataFrame:
    """One row per leaf, with the nodes whose gradients are added to its `.grad`."""
    rows = [_leaf_row(artifact, entity) for artifact, entity in _entities(record) if entity.kind == "accumulate"]
    return frame_of(rows, LEAVES)


def health(record: Record) -> pd.DataFrame:
    """One row per node, in backward order: the health of its result and gradient.

    `gradient` is the sum of the node's incoming gradients, `value` the result of its forward operation, if known.
    `zeros` are fractions; a non-finite norm is NA. `first` is "value" or "gradient" at the node with the first
    non-finite value or gradient, else "".
    """
    rows = [_health_row(artifact, entity) for artifact, entity in _entities(record)]
    return frame_of(rows, HEALTH)


def stops(record: Record) -> pd.DataFrame:
    """One row per gradient stop, with the kind: "detached", "no_grad" or "frozen"."""
    graphs = record.of_stage("autograd")
    rows = [_stop_row(graph, entity) for graph in graphs for entity in graph.entities if entity.kind == "stop"]
    return frame_of(rows, STOPS)


def _stop_row(artifact: Artifact, entity: Entity) -> dict[str, Any]:
    prefix = f"{artifact.id}."
    return _row(artifact, entity, STOPS) | {
        "kind": entity.attrs["stops"],
        "taken_by": "; ".join(taker.removeprefix(prefix) for taker in entity.inputs),
        "why": entity.attrs["notes"],
    }


def _health_row(artifact: Artifact, entity: Entity) -> dict[str, Any]:
    first = entity.attrs.get("not_finite_from_here", "")
    return _row(artifact, entity, HEALTH) | {"first": first, "kind": entity.kind}


def _entities(record: Record) -> Iterator[tuple[Artifact, Entity]]:
    for artifact in record.of_stage("autograd"):
        for entity in artifact.entities:
            if entity.kind not in ("placeholder", "stop"):
                yield artifact, entity


def _node_row(artifact: Artifact, entity: Entity, record: Record) -> dict[str, Any]:
    saves = [fact for fact in record.autograd_saved if fact.node == entity.id] if "saves" in entity.attrs else []
    counts = {"gradients_added": 1, "saved_bytes": 0} | _row(artifact, entity, NODES)
    return counts | {"saves": len(saves), "kind": entity.kind}


def _row(artifact: Artifact, entity: Entity, columns: Mapping[str, str]) -> dict[str, Any]:
    """The cells common to all tables, and the entity's attributes that have the name of a column."""
    attrs = entity.attrs
    return {name: attrs[name] for name in columns if name in attrs} | {
        "name": entity.label,
        "op": _node_type(entity),
        "shape": shape_text(attrs["shape"]) if "shape" in attrs else None,
        "where": _place_of(attrs),
        "hooks": "; ".join(attrs.get("hooks", ())) or None,
        "graph": artifact.graph or None,
        "id": entity.id,
    }


def _node_type(entity: Entity) -> str:
    """The type of a node: `AddmmBackward0`."""
    return str(entity.attrs["target"]).rpartition(".")[2]


def _place_of(attrs: Mapping[str, Any]) -> str | None:
    return place_text(attrs["file"], attrs["line"]) if "line" in attrs else None


def _saved_row(fact: Saved, artifact: Artifact, entity: Entity) -> dict[str, Any]:
    return cells_of(fact, SAVED) | {
        "node": entity.label,
        "shape": shape_text(fact.shape) if fact.dtype else None,
        "op": _node_type(entity),
        "where": _place_of(entity.attrs),
        "module": entity.attrs.get("module"),
        "graph": artifact.graph or None,
        "id": entity.id,
    }


def _leaf_row(artifact: Artifact, entity: Entity) -> dict[str, Any]:
    prefix = f"{artifact.id}."
    sources = "; ".join(source.removeprefix(prefix) for source in entity.inputs)
    return (
        {"gradients": entity.attrs.get("gradients_added", 1)} | _row(artifact, entity, LEAVES) | {"comes_from": sources}
    )
