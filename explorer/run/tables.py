"""Convert a record to pandas DataFrames, one for each kind of fact.

Columns and their order are fixed (`explorer.reading.columns`), also in an empty table. Several values in one cell are
joined to text (`"; "`), so that tables can be printed, sorted and filtered directly.
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
    Collective,
    Entity,
    Frame,
    GraphBreak,
    Guard,
    Kernel,
    Recompile,
    Record,
    Symbol,
    Unit,
)
from explorer.reading.cause import closest_failure, condition_text, culprit_code, place_and_code, users_place
from explorer.reading.data_frames import WideTable, count_table, facts_table, own_cells, table_of
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

    `where` is the innermost line of the user's own code. `file`, `line`, `column` and `code` show the exact expression
    that ended the graph `graph`. `ops_before` and `ops_after` count the ops in this graph and in the graphs after the
    break; `crossing` counts the tensors that this graph returns to Python because of the break. `lost_seconds` is the
    break's cost per call, if timed; `lost_note` explains it. `change`, `rewrite` and `settings` are possible fixes, and
    `applicability` says how far they were tested ("machine-applicable", "maybe" with its `caveat`, "explanation").
    `kind`, `explanation` and `hints` are torch's own words.
    """
    graphs = {name: frame.id for frame in record.frames for name in frame.graphs}
    return table_of("breaks", [_break_row(found, graphs.get(found.ended)) for found in record.breaks])


def guards(record: Record) -> pd.DataFrame:
    """One row per guard: its words, its `argument`, the line that installed it (`where`), the check as Python.

    `failed` counts the calls that failed it. `cost_us` is the time of this check in microseconds, with warm caches.
    `symbols` are the symbolic sizes in it. `internal` marks guards on internals of modules and of torch. Rows are
    grouped by argument, the user's arguments first.
    """
    rows = [_guard_row(guard) for guard in record.guards]
    first = {row["argument"]: index for index, row in reversed(list(enumerate(rows)))}
    return table_of(
        "guards", sorted(rows, key=lambda row: (row["internal"], not row["argument"], first[row["argument"]]))
    )


def symbols(record: Record) -> pd.DataFrame:
    """One row per symbolic size or number: its source, its example value, its range.

    `low` and `high` are inclusive, and NA if there is no bound. `became` is its value if it was specialized, and
    `specialized_by` the line that specialized it. `conditions` are the assumptions about it, each with its line. `also`
    has other symbols that torch assumes to be equal.
    """
    return table_of("symbols", [_symbol_row(found) for found in record.symbols])


def recompiles(record: Record) -> pd.DataFrame:
    """One row per recompilation: its `cause`, `argument`, `old` and `new` value, its call, and a fix.

    These facts refer to the closest cache entry (`closest`); `failures` has the failed guards of all `entries`.
    `graph_change` summarizes the difference of the captured graphs, which `run.diff(frame)` shows. `plain_calls` counts
    the calls that ran as plain Python after a `limit` was reached.
    """
    return table_of("recompiles", [_recompile_row(found) for found in record.recompiles])


def frames(record: Record) -> pd.DataFrame:
    """One row per compilation of a code object: its outcome and reason, and its numbers of breaks and guards.

    `resumes` is the id of the break after which a resume function continues. `restarts` has the reasons why torch
    restarted its analysis. `caller` is the frame that called it, at the line `called_from`. `plain` are the lines that
    certainly ran as plain Python. `guards_us` is torch's measured time of one check of all guards, in microseconds,
    with cold CPU caches.
    """
    counts = [Counter(fact.frame for fact in facts) for facts in (record.breaks, record.guards)]
    return table_of("frames", [_frame_row(frame, *counts) for frame in record.frames])


def stage_times(record: Record) -> pd.DataFrame:
    """One row per artifact: the seconds that torch.compile took to make it, including our recording."""
    compiled = {item.subject: item.seconds for item in record.timings if item.what == "compile"}
    rows = [
        {"stage": artifact.stage, "artifact": artifact.id, "graph": artifact.graph, "seconds": compiled[artifact.id]}
        for artifact in record.artifacts
        if artifact.id in compiled
    ]
    return table_of("stage_times", rows)


def checks(record: Record) -> pd.DataFrame:
    """One row for the whole call, for each result of the compiled code, and for each stage and dtype of its results.

    Errors against eager are absolute, relative to the largest magnitude (`tolerance` is the limit), and in ULPs of the
    result's dtype: the maximum, and the 99th percentile. Near zero a small error has very many ULPs. Columns that
    end in `_float64` have errors against the same computation in float64, also those of eager mode. `node` is the first
    divergent node of the first divergent stage. A stage without a `graph` was run in the whole call, in place of
    compiled code.
    """
    rows = [own_cells("checks", check) | {"stage": check.stage or "compiled code"} for check in record.checks]
    return table_of("checks", rows)


def problems(record: Record) -> pd.DataFrame:
    """One row per problem of a stage, with its reason and a hint."""
    return facts_table("problems", record.problems)


def graphs(record: Record) -> pd.DataFrame:
    """One row per FX graph: numbers of nodes, inputs, calls, distinct ops and outputs, and bytes written by calls."""
    functions = {frame.id: frame.function for frame in record.frames}
    rows = [_graph_row(artifact, functions) for artifact in record.artifacts if is_graph(artifact)]
    return table_of("graphs", rows)


def ops(record: Record) -> pd.DataFrame:
    """How often each op is called in each stage: index `op`, one `Int64` column per stage, in pipeline order.

    The most frequent ops come first. The graphs of a stage are added up. Stage `decomposed`, which has the same
    computation at several levels, is left out (see `run.decompose().operators`).
    """
    return count_table(ops_by_stage(record), "stage")


def ops_by_stage(record: Record) -> dict[str, Counter[str]]:
    """Number of calls of each op, by stage in pipeline order."""
    counts: dict[str, Counter[str]] = {}
    for artifact in record.artifacts:
        if is_graph(artifact) and artifact.stage != "decomposed":
            counts.setdefault(artifact.stage, Counter()).update(op_counts(artifact))
    return {stage: counts[stage] for stage in sorted(counts, key=ranked_stage)}


def kernels(record: Record) -> pd.DataFrame:
    """One row per generated kernel: its kind, number of calls, and bytes that one call reads and writes.

    Registers and other facts of a binary are NA until the kernel is compiled.
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

    Registers and spilled bytes are per thread, shared memory per block, `bytes` and `flops` per launch. `bound_us` is
    the minimum time of a launch at the GPU's peak rates, in microseconds.
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


def collectives(record: Record) -> pd.DataFrame:
    """One row per collective of this rank, in the order of a step: kind, group, bytes, line of Python.

    Bytes are exact: `input_bytes` is what the rank passes in, `output_bytes` what it gets back, `bytes` the larger of
    both, which is the size of the message. `estimate_us` is by torch's cost model, in microseconds, and `exposed_us`
    the part in which the code stands still for it; NA if torch has no model for the target. `wait` is the node that
    waits for the result. `origin` is "hook" for a call outside of all graphs.
    """
    from compiler.timing.overlap import schedules

    exposed = {name: seconds for each in schedules(record) for name, seconds in each.exposed.items()}
    rows = [_collective_row(found, exposed.get(found.id)) for found in record.collectives]
    found = WideTable(table_of("collectives", rows))
    found.printed = ("kind", "half", "group_size", "input_bytes", "output_bytes", "dtype", "estimate_us", "where")
    return found


def _collective_row(found: Collective, exposed: float | None) -> dict[str, Any]:
    line = found.lines[0] if found.lines else None
    return own_cells("collectives", found) | {
        "estimate_us": microseconds(found.seconds),
        "exposed_us": microseconds(exposed),
        "where": place_text(line.file, line.line) if line else None,
        "code": line.code if line else None,
    }


def collective_lines(record: Record) -> pd.DataFrame:
    """One row per line of Python: the collectives at it and in what it calls; lines overlap, and don't add up."""
    from explorer.findings.collectives import sums_by_line

    rows = [
        {
            "where": each.name, "code": each.place.code if each.place else None, "calls": each.calls,
            "input_bytes": each.input_bytes, "output_bytes": each.output_bytes,
            "estimate_us": microseconds(each.seconds), "ids": "; ".join(each.ids),
        }
        for each in sums_by_line(record)
    ]  # fmt: skip
    return table_of("collective_lines", rows)


def linked_entities(record: Record, ids: Iterable[str]) -> pd.DataFrame:
    """One row per entity linked to these ids: stage, artifact, first line in its text, label."""
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
    """One row per decision of a pass, with the reason, and one column for each number that it was based on."""
    table = facts_table("decisions", record.decisions)
    for name in sorted({name for decision in record.decisions for name in decision.numbers}):
        values = [decision.numbers.get(name) for decision in record.decisions]
        table[name] = pd.array(values, dtype="Float64")
    return table


def passes(record: Record) -> pd.DataFrame:
    """One row per MLIR pass of Triton's that changed a kernel: lines removed and added, operations, what it does."""
    rows = [
        own_cells("passes", entity.attrs)
        | {"kernel": artifact.title, "number": number, "name": entity.label, "id": entity.id}
        for artifact in record.of_stage("passes")
        for number, entity in enumerate((each for each in artifact.entities if each.kind == "pass"), 1)
    ]
    return table_of("passes", rows)


def layouts(record: Record) -> pd.DataFrame:
    """One row per layout of a kernel's tiles: threads, elements and copies in them, the values that have it.

    `threads` and `elements_a_thread` are NA for layouts in memory; `copies` threads hold each element.
    """
    found = [(artifact, entity) for artifact in record.of_stage("layouts") for entity in artifact.entities]
    return table_of("layouts", [_layout_row(artifact, entity) for artifact, entity in found])


def _layout_row(artifact: Artifact, entity: Entity) -> dict[str, Any]:
    attrs, bases = entity.attrs, entity.attrs["bases"]
    row = {
        "kernel": artifact.title, "number": attrs["number"], "title": entity.label,
        "layout": attrs["layout"], "shape": " × ".join(map(str, attrs["shape"])), "tensors": attrs["tensors"],
        "values": "; ".join(attrs["values"]), "words": " ".join(attrs["words"]), "problem": attrs["problem"] or None,
        "id": entity.id,
    }  # fmt: skip
    if "register" not in bases:
        return row
    around = [basis for name in ("lane", "warp", "block") for basis in bases[name]]
    return row | {
        "threads": 2 ** (len(bases["lane"]) + len(bases["warp"])),
        "elements_a_thread": 2 ** sum(any(basis) for basis in bases["register"]),
        "copies": 2 ** sum(not any(basis) for basis in around),
    }


def saved(record: Record) -> pd.DataFrame:
    """One row per tensor that the forward graph saves for the backward; empty if the record does not show it.

    `source` is the Python source of a saved input: `L['x']`.
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
    """Number of calls of each op (`aten.mm.default`) in an FX graph."""
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
    """Convert seconds to microseconds, rounded to nanoseconds; None stays None."""
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
    """One row per bytecode instruction that TorchDynamo traced (`--step`): pushed, changed and added values."""
    rows = [
        own_cells("steps", step) | {"changed": "; ".join(f"{name} = {value}" for name, value in step.changed.items())}
        for step in record.steps
    ]
    return table_of("steps", rows)


def units(record: Record) -> pd.DataFrame:
    """One row per unit of FSDP, or bucket of DDP's graphs: its bytes, and the bytes of its collectives.

    `shard_bytes` are kept by this rank between steps. `gathered`, `gathered_again` and `reduced` are bytes of one step:
    gathered in the forward and in the backward, and gradients put into collectives. `policy` is what happens to
    gathered parameters after the forward.
    """
    return table_of("units", [_unit_row(unit, record) for unit in record.units])


def _unit_row(unit: Unit, record: Record) -> dict[str, Any]:
    mine = [found for found in record.collectives if found.id in unit.collectives]
    sent = {half: sum(found.output_bytes for found in mine if (found.kind, found.half) == ("all_gather", half))
            for half in ("forward", "backward")}  # fmt: skip
    return own_cells("units", unit) | {
        "parameters": len(unit.parameters),
        "gathered": sent["forward"],
        "gathered_again": sent["backward"],
        "reduced": sum(found.input_bytes for found in mine if "reduce" in found.kind),
        "graphs": ", ".join(unit.graphs),
    }


def buckets(record: Record) -> pd.DataFrame:
    """One row per `bucket_cap_mb` of DistributedDataParallel: how many graphs and all_reduces it makes, with bytes."""
    rows = [
        own_cells("buckets", plan)
        | {
            "graphs": len(plan.graphs),
            "reductions": len(plan.reductions),
            "graph_bytes": ", ".join(map(str, plan.graphs)),
            "reduction_bytes": ", ".join(map(str, plan.reductions)),
        }
        for plan in record.bucket_plans
    ]
    return table_of("buckets", rows)


TABLES: dict[str, Callable[[Record], pd.DataFrame]] = {
    table.__name__: table
    for table in (
        breaks, recompiles, guards, symbols, frames, graphs, ops, decisions, saved, kernels, binaries, passes, layouts,
        checks, problems, steps, units, buckets, collectives, collective_lines,
    )
}  # fmt: skip


class Tables:
    """The tables of a run, each a DataFrame: `run.tables.frames`. Prints a list of them."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in TABLES:
            raise AttributeError(f"there is no table {name!r}; there are: {', '.join(TABLES)}")
        if name == "binaries":
            self._run.compile_kernels()
        if name in ("passes", "layouts") and self._run.compiler.has_yet_to_make(name):
            self._run.compiler.make_of_kernels(name)
        return TABLES[name](self._run.record)

    def __dir__(self) -> list[str]:
        return list(TABLES)

    def __str__(self) -> str:
        return "\n".join(columns([(name, (table.__doc__ or "").splitlines()[0]) for name, table in TABLES.items()]))

    __repr__ = __str__
