"""Inductor's fusion of matmuls with collectives (async tensor parallelism) on machines that can't run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch.distributed as dist

from compiler.torch_api.collectives import is_simulated
from compiler.torch_api.patching import replace_attribute


@contextmanager
def allow_async_tp(options: Mapping[str, object]) -> Iterator[None]:
    """In the block, answer Inductor that NCCL and symmetric memory are there, if its options ask for async TP.

    Only for a simulated rank, whose code is written and not run. In a real job, the group needs
    `torch.distributed._symmetric_memory.enable_symm_mem_for_group(name)`.
    """
    if not options.get("_micro_pipeline_tp") or not is_simulated():
        yield
        return
    from torch.distributed import _symmetric_memory

    with (
        replace_attribute(dist, "is_nccl_available", lambda _: lambda: True),
        replace_attribute(_symmetric_memory, "is_symm_mem_enabled_for_group", lambda _: lambda _name: True),
    ):
        yield
