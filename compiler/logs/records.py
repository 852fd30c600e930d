"""A record made from the structured trace of one process, as if tcompile had observed its compilations."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from compiler.logs.events import Event, Log
from compiler.record import Artifact, Environment, GraphHalf, Record
from compiler.record.builder import Builder
from compiler.record.options import Options

KNOWN_KINDS = frozenset(
    (
        "artifact", "str", "chromium_event", "dynamo_start", "dynamo_output_graph", "dynamo_cpp_guards_str",
        "dynamo_guards", "dynamo_error", "describe_storage", "describe_tensor", "describe_source",
        "aot_joint_graph", "aot_forward_graph", "aot_backward_graph", "aot_inference_graph",
        "inductor_output_code", "inductor_post_grad_graph", "compilation_metrics", "bwd_compilation_metrics",
        "create_symbol", "create_unbacked_symbol", "guard_added", "guard_added_fast", "symbolic_shape_specialization",
        "compiled_autograd_graph", "optimize_ddp_split_graph", "optimize_ddp_split_child", "graph_dump",
        "exported_program", "export", "missing_fake_kernel", "mismatched_fake_kernel", "propagate_real_tensors",
        "propagate_real_tensors_provenance", "guard_on_data_dependent_error", "expression_created", "rank", "link",
        "dump_file", "aot_inductor_result",
    )
)  # fmt: skip
"""Kinds of events that tcompile shows or knows to leave out; others are counted (`Job.unknown`)."""

_GRAPHS: dict[str, tuple[str, GraphHalf]] = {
    "dynamo_output_graph": ("captured", ""),
    "after_pre_grad_graph": ("pre_grad", ""),
    "aot_joint_graph": ("joint", ""),
    "aot_forward_graph": ("forward", "forward"),
    "aot_backward_graph": ("backward", "backward"),
    "aot_inference_graph": ("inference", "inference"),
    "inductor_post_grad_graph": ("post_grad", ""),
    "inductor_output_code": ("kernels", ""),
}
"""Stage and half of an event, by its kind or an artifact's name; the half of the last two is that of the code."""


def record_of(log: Log, ids: Collection[str] | None = None) -> Record:
    """The record of a log's compilations, or of those with the given ids ("0/1", torch's names)."""
    builder = Builder(" ".join(log.names), Options(), Environment())
    wanted = None if ids is None else set(ids)
    halves: dict[str, GraphHalf] = {}
    for event, stage, half in _graph_events(log):
        if wanted is not None and event.compile_id not in wanted:
            continue
        graph = event.compile_id.rpartition("!")[2]
        if half:
            halves[graph] = half
        own = half or halves.get(graph, "inference") if stage in ("post_grad", "kernels") else half
        place = graph if own in ("", stage) else f"{graph} {own}"
        builder.add(Artifact(f"{stage}[{place}]", stage, stage, "python", event.payload, graph, half=own))
    return builder.record().with_fields(origin="log", trust="untrusted")


def _graph_events(log: Log) -> Iterator[tuple[Event, str, GraphHalf]]:
    for event in log.of("artifact", *_GRAPHS):
        if (found := _GRAPHS.get(event.name or event.kind)) is not None:
            yield event, *found
