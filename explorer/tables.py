"""Record -> pandas DataFrames, one for each kind of fact.

Columns and their order are fixed (`COLUMNS`); a table without rows has them too. Text is `string`, a closed set of
words is `category`, a count or a size in bytes is `Int64`, a duration in seconds is `Float64`. Several values in one
cell are joined into text (`"; "`), so a table prints, sorts and filters as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from compiler.record import STAGES, Artifact, Binary, Entity, Kernel, Record
from explorer.kernel_table import binaries_of, bound_microseconds, config_text, half, intensity, occupancy_percent
from explorer.provenance import input_sources, saved_tensors, standing_for
from explorer.shapes import dtype_name, shape_text

Columns = dict[str, str]

COLUMNS: dict[str, Columns] = {
    "breaks": {
        "id": "string",
        "frame": "string",
        "kind": "string",
        "reason": "string",
        "file": "string",
        "line": "Int64",
        "function": "string",
        "code": "string",
        "explanation": "string",
        "hints": "string",
        "gb_id": "string",
        "stack": "string",
    },
    "guards": {
        "id": "string",
        "frame": "string",
        "kind": "category",
        "source": "string",
        "code": "string",
        "file": "string",
        "line": "Int64",
    },
    "recompiles": {
        "id": "string",
        "frame": "string",
        "function": "string",
        "file": "string",
        "line": "Int64",
        "reasons": "string",
    },
    "frames": {
        "id": "string",
        "function": "string",
        "file": "string",
        "line": "Int64",
        "outcome": "category",
        "reason": "string",
        "graphs": "string",
    },
    "graphs": {
        "artifact": "string",
        "stage": "stage",
        "graph": "string",
        "function": "string",
        "nodes": "Int64",
        "inputs": "Int64",
        "calls": "Int64",
        "ops": "Int64",
        "outputs": "Int64",
        "bytes": "Int64",
    },
    "kernels": {
        "name": "string",
        "graph": "string",
        "artifact": "string",
        "language": "category",
        "category": "category",
        "calls": "Int64",
        "bytes": "Int64",
        "nodes": "Int64",
        "first_line": "Int64",
        "last_line": "Int64",
        "registers": "Int64",
        "spill_bytes": "Int64",
        "shared_memory": "Int64",
        "occupancy_percent": "Float64",
        "bound_us": "Float64",
        "id": "string",
    },
    "binaries": {
        "kernel": "string",
        "graph": "string",
        "target": "category",
        "config": "string",
        "registers": "Int64",
        "spill_bytes": "Int64",
        "shared_memory": "Int64",
        "threads": "Int64",
        "programs": "Int64",
        "occupancy_percent": "Float64",
        "limiter": "string",
        "load_bits": "Int64",
        "store_bits": "Int64",
        "bytes": "Int64",
        "flops": "Int64",
        "intensity": "Float64",
        "bound_us": "Float64",
        "bound": "category",
        "configs": "Int64",
        "id": "string",
    },
    "linked": {
        "stage": "stage",
        "artifact": "string",
        "line": "Int64",
        "label": "string",
        "id": "string",
    },
    "decisions": {
        "pass_name": "category",
        "graph": "string",
        "verdict": "category",
        "subjects": "string",
        "why": "string",
    },
    "saved": {
        "name": "string",
        "graph": "string",
        "op": "string",
        "dtype": "category",
        "shape": "string",
        "bytes": "Int64",
        "source": "string",
        "module": "string",
        "file": "string",
        "line": "Int64",
        "code": "string",
        "id": "string",
    },
    "timings": {
        "subject": "string",
        "what": "category",
        "seconds": "Float64",
        "low": "Float64",
        "high": "Float64",
        "runs": "Int64",
    },
    "checks": {
        "subject": "string",
        "verdict": "category",
        "max_absolute": "Float64",
        "max_relative": "Float64",
        "note": "string",
    },
    "problems": {
        "stage": "stage",
        "graph": "string",
        "reason": "string",
        "hint": "string",
    },
}
"""Table -> column -> dtype. `stage` is a category ordered as the pipeline is. `decisions` has one `Float64` column
more for each number that its passes gave, `binaries` one `Int64` column (`mix_load`) for each class of instructions."""


def breaks(record: Record) -> pd.DataFrame:
    """One row a graph break: torch's own kind, reason, explanation and hints, and the line that ended the graph."""
    return _facts("breaks", record.breaks)


def guards(record: Record) -> pd.DataFrame:
    """One row a guard: what is guarded (`source`), the check as Python (`code`), the line that asked for it."""
    return _facts("guards", record.guards, separator=" and ")


def recompiles(record: Record) -> pd.DataFrame:
    """One row a recompilation, with the guards that failed."""
    return _facts("recompiles", record.recompiles)


def frames(record: Record) -> pd.DataFrame:
    """One row a compilation of a code object: compiled, skipped or failed, and why."""
    return _facts("frames", record.frames)


def timings(record: Record) -> pd.DataFrame:
    """One row a measured duration, in seconds; `low` and `high` bound it where it was repeated (`runs`)."""
    return _facts("timings", record.timings)


def checks(record: Record) -> pd.DataFrame:
    """One row a result of the compiled code compared with eager's: the biggest errors, and the verdict."""
    return _facts("checks", record.checks)


def problems(record: Record) -> pd.DataFrame:
    """One row a stage that could not be had, why, and what to do about it."""
    return _facts("problems", record.problems)


def graphs(record: Record) -> pd.DataFrame:
    """One row an FX graph: how many nodes, inputs, calls, different ops, outputs, and bytes that its calls write."""
    functions = {frame.id: frame.function for frame in record.frames}
    rows = [_graph_row(artifact, functions) for artifact in record.artifacts if is_graph(artifact)]
    return _frame("graphs", rows)


def ops(record: Record) -> pd.DataFrame:
    """How often each op is called in each stage: index `op`, one `Int64` column a stage, in pipeline order.

    Ops that are called most come first. The graphs of a stage are summed.
    """
    counts: dict[str, Counter[str]] = {}
    for artifact in record.artifacts:
        if is_graph(artifact):
            counts.setdefault(artifact.stage, Counter()).update(op_counts(artifact))
    table = pd.DataFrame(counts, dtype="Int64").fillna(0)
    table.index = pd.Index(table.index, dtype="string", name="op")
    table.columns = pd.Index(table.columns, dtype="string", name="stage")
    most = dict(zip(table.index, table.max(axis=1), strict=True))
    return table.loc[sorted(most, key=lambda op: (-most[op], op)), sorted(table.columns, key=stage_rank)]


def kernels(record: Record) -> pd.DataFrame:
    """One row a generated kernel: what it is, how often it is called, the bytes that one call reads and writes.

    What is in its binary (registers, …) is there once it has been compiled, and missing before.
    """
    of_kernel = binaries_of(record)
    return _frame("kernels", [_kernel_row(kernel, of_kernel.get(kernel.id)) for kernel in record.kernels])


def _kernel_row(kernel: Kernel, binary: Binary | None) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "graph": kernel.graph,
        "artifact": kernel.artifact,
        "language": kernel.language,
        "category": kernel.category,
        "calls": kernel.calls,
        "bytes": kernel.bytes or None,
        "nodes": len(kernel.nodes),
        "first_line": kernel.lines[0],
        "last_line": kernel.lines[1],
        "registers": binary and binary.registers,
        "spill_bytes": binary and binary.spill_bytes,
        "shared_memory": binary and binary.shared_memory,
        "occupancy_percent": binary and occupancy_percent(binary),
        "bound_us": binary and bound_microseconds(binary),
        "id": kernel.id,
    }


def binaries(record: Record) -> pd.DataFrame:
    """One row a compiled kernel and launch configuration: registers, spills, memory, occupancy, roofline, instructions.

    Registers and spilled bytes are those of one thread, shared memory of one block, `bytes` and `flops` of one launch;
    `bound_us` is the least time for it that the GPU's peak rates allow, in microseconds.
    """
    known = {kernel.id: kernel for kernel in record.kernels}
    table = _frame("binaries", [_binary_row(binary, known[binary.kernel]) for binary in record.binaries])
    for name in dict.fromkeys(name for binary in record.binaries for name in binary.mix):
        counts = [binary.mix.get(name, 0) for binary in record.binaries]
        table[f"mix_{name.replace(' ', '_')}"] = pd.array(counts, dtype="Int64")
    return table


def _binary_row(binary: Binary, kernel: Kernel) -> dict[str, Any]:
    same = {name: getattr(binary, name) for name in COLUMNS["binaries"] if hasattr(binary, name)}
    return same | {
        "kernel": kernel.name,
        "graph": half(kernel),
        "config": config_text(binary.config),
        "programs": binary.programs or None,
        "occupancy_percent": occupancy_percent(binary),
        "intensity": intensity(binary),
        "bound_us": bound_microseconds(binary),
        "bound": binary.bound or None,
        "configs": len(binary.configs),
        "id": kernel.id,
    }


def linked(record: Record, ids: Iterable[str]) -> pd.DataFrame:
    """One row an entity that is linked to one of these: stage, artifact, its first line there, label."""
    chosen = frozenset[str]().union(*(record.linked(entity_id) for entity_id in standing_for(record, ids)))
    return _frame("linked", [row for artifact in record.artifacts for row in _linked_rows(artifact, chosen)])


def _linked_rows(artifact: Artifact, chosen: frozenset[str]) -> Iterator[dict[str, Any]]:
    first = _first_lines(artifact)
    for entity in artifact.entities:
        if entity.id in chosen:
            where = {"stage": artifact.stage, "artifact": artifact.id, "line": first.get(entity.id)}
            yield where | {"label": entity.label, "id": entity.id}


def _first_lines(artifact: Artifact) -> dict[str, int]:
    return {name: line for line in sorted(artifact.lines, reverse=True) for name in artifact.lines[line]}


def decisions(record: Record) -> pd.DataFrame:
    """One row a decision of a pass about some entities, and why; one more column for each number it was based on."""
    table = _facts("decisions", record.decisions)
    for name in sorted({name for decision in record.decisions for name in decision.numbers}):
        values = [decision.numbers.get(name) for decision in record.decisions]
        table[name] = pd.array(values, dtype="Float64")
    return table


def saved(record: Record) -> pd.DataFrame:
    """One row a tensor that the forward graph keeps for the backward; empty where the record doesn't show it.

    `source` says where an input that is kept comes from, as Python: `L['x']`.
    """
    kept, sources = saved_tensors(record), input_sources(record)
    rows = [
        _saved_row(artifact, entity, sources.get(entity.id))
        for artifact in record.of_stage("forward")
        for entity in artifact.entities
        if entity.id in kept
    ]
    return _frame("saved", rows)


def is_graph(artifact: Artifact) -> bool:
    """Whether an artifact is an FX graph."""
    return any(entity.kind in ("placeholder", "output") for entity in artifact.entities)


def op_counts(artifact: Artifact) -> Counter[str]:
    """How often an FX graph calls each op (`aten.mm.default`)."""
    return Counter(op_name(entity) for entity in artifact.entities if entity.kind == "call")


def op_name(entity: Entity) -> str:
    return str(entity.attrs.get("target") or entity.label)


def stage_rank(stage: str) -> tuple[int, str]:
    """Sort key: pipeline order; stages that the pipeline doesn't list come last, by name."""
    return (STAGES.index(stage) if stage in STAGES else len(STAGES), stage)


def _graph_row(artifact: Artifact, functions: dict[str, str]) -> dict[str, Any]:
    kinds = Counter(entity.kind for entity in artifact.entities)
    return {
        "artifact": artifact.id,
        "stage": artifact.stage,
        "graph": artifact.graph,
        "function": functions.get(artifact.graph),
        "nodes": len(artifact.entities),
        "inputs": kinds["placeholder"] + kinds["get_attr"],
        "calls": kinds["call"],
        "ops": len(op_counts(artifact)),
        "outputs": sum(len(set(entity.inputs)) for entity in artifact.entities if entity.kind == "output"),
        "bytes": sum(entity.attrs.get("bytes") or 0 for entity in artifact.entities if entity.kind == "call"),
    }


def _saved_row(artifact: Artifact, entity: Entity, source: str | None) -> dict[str, Any]:
    attrs = entity.attrs
    return {
        "name": entity.id.removeprefix(f"{artifact.id}."),
        "graph": artifact.graph,
        "op": op_name(entity) if entity.kind == "call" else "input",
        "dtype": dtype_name(attrs.get("dtype")) or None,
        "shape": shape_text(attrs["shape"]) if "shape" in attrs else None,
        "bytes": attrs.get("bytes"),
        "source": source,
        "module": attrs.get("module"),
        "file": attrs.get("file"),
        "line": attrs.get("line"),
        "code": attrs.get("code"),
        "id": entity.id,
    }


def _facts(table: str, facts: Iterable[Any], separator: str = "; ") -> pd.DataFrame:
    """Facts whose fields are named as the table's columns."""
    return _frame(table, [{name: _cell(getattr(fact, name), separator) for name in COLUMNS[table]} for fact in facts])


def _cell(value: Any, separator: str) -> Any:
    return separator.join(str(part) for part in value) if isinstance(value, tuple) else value


def _frame(table: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    columns = {
        name: pd.Series([row[name] for row in rows], dtype=_dtype(dtype, name, rows))
        for name, dtype in COLUMNS[table].items()
    }
    return pd.DataFrame(columns)


def _dtype(dtype: str, name: str, rows: list[dict[str, Any]]) -> Any:
    if dtype != "stage":
        return dtype
    return pd.CategoricalDtype(sorted({row[name] for row in rows}, key=stage_rank), ordered=True)
