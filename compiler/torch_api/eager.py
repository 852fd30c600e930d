"""Eager mode: run code uncompiled, watch each operation, unwrap tensor subclasses."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import config
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from compiler.torch_api import fx


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run functions compiled by torch.compile as plain Python in the block."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
        yield


class Watching(TorchDispatchMode):
    """A dispatch mode that passes the results of each operation to `on_results`."""

    supports_higher_order_operators = True  # such as torch.cond

    def __init__(self, on_results: Callable[[Any], None]) -> None:
        super().__init__()
        self.on_results = on_results

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.on_results(results)
        return results


def as_eager(module: GraphModule) -> GraphModule:
    """A copy of a captured graph with eager checkpoint and invoke_subgraph calls; the graph itself if it has none."""
    bodies = {name: body for name, body in module.named_children() if isinstance(body, GraphModule)}
    eager = {name: as_eager(body) for name, body in bodies.items()}
    if eager == bodies and not any(node.target in _EAGER for node in fx.calls(module)):
        return module
    copied = fx.detached_copy(module)
    copied.meta.update(module.meta)
    for name, body in eager.items():
        setattr(copied, name, body)
    for node in fx.calls(copied):
        node.target = _EAGER.get(node.target, node.target)
    copied.recompile()
    return copied


def needs_scalar_outputs(error: BaseException) -> bool:
    """Whether tracing failed because it read a number from a tensor without `capture_scalar_outputs`."""
    reads = isinstance(error, DataDependentOutputException) and error.func is torch.ops.aten._local_scalar_dense.default
    return reads and not config.capture_scalar_outputs


def _checkpoint(body: GraphModule, *args: Any, **options: Any) -> Any:
    """Call torch.utils.checkpoint.checkpoint with use_reentrant=False, which gives the same numbers.

    TorchDynamo keeps `context_fn`, which selects the saved tensors, in the body's `meta`.
    """
    if context_fn := body.meta.get("_checkpoint_context_fn"):
        options["context_fn"] = context_fn
    preserve = options.pop("preserve_rng_state", True) and not fx.has_fakes(args)  # fake tensors draw no random numbers
    return checkpoint(body, *args, **options | {"use_reentrant": False, "preserve_rng_state": preserve})


_EAGER: Mapping[Node | Any, Callable[..., Any]] = {
    tag_activation_checkpoint: _checkpoint,
    invoke_subgraph: lambda body, _identifier, *args: body(*args),
}
