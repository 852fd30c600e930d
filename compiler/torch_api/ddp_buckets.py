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

from torch._dynamo.backends.distributed import DDPOptimizer
from torch.fx import GraphModule

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


def note_fake_reduction(error: BaseException) -> None:
    """Add a note with the workaround to the error of a DDP backward in a fake process group."""
    if "expected the hook result is either a Tensor or a TensorList" in str(error):
        error.add_note(
            'A process group with backend="fake" returns no reduced gradients, so DistributedDataParallel\'s backward '
            "fails without torch.compile too. Before the first call, register a communication hook:\n"
            "def keep(state, bucket):\n"
            "    future = torch.futures.Future()\n"
            "    future.set_result(bucket.buffer())\n"
            "    return future\n"
            "model.register_comm_hook(None, keep)"
        )
