"""The columns of every table: names, order and dtypes.

The most important columns come first, so that they fit on the screen. Text is `string`, an enumeration is `category`,
a flag is `boolean`, a count or a size in bytes is `Int64`, a duration in seconds is `Float64`. A column that mixes ints
and floats (the value of a symbol) is `object`.
"""

from __future__ import annotations

from typing import Final

Columns = dict[str, str]


def columns(*runs: tuple[str, str]) -> Columns:
    """Build a mapping of columns from dtypes and space-separated names: `("Int64", "ops_before ops_after")`."""
    return {name: dtype for dtype, names in runs for name in names.split()}


COLUMNS: Final[dict[str, Columns]] = {
    "breaks": columns(
        ("string", "where code what"),
        ("category", "outcome"),
        ("string", "graph"),
        ("Int64", "ops_before ops_after crossing"),
        ("float64", "lost_seconds"),
        ("string", "change applicability caveat kind gb_id settings rewrite frame resumed_by consequence"),
        ("Int64", "crossing_bytes"),
        ("string", "lost_note file"),
        ("Int64", "line column end_line end_column"),
        ("string", "function chain explanation hints link reason stack id"),
    ),
    "guards": columns(
        ("string", "argument words frame where"),
        ("Int64", "failed"),
        ("Float64", "cost_us"),
        ("string", "symbols"),
        ("boolean", "internal"),
        ("category", "kind"),
        ("string", "source code file"),
        ("Int64", "line"),
        ("string", "id"),
    ),
    "symbols": columns(
        ("string", "name source"),
        ("object", "hint low high"),
        ("string", "became specialized_by conditions also frame"),
    ),
    "recompiles": columns(
        ("string", "frame function"),
        ("category", "cause"),
        ("string", "argument old new graph_change"),
        ("Int64", "call"),
        ("string", "advice applicability settings limit plain_calls failures"),
        ("Int64", "entries"),
        ("string", "closest called_from file"),
        ("Int64", "line"),
        ("string", "reasons id"),
    ),
    "frames": columns(
        ("string", "id function"),
        ("Int64", "line"),
        ("category", "outcome"),
        ("string", "graphs resumes"),
        ("Int64", "breaks guards"),
        ("Float64", "guards_us"),
        ("string", "caller called_from plain reason restarts file"),
    ),
    "graphs": columns(
        ("string", "artifact"),
        ("stage", "stage"),
        ("string", "graph function"),
        ("Int64", "nodes inputs calls ops outputs bytes"),
    ),
    "kernels": columns(
        ("string", "name graph artifact"),
        ("category", "language category"),
        ("Int64", "calls bytes nodes first_line last_line registers spill_bytes shared_memory"),
        ("Float64", "occupancy_percent bound_us"),
        ("string", "id"),
    ),
    "binaries": columns(
        ("string", "kernel graph"),
        ("category", "target"),
        ("string", "config"),
        ("Int64", "registers spill_bytes shared_memory threads programs"),
        ("Float64", "occupancy_percent"),
        ("string", "limiter"),
        ("Int64", "load_bits store_bits bytes flops"),
        ("Float64", "intensity bound_us"),
        ("category", "bound"),
        ("Int64", "configs"),
        ("string", "id"),
    ),
    "linked": columns(
        ("stage", "stage"),
        ("string", "artifact"),
        ("Int64", "line"),
        ("string", "label id"),
    ),
    "decisions": columns(
        ("category", "pass_name"),
        ("string", "graph"),
        ("category", "verdict"),
        ("string", "subjects why"),
    ),
    "saved": columns(
        ("string", "name graph op"),
        ("category", "dtype"),
        ("string", "shape"),
        ("Int64", "bytes"),
        ("string", "source module file"),
        ("Int64", "line"),
        ("string", "code id"),
    ),
    "timings": columns(
        ("string", "name"),
        ("category", "what device"),
        ("Float64", "seconds low high speedup speedup_low speedup_high compile_seconds"),
        ("Int64", "break_even_calls peak_bytes graphs kernels launches"),
        ("Float64", "guard_seconds wrapper_seconds launch_seconds gpu_seconds stream_seconds"),
        ("Int64", "rounds calls_a_round"),
        ("string", "backend mode notes problem"),
    ),
    "stage_times": columns(
        ("stage", "stage"),
        ("string", "artifact graph"),
        ("Float64", "seconds"),
    ),
    "checks": columns(
        ("string", "stage graph subject dtype"),
        ("category", "verdict"),
        ("string", "words"),
        ("float64", "max_absolute mean_absolute max_relative tolerance p99_ulps max_ulps"),
        ("float64", "max_absolute_float64 mean_absolute_float64 max_relative_float64"),
        ("float64", "eager_absolute_float64"),
        ("string", "node note"),
    ),
    "problems": columns(
        ("stage", "stage"),
        ("string", "graph reason hint"),
    ),
}
"""Table -> column -> dtype. `stage` is a category in pipeline order. `decisions` has an extra `Float64` column for
each number that its passes report, `binaries` an extra `Int64` column (`mix_load`) for each class of instructions."""

ASKED: Final[dict[str, Columns]] = {
    "passes": columns(
        ("string", "kernel"),
        ("Int64", "number"),
        ("category", "pipeline"),
        ("string", "name argument part"),
        ("Int64", "removed added"),
        ("boolean", "failed"),
        ("string", "operations words id"),
    ),
    "layouts": columns(
        ("string", "kernel"),
        ("Int64", "number"),
        ("string", "title layout shape"),
        ("Int64", "tensors threads elements_a_thread copies"),
        ("string", "values words problem id"),
    ),
    "units": columns(
        ("string", "name wrapper"),
        ("Int64", "parameters bytes shard_bytes gathered gathered_again reduced"),
        ("category", "policy"),
        ("boolean", "prefetched"),
        ("string", "dtype gathered_as reduced_as"),
        ("Int64", "shards replicas"),
        ("string", "graphs id"),
    ),
    "buckets": columns(
        ("Float64", "cap_mb"),
        ("boolean", "is_used"),
        ("Int64", "graphs reductions"),
        ("string", "graph_bytes reduction_bytes graph"),
    ),
    "collectives": columns(
        ("category", "kind"),
        ("string", "group"),
        ("Int64", "group_size bytes input_bytes output_bytes"),
        ("category", "dtype half"),
        ("Float64", "estimate_us exposed_us"),
        ("string", "algorithm where code cause graph"),
        ("category", "reduction origin"),
        ("Int64", "tensors order"),
        ("string", "operator wait id"),
    ),
    "collective_lines": columns(
        ("string", "where code"),
        ("Int64", "calls input_bytes output_bytes"),
        ("Float64", "estimate_us"),
        ("string", "ids"),
    ),
    "overlap": columns(
        ("string", "pass"),
        ("Int64", "collectives bytes"),
        ("Float64", "communication_us exposed_us step_us"),
        ("string", "problem"),
    ),
    "steps": columns(
        ("string", "frame"),
        ("Int64", "attempt depth"),
        ("string", "function file"),
        ("Int64", "line offset"),
        ("category", "opcode"),
        ("string", "argument pushed changed nodes guards ended"),
    ),
    "kernel_times": columns(
        ("string", "name"),
        ("category", "side half"),
        ("float64", "us share launches"),
        ("string", "where"),
        ("float64", "bandwidth_percent peak_percent gb_per_second tflop_per_second"),
        ("Int64", "bytes flops"),
        ("string", "op functions"),
        ("category", "device"),
        ("string", "id"),
    ),
    "line_times": columns(
        ("string", "where code"),
        ("category", "side half"),
        ("float64", "us total_us share"),
        ("category", "device"),
        ("string", "id"),
    ),
    "sites": columns(
        ("string", "file"),
        ("Int64", "line"),
        ("string", "code what"),
        ("boolean", "as_it_is"),
        ("string", "fix tried change applicability kind behind branch origins function note"),
        ("Int64", "column"),
        ("string", "id"),
    ),
    "causes": columns(
        ("string", "file"),
        ("Int64", "line"),
        ("string", "code kind what argument old new"),
        ("Int64", "count"),
        ("string", "functions calls"),
        ("boolean", "as_it_is"),
        ("string", "fix change code_tried tried"),
        ("Int64", "before after"),
        ("string", "site origins"),
        ("Int64", "column"),
        ("string", "id"),
    ),
    "advice": columns(
        ("Int64", "number"),
        ("string", "title"),
        ("Float64", "gain_seconds"),
        ("category", "gain_of"),
        ("Float64", "gain_share"),
        ("category", "basis"),
        ("string", "change"),
        ("boolean", "can_be_tried"),
        ("Float64", "gained_seconds gained_low gained_high"),
        ("boolean", "holds"),
        ("string", "numbers found evidence how"),
        ("category", "rule"),
        ("string", "id"),
    ),
    "phases": columns(
        ("string", "name"),
        ("category", "part"),
        ("Float64", "seconds own_seconds"),
        ("string", "graph parent"),
        ("Int64", "count"),
    ),
    "sweep": columns(("Int64", "batch"), ("string", "dtype")) | COLUMNS["timings"] | columns(("string", "noise")),
    "partitions": columns(
        ("string", "graph partition"),
        ("Float64", "budget"),
        ("Int64", "saved saved_bytes activation_bytes recomputed recomputed_flops recomputed_bytes"),
        ("Int64", "forward_ops backward_ops"),
    ),
    "saving": columns(
        ("string", "way"),
        ("category", "outcome"),
        ("Int64", "bytes"),
        ("float64", "difference"),
        ("Float64", "seconds"),
        ("string", "code words"),
    ),
    "kept": columns(
        ("category", "verdict"),
        ("string", "name op"),
        ("Int64", "bytes flops"),
        ("string", "why"),
    ),
}
"""Columns of tables that are computed on request, and of profiles. Each table has its own module."""
