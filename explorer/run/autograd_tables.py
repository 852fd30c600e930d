"""The eager autograd graphs of a record as DataFrames: nodes, the tensors they save, leaves.

Columns are fixed; what is read first comes first. A table without rows has the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from compiler.record import Artifact, Entity, Record, Saved
from explorer.reading.provenance import place_text
from explorer.reading.shapes import shape_text

NODES = {
    "name": "string",
    "op": "string",
    "rule": "string",
    "dtype": "string",
    "shape": "string",
    "where": "string",
    "module": "string",
    "code": "string",
    "call": "string",
    "gradients_added": "Int64",
    "saves": "Int64",
    "saved_bytes": "Int64",
    "formula": "string",
    "hooks": "string",
    "derivative_of": "string",
    "notes": "string",
    "kind": "category",
    "file": "string",
    "line": "Int64",
    "graph": "string",
    "id": "string",
}
SAVED = {
    "node": "string",
    "name": "string",
    "dtype": "string",
    "shape": "string",
    "bytes": "Int64",
    "of": "string",
    "shared_with": "string",
    "storage": "string",
    "storage_bytes": "Int64",
    "free": "boolean",
    "view": "boolean",
    "version": "Int64",
    "problem": "string",
    "op": "string",
    "where": "string",
    "module": "string",
    "graph": "string",
    "id": "string",
}
LEAVES = {
    "name": "string",
    "dtype": "string",
    "shape": "string",
    "bytes": "Int64",
    "gradients": "Int64",
    "comes_from": "string",
    "parameter": "boolean",
    "has_grad": "boolean",
    "version": "Int64",
    "hooks": "string",
    "module": "string",
    "notes": "string",
    "graph": "string",
    "id": "string",
}
STOPS = {
    "name": "string",
    "kind": "category",
    "dtype": "string",
    "shape": "string",
    "taken_by": "string",
    "cut_off_from": "string",
    "where": "string",
    "code": "string",
    "module": "string",
    "why": "string",
    "graph": "string",
    "id": "string",
}
HEALTH = {
    "name": "string",
    "op": "string",
    "gradient_norm": "Float64",
    "gradient_zeros": "Float64",
    "gradient_nans": "Int64",
    "gradient_infinite": "Int64",
    "value_norm": "Float64",
    "value_zeros": "Float64",
    "value_nans": "Int64",
    "value_infinite": "Int64",
    "first": "category",
    "where": "string",
    "module": "string",
    "code": "string",
    "kind": "category",
    "graph": "string",
    "id": "string",
}


def nodes(record: Record) -> pd.DataFrame:
    """One row a node, in the order in which backward runs them."""
    rows = [_node_row(artifact, entity, record) for artifact, entity in _entities(record)]
    return _frame(rows, NODES)


def saved(record: Record) -> pd.DataFrame:
    """One row a tensor that a node keeps for the backward; those of one `storage` share memory, `free` is a leaf's."""
    known = {entity.id: (artifact, entity) for artifact, entity in _entities(record)}
    return _frame([_saved_row(fact, *known[fact.node]) for fact in record.autograd_saved if fact.node in known], SAVED)


def leaves(record: Record) -> pd.DataFrame:
    """One row a leaf: the tensor whose `.grad` a backward pass fills, and the nodes whose gradients are added there."""
    rows = [_leaf_row(artifact, entity) for artifact, entity in _entities(record) if entity.kind == "accumulate"]
    return _frame(rows, LEAVES)


def health(record: Record) -> pd.DataFrame:
    """One row a node, in the order in which backward runs them. `gradient` is what came to the node, added up, `value`
    the result of its forward operation where that is known; `zeros` are shares of 1; a norm that is not finite is
    missing. `first` marks the node that made the first one that is not finite, "value" or "gradient"; else it is "".
    """
    rows = [_health_row(artifact, entity) for artifact, entity in _entities(record)]
    return _frame(rows, HEALTH)


def stops(record: Record) -> pd.DataFrame:
    """One row a place where gradients stop, and why: "detached", "no_grad" or "frozen"."""
    graphs = record.of_stage("autograd")
    rows = [_stop_row(graph, entity) for graph in graphs for entity in graph.entities if entity.kind == "stop"]
    return _frame(rows, STOPS)


def _stop_row(artifact: Artifact, entity: Entity) -> dict[str, Any]:
    prefix = f"{artifact.id}."
    return _common(artifact, entity) | {
        "kind": entity.attrs["stops"],
        "taken_by": "; ".join(taker.removeprefix(prefix) for taker in entity.inputs),
        "cut_off_from": entity.attrs.get("cut_off_from"),
        "code": entity.attrs.get("code"),
        "why": entity.attrs["notes"],
    }


def _health_row(artifact: Artifact, entity: Entity) -> dict[str, Any]:
    attrs = entity.attrs
    own = {name: attrs.get(name) for name in HEALTH if name.startswith(("gradient_", "value_"))}
    first = attrs.get("not_finite_from_here", "")
    return _common(artifact, entity) | own | {"first": first, "code": attrs.get("code"), "kind": entity.kind}


def _entities(record: Record) -> Iterator[tuple[Artifact, Entity]]:
    for artifact in record.of_stage("autograd"):
        for entity in artifact.entities:
            if entity.kind not in ("placeholder", "stop"):
                yield artifact, entity


def _node_row(artifact: Artifact, entity: Entity, record: Record) -> dict[str, Any]:
    saves = [fact for fact in record.autograd_saved if fact.node == entity.id] if "saves" in entity.attrs else []
    return _common(artifact, entity) | {
        "rule": entity.attrs.get("rule"),
        "formula": entity.attrs.get("formula"),
        "code": entity.attrs.get("code"),
        "call": entity.attrs.get("call"),
        "derivative_of": entity.attrs.get("derivative_of"),
        "gradients_added": entity.attrs.get("gradients_added", 1),
        "saves": len(saves),
        "saved_bytes": entity.attrs.get("saved_bytes", 0),
        "kind": entity.kind,
        "file": entity.attrs.get("file"),
        "line": entity.attrs.get("line"),
    }


def _common(artifact: Artifact, entity: Entity) -> dict[str, Any]:
    attrs = entity.attrs
    return {
        "name": entity.label,
        "op": _node_type(entity),
        "dtype": attrs.get("dtype"),
        "shape": shape_text(attrs["shape"]) if "shape" in attrs else None,
        "where": _where(attrs),
        "module": attrs.get("module"),
        "hooks": "; ".join(attrs.get("hooks", ())) or None,
        "notes": attrs.get("notes"),
        "graph": artifact.graph or None,
        "id": entity.id,
    }


def _node_type(entity: Entity) -> str:
    """`AddmmBackward0`."""
    return str(entity.attrs["target"]).rpartition(".")[2]


def _where(attrs: Mapping[str, Any]) -> str | None:
    return place_text(attrs["file"], attrs["line"]) if "line" in attrs else None


def _saved_row(fact: Saved, artifact: Artifact, entity: Entity) -> dict[str, Any]:
    same = {name: getattr(fact, name) for name in SAVED if hasattr(fact, name)}
    return same | {
        "node": entity.label,
        "dtype": fact.dtype or None,
        "shape": shape_text(fact.shape) if fact.dtype else None,
        "shared_with": "; ".join(fact.shared_with) or None,
        "of": fact.of or None,
        "storage": fact.storage or None,
        "problem": fact.problem or None,
        "op": _node_type(entity),
        "where": _where(entity.attrs),
        "module": entity.attrs.get("module"),
        "graph": artifact.graph or None,
        "id": entity.id,
    }


def _leaf_row(artifact: Artifact, entity: Entity) -> dict[str, Any]:
    prefix = f"{artifact.id}."
    return _common(artifact, entity) | {
        "bytes": entity.attrs.get("bytes"),
        "gradients": entity.attrs.get("gradients_added", 1),
        "comes_from": "; ".join(source.removeprefix(prefix) for source in entity.inputs),
        "parameter": entity.attrs.get("parameter"),
        "has_grad": entity.attrs.get("has_grad"),
        "version": entity.attrs.get("version"),
    }


def _frame(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(
        {name: pd.Series([row.get(name) for row in rows], dtype=dtype) for name, dtype in columns.items()}
    )
