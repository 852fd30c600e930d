"""Inductor's passes on communication for a simulated rank, whose code is written for GPUs that may not be here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist

from compiler.torch_api.collectives import is_simulated
from compiler.torch_api.patching import replace_attribute

_SCHEDULING = "aten_distributed_optimizations.enable_overlap_scheduling"


@contextmanager
def allow_passes_of_ranks(options: Mapping[str, object]) -> Iterator[None]:
    """In the block, let Inductor run the passes on communication that its options ask for, on a simulated rank.

    Overlap scheduling uses its estimate of a matmul's time where it would measure one. Async TP (`_micro_pipeline_tp`)
    is told that NCCL and symmetric memory are there; in a real job, its group needs
    `torch.distributed._symmetric_memory.enable_symm_mem_for_group(name)`.
    """
    with ExitStack() as stack:
        if options.get(_SCHEDULING) and is_simulated():
            from torch._inductor.fx_passes import overlap_scheduling

            scheduler = overlap_scheduling.OverlapScheduler
            aligns = "_align_compute_nodes_runtime_estimations_across_all_distributed_ranks"
            measure = "benchmark_node_with_cache_key"
            stack.enter_context(replace_attribute(overlap_scheduling, measure, lambda _: _estimate_matmul))
            stack.enter_context(replace_attribute(scheduler, aligns, lambda _: _align_nothing))
        if options.get("_micro_pipeline_tp") and is_simulated():
            from torch.distributed import _symmetric_memory

            stack.enter_context(replace_attribute(dist, "is_nccl_available", lambda _: lambda: True))
            is_enabled = "is_symm_mem_enabled_for_group"
            stack.enter_context(replace_attribute(_symmetric_memory, is_enabled, lambda _: lambda _name: True))
        yield


def _estimate_matmul(node: Any, *_: Any, **__: Any) -> tuple[float, None]:
    """Milliseconds of a node by the scheduling's own cost model, and no key of a cache of measured times."""
    from torch._inductor.fx_passes import overlap_scheduling

    module: Any = overlap_scheduling
    older = "estimate_runtime_analytical"  # in torch 2.11
    return getattr(module, older if hasattr(module, older) else "estimate_roofline_runtime_ms")(node), None


def _align_nothing(_: Any) -> None:
    """Gather no times from the other ranks: estimates are the same on all."""
