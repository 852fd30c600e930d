"""Record -> pandas DataFrames, one for each kind of fact.

Columns and their order are fixed (`explorer.reading.columns`); a table without rows has them too. Several values in one
cell are joined into text (`"; "`), so a table prints, sorts and filters as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from compiler.record import (
    Artifact,
    Binary,
    Entity,
    Frame,
    GraphBreak,
    Guard,
    Kernel,
    Recompile,
    Record,
    Symbol,
)
from explorer.reading.cause import closest_failure, condition_text, culprit_code, place_and_code, users_place
from explorer.reading.data_frames import count_table, facts_table, own_cells, table_of
from explorer.reading.kernel_table import (
    binaries_of,
    bound_microseconds,
    config_text,
    half,
    intensity,
    occupancy_percent,
)
from explorer.reading.plain_text import columns
from explorer.reading.provenance import input_sources, place_text, saved_tensors, with_source_kernels
from explorer.reading.shapes import dtype_name, shape_text
from explorer.reading.stages import ranked_stage

if TYPE_CHECKING:
    from explorer.run.run import Run


def breaks(record: Record) -> pd.DataFrame:
    """One row per graph break.

    `where` is the innermost line of the user's own code, `file`, `line`, `column` and `code` the exact piece that ended
    the graph `graph`. `ops_before` and `ops_after` are the calls in it and in the graphs after the break, which take
    `crossing` tensors from it. With times, it costs `lost_seconds` a call; `lost_note` says against what, or why that
    is not known. `change`, `rewrite` and `settings` are what to do about it, `applicability` how far each change was
    tried ("machine-applicable", "maybe" with its `caveat`, "explanation"); `kind`, `explanation` and `hints` are
    torch's own words.
    """
    graphs = {name: frame.id for frame in record.frames for name in frame.graphs}
    return table_of("breaks", [_break_row(found, graphs.get(found.ended)) for found in record.breaks])


def guards(record: Record) -> pd.DataFrame:
    """One row per guard: in words, its `argument`, which line asked for it (`where`), the check as Python.

    `failed` counts the calls that it turned away from this code; `cost_us` is what this one check takes, in
    microseconds, warm. `symbols` are the open sizes that it is about. `internal` marks those about the insides of
    modules and of torch. The guards on one argument stand together, those on the user's arguments come first.
    """
    rows = [_guard_row(guard) for guard in record.guards]
    first = {row["argument"]: index for index, row in reversed(list(enumerate(rows)))}
    return table_of(
        "guards", sorted(rows, key=lambda row: (row["internal"], not row["argument"], first[row["argument"]]))
    )


def symbols(record: Record) -> pd.DataFrame:
    """One row per size or number that compiled code leaves open: what it stands for, the value it had, its range.

    `low` and `high` are inclusive, and missing where there is no bound. `became` is what it was found to be if it could
    not stay open, and `specialized_by` the line that needed that; `conditions` are what was assumed of it, each with
    its line. `also` are others that torch takes to be equal.
    """
    return table_of("symbols", [_symbol_row(found) for found in record.symbols])


def recompiles(record: Record) -> pd.DataFrame:
    """One row per recompilation: why (`cause`, `argument`, its `old` and `new` value), in which call, and what helps.

    These are of the compiled code that came closest (`closest`); `failures` has all guards that failed, of all
    `entries`. `graph_change` is what is different in the captured graph: `run.diff(frame)` shows it.
    `plain_calls` are the calls that ran as plain Python once a `limit` was reached.
    """
    return table_of("recompiles", [_recompile_row(found) for found in record.recompiles])


def frames(record: Record) -> pd.DataFrame:
    """One row per compilation of a code object: compiled, skipped or failed, and why; its breaks and guards counted.

    `resumes` is the id of the break after which the code goes on, if torch made it for that; `restarts` is why torch
    read the code anew. `caller` is the frame that called it, at the line `called_from`, and `plain` are the lines that
    certainly ran as plain Python. `guards_us` is what one check of all the guards takes as torch measures it, in
    microseconds, the CPU's caches cold.
    """
    counts = [Counter(fact.frame for fact in facts) for facts in (record.breaks, record.guards)]
    return table_of("frames", [_frame_row(frame, *counts) for frame in record.frames])


def stage_times(record: Record) -> pd.DataFrame:
    """One row per artifact: how many seconds torch.compile took to make it, with what we observed meanwhile."""
    compiled = {item.subject: item.seconds for item in record.timings if item.what == "compile"}
    rows = [
        {"stage": artifact.stage, "artifact": artifact.id, "graph": artifact.graph, "seconds": compiled[artifact.id]}
        for artifact in record.artifacts
        if artifact.id in compiled
    ]
    return table_of("stage_times", rows)


def checks(record: Record) -> pd.DataFrame:
    """One row for the call as a whole, one a result of the compiled code, and one a stage and format of its results.

    Errors against eager are absolute, relative to the largest magnitude (`tolerance` is what is allowed), and in units
    in the last place of the result's format: the most, and what 99 of 100 values are within. Near zero there are very
    many units in a small error. Then errors against the same computation in float64, and eager's own. `node` is where
    the first stage that departs does. A stage with no `graph` was run in the whole call, in place of compiled code.
    """
    rows = [own_cells("checks", check) | {"stage": check.stage or "compiled code"} for check in record.checks]
    return table_of("checks", rows)


def problems(record: Record) -> pd.DataFrame:
    """One row per stage that could not be had, why, and what to do about it."""
    return facts_table("problems", record.problems)


def graphs(record: Record) -> pd.DataFrame:
    """One row per FX graph: how many nodes, inputs, calls, different ops, outputs, and bytes that its calls write."""
    functions = {frame.id: frame.function for frame in record.frames}
    rows = [_graph_row(artifact, functions) for artifact in record.artifacts if is_graph(artifact)]
    return table_of("graphs", rows)


def ops(record: Record) -> pd.DataFrame:
    """How often each op is called in each stage: index `op`, one `Int64` column a stage, in pipeline order.

    Ops that are called most come first. The graphs of a stage are summed; those of `decomposed`, which show the same
    computation at several levels, are left out (see `run.decompose().operators`).
    """
    return count_table(ops_by_stage(record), "stage")


def ops_by_stage(record: Record) -> dict[str, Counter[str]]:
    """Stage, in pipeline order -> how often its graphs call each op."""
    counts: dict[str, Counter[str]] = {}
    for artifact in record.artifacts:
        if is_graph(artifact) and artifact.stage != "decomposed":
            counts.setdefault(artifact.stage, Counter()).update(op_counts(artifact))
    return {stage: counts[stage] for stage in sorted(counts, key=ranked_stage)}


def kernels(record: Record) -> pd.DataFrame:
    """One row per generated kernel: what it is, how often it is called, the bytes that one call reads and writes.

    Registers and other facts of a binary are NA until the kernel has been compiled.
    """
    of_kernel = binaries_of(record)
    return table_of("kernels", [_kernel_row(kernel, of_kernel.get(kernel.id)) for kernel in record.kernels])


def _kernel_row(kernel: Kernel, binary: Binary | None) -> dict[str, Any]:
    facts = ("registers", "spill_bytes", "shared_memory")
    return own_cells("kernels", kernel) | {
        "bytes": kernel.bytes or None,
        "nodes": len(kernel.nodes),
        "first_line": kernel.lines[0],
        "last_line": kernel.lines[1],
        **{name: binary and getattr(binary, name) for name in facts},
        "occupancy_percent": binary and occupancy_percent(binary),
        "bound_us": binary and bound_microseconds(binary),
    }


def binaries(record: Record) -> pd.DataFrame:
    """One row per compiled kernel and launch configuration: registers, spills, occupancy, roofline, instructions.

    Registers and spilled bytes are those of one thread, shared memory of one block, `bytes` and `flops` of one launch;
    `bound_us` is the least time for it that the GPU's peak rates allow, in microseconds.
    """
    known = {kernel.id: kernel for kernel in record.kernels}
    table = table_of("binaries", [_binary_row(binary, known[binary.kernel]) for binary in record.binaries])
    for name in dict.fromkeys(name for binary in record.binaries for name in binary.mix):
        counts = [binary.mix.get(name, 0) for binary in record.binaries]
        table[f"mix_{name.replace(' ', '_')}"] = pd.array(counts, dtype="Int64")
    return table


def _binary_row(binary: Binary, kernel: Kernel) -> dict[str, Any]:
    return own_cells("binaries", binary) | {
        "kernel": kernel.name,
        "graph": half(kernel),
        "config": config_text(binary.config),
        "programs": binary.programs or None,
        "occupancy_percent": occupancy_percent(binary),
        "intensity": intensity(binary),
        "bound_us": bound_microseconds(binary),
        "configs": len(binary.configs),
        "id": kernel.id,
    }


def linked(record: Record, ids: Iterable[str]) -> pd.DataFrame:
    """One row per entity that is linked to one of these: stage, artifact, its first line there, label."""
    chosen = frozenset[str]().union(*(record.linked_ids(entity_id) for entity_id in with_source_kernels(record, ids)))
    return table_of("linked", [row for artifact in record.artifacts for row in _linked_rows(artifact, chosen)])


def _linked_rows(artifact: Artifact, chosen: frozenset[str]) -> Iterator[dict[str, Any]]:
    first = _first_lines(artifact)
    for entity in artifact.entities:
        if entity.id in chosen:
            where = {"stage": artifact.stage, "artifact": artifact.id, "line": first.get(entity.id)}
            yield where | {"label": entity.label, "id": entity.id}


def _first_lines(artifact: Artifact) -> dict[str, int]:
    return {name: line for line in sorted(artifact.lines, reverse=True) for name in artifact.lines[line]}


def decisions(record: Record) -> pd.DataFrame:
    """One row per decision of a pass about some entities, and why; one more column for each number it was based on."""
    table = facts_table("decisions", record.decisions)
    for name in sorted({name for decision in record.decisions for name in decision.numbers}):
        values = [decision.numbers.get(name) for decision in record.decisions]
        table[name] = pd.array(values, dtype="Float64")
    return table


def saved(record: Record) -> pd.DataFrame:
    """One row per tensor that the forward graph keeps for the backward; empty where the record doesn't show it.

    `source` says where an input that is kept comes from, as Python: `L['x']`.
    """
    kept, sources = saved_tensors(record), input_sources(record)
    rows = [
        _saved_row(artifact, entity, sources.get(entity.id))
        for artifact in record.of_stage("forward")
        for entity in artifact.entities
        if entity.id in kept
    ]
    return table_of("saved", rows)


def is_graph(artifact: Artifact) -> bool:
    """Whether an artifact is an FX graph."""
    return any(entity.kind in ("placeholder", "output") for entity in artifact.entities)


def op_counts(artifact: Artifact) -> Counter[str]:
    """How often an FX graph calls each op (`aten.mm.default`)."""
    return Counter(op_name(entity) for entity in artifact.entities if entity.kind == "call")


def op_name(entity: Entity) -> str:
    return str(entity.attrs.get("target") or entity.label)


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
    return {name: attrs.get(name) for name in ("bytes", "module", "file", "line", "code")} | {
        "name": entity.label,
        "graph": artifact.graph,
        "op": op_name(entity) if entity.kind == "call" else "input",
        "dtype": dtype_name(attrs.get("dtype")) or None,
        "shape": shape_text(attrs["shape"]) if "shape" in attrs else None,
        "source": source,
        "id": entity.id,
    }


def _break_row(found: GraphBreak, graph: str | None) -> dict[str, Any]:
    culprit = found.chain[-1] if found.chain else None
    places = {"column": 0, "end_line": 0, "end_column": 0} if culprit is None else asdict(culprit)
    ended = places["end_column"] > 0
    return own_cells("breaks", found) | {
        "where": users_place(found),
        "code": culprit_code(found),
        "graph": graph,
        "ops_before": found.nodes[0],
        "ops_after": found.nodes[1],
        "change": "; ".join(suggestion.text for suggestion in found.suggestions) or None,
        "applicability": "; ".join(suggestion.applicability for suggestion in found.suggestions) or None,
        "caveat": "; ".join(suggestion.caveat for suggestion in found.suggestions if suggestion.caveat) or None,
        "rewrite": next((suggestion.rewrite for suggestion in found.suggestions if suggestion.rewrite), None),
        "settings": "; ".join(line for suggestion in found.suggestions for line in suggestion.settings) or None,
        "column": places["column"] if ended else None,
        "end_line": places["end_line"] or None,
        "end_column": places["end_column"] if ended else None,
        "chain": " > ".join(f"{place_text(link.file, link.line)} in {link.function}" for link in found.chain),
    }


def _guard_row(guard: Guard) -> dict[str, Any]:
    return own_cells("guards", guard, " and ") | {
        "where": place_text(guard.file, guard.line) if guard.file else None,
        "cost_us": microseconds(guard.seconds),
        "symbols": ", ".join(guard.symbols) or None,
    }


def microseconds(seconds: float | None) -> float | None:
    """Seconds as microseconds, to the nanosecond."""
    return None if seconds is None else round(seconds * 1e6, 3)


def _symbol_row(found: Symbol) -> dict[str, Any]:
    return own_cells("symbols", found) | {
        "specialized_by": place_and_code(found.specialized_by) if found.specialized_by else None,
        "conditions": "; ".join(condition_text(condition) for condition in found.conditions) or None,
    }


def _recompile_row(found: Recompile) -> dict[str, Any]:
    closest = closest_failure(found)
    return own_cells("recompiles", found) | {
        "old": closest.old if closest else None,
        "new": closest.new if closest else None,
        "call": found.call_number or None,
        "called_from": place_text(found.call.file, found.call.line) if found.call else None,
        "failures": "; ".join(f"{failure.entry}: {failure.words}" for failure in found.failures),
        "entries": len({failure.entry for failure in found.failures}) or len(found.reasons),
    }


def _frame_row(frame: Frame, breaks: Mapping[str, int], guards: Mapping[str, int]) -> dict[str, Any]:
    counted = {"breaks": breaks.get(frame.id, 0), "guards": guards.get(frame.id, 0)}
    place = frame.called_at
    more = {
        "guards_us": microseconds(frame.guard_seconds),
        "called_from": place_text(place.file, place.line) if place else None,
        "plain": ", ".join(map(str, frame.plain)) or None,
    }
    return own_cells("frames", frame) | counted | more


def steps(record: Record) -> pd.DataFrame:
    """One row per bytecode instruction that TorchDynamo read (`--step`): what it pushed, changed and added."""
    rows = [
        own_cells("steps", step) | {"changed": "; ".join(f"{name} = {value}" for name, value in step.changed.items())}
        for step in record.steps
    ]
    return table_of("steps", rows)


TABLES: dict[str, Callable[[Record], pd.DataFrame]] = {
    table.__name__: table
    for table in (
        breaks, recompiles, guards, symbols, frames, graphs, ops, decisions, saved, kernels, binaries, checks, problems,
        steps,
    )
}  # fmt: skip


class Tables:
    """The tables of a run, each a DataFrame: `run.tables.frames`. Prints as a list of them."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in TABLES:
            raise AttributeError(f"there is no table {name!r}; there are: {', '.join(TABLES)}")
        if name == "binaries":
            self._run.compile_kernels()
        return TABLES[name](self._run.record)

    def __dir__(self) -> list[str]:
        return list(TABLES)

    def __str__(self) -> str:
        return "\n".join(columns([(name, (table.__doc__ or "").splitlines()[0]) for name, table in TABLES.items()]))

    __repr__ = __str__
