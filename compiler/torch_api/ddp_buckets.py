"""Observe DDPOptimizer, which compiles TorchDynamo's graph of a DistributedDataParallel model bucket by bucket.

`torch._dynamo.backends.distributed.DDPOptimizer` splits one captured graph so that the gradients of a bucket can be
reduced while the backward of the buckets before it still runs. The backend compiles each part separately.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._dynamo.utils import get_optimize_ddp_mode
from torch.fx import GraphModule
from torch.nn import Module

from compiler.record import BucketPlan
from compiler.torch_api.fx import has_fakes
from compiler.torch_api.patching import Function, call_instead, replace_attribute


@dataclass(frozen=True, slots=True)
class Bucket:
    """One part of the captured graph `whole`; `bytes` is the size of its parameters that require gradients."""

    name: str
    index: int
    count: int
    bytes: int
    parameters: tuple[str, ...]
    whole: GraphModule


Observe = Callable[[GraphModule, Callable[[], Any], Bucket | None], Any]


def compile_observed(compile_graph: Function, module: GraphModule, run: Callable[[], Any], observe: Observe) -> Any:
    """Compile a captured graph, and report each graph that the backend gets: one per DDP bucket.

    `run` calls `compile_graph` on `module`. `observe(graph, compile, bucket)` returns the compiled graph.
    """
    optimizer = getattr(compile_graph, "__self__", None)
    if not isinstance(optimizer, DDPOptimizer):
        return observe(module, run, None)
    indices = itertools.count()

    def observe_part(compile_part: Function, part: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        bucket = None if part is module else _bucket(optimizer, next(indices), module)
        return observe(part, partial(compile_part, part, inputs, **options), bucket)

    with replace_attribute(optimizer, "backend_compile_fn", call_instead(observe_part)):
        return run()


def _bucket(optimizer: DDPOptimizer, index: int, whole: GraphModule) -> Bucket:
    """The DDP bucket with this index. Buckets and the names of split_module are both in graph order."""
    found = optimizer.buckets[index]
    parameters = tuple(dict.fromkeys(found.params))
    return Bucket(f"submod_{index}", index, len(optimizer.buckets), found.size, parameters, whole)


_MIB = 2**20
CAPS = (1, 5, 10, 25, 50, 100)
"""Values of bucket_cap_mb to compare. DDPOptimizer takes none below 1."""


class _FoundError(Exception):
    """Ends DDPOptimizer when it has chosen its buckets. `args` are their sizes in bytes, in the forward's order."""


class _Planner(DDPOptimizer):
    """A DDPOptimizer that chooses buckets, and compiles nothing."""

    @property
    def buckets(self) -> Any:
        raise AttributeError

    @buckets.setter
    def buckets(self, found: Sequence[Any]) -> None:
        raise _FoundError(*(bucket.size for bucket in found))


def bucket_plans(graph: GraphModule, ddp: Any) -> list[BucketPlan]:
    """The buckets of a DistributedDataParallel model, whose graph this is, at its own bucket_cap_mb and at others."""
    own = ddp.bucket_bytes_cap / _MIB
    return [
        BucketPlan(cap, _graph_sizes(graph, int(cap * _MIB)), _reduction_sizes(ddp, int(cap * _MIB), cap == own),
                   is_used=cap == own)
        for cap in sorted({own, *CAPS})
    ]  # fmt: skip


def _graph_sizes(graph: GraphModule, cap: int) -> tuple[int, ...]:
    """Bytes of the parameters in each graph that DDPOptimizer makes; () if it is off, or refuses the cap."""
    if get_optimize_ddp_mode() != "ddp_optimizer" or cap < dist._DEFAULT_FIRST_BUCKET_BYTES:  # type: ignore[attr-defined]
        return ()
    try:
        _Planner(cap, lambda *_: None).compile_fn(graph, [])  # type: ignore[arg-type]
    except _FoundError as found:
        return found.args
    return ()


def _reduction_sizes(ddp: Any, cap: int, is_own: bool) -> tuple[int, ...]:
    """Bytes of each all_reduce, by the rule of DDP's reducer, if gradients are ready in reverse order of parameters.

    The first all_reduce has a smaller cap, unless the user sets bucket_cap_mb.
    """
    parameters = [each for each in reversed(list(ddp.module.parameters())) if each.requires_grad]
    is_default = is_own and getattr(ddp, "bucket_bytes_cap_default", cap == 25 * _MIB)
    limits = [min(cap, dist._DEFAULT_FIRST_BUCKET_BYTES), cap] if is_default else [cap]  # type: ignore[attr-defined]
    found = dist._compute_bucket_assignment_by_size(parameters, limits, [False] * len(parameters))[0]  # type: ignore[attr-defined]
    return tuple(sum(parameters[index].nbytes for index in bucket) for bucket in found)


def parameter_paths(names: Sequence[str], module: Module) -> tuple[str, ...]:
    """Paths of parameters in a module, by TorchDynamo's names; a name without a path stays as it is."""
    paths = {}
    for path, _ in module.named_parameters():
        *modules, own = (part for part in path.split(".") if part != "_orig_mod")
        paths["".join(f"modules_{part}_" for part in modules) + f"parameters_{own}_"] = ".".join([*modules, own])
    by_length = sorted(paths, key=len, reverse=True)
    return tuple(next((paths[end] for end in by_length if name.endswith(end)), name) for name in names)


def run_or_propagate(run: Function, propagate: Function) -> Function:
    """A function that calls `run` on real arguments, `propagate` on DDPOptimizer's fake tensors."""
    return lambda *args: (propagate if has_fakes(args) else run)(*args)


BUCKET_CAP_HINT = (
    "pass bucket_cap_mb=1 or more to DistributedDataParallel, or set torch._dynamo.config.optimize_ddp = False"
)


def bucket_cap_refusal(error: AssertionError) -> str:
    """The message for DDPOptimizer's error about `bucket_cap_mb`; "" for any other error."""
    if "First bucket should be smaller/equal" not in str(error):
        return ""
    return (
        "torch.compile raises an error for this model: DistributedDataParallel has a bucket_cap_mb below 1 MiB, "
        "the size of DDPOptimizer's first bucket; the model ran as plain Python"
    )
