"""AOTAutograd, as a backend calls it: what it is given, what it tells while it compiles, and what it does besides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch._dynamo.backends.common as aot_backends
import torch._functorch._aot_autograd.graph_compile as graph_compile
import torch._functorch.config as functorch_config
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._dynamo.utils import flatten_graph_inputs
from torch._functorch._aot_autograd.runtime_wrappers import coerce_to_expected_memory_format
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import CompileContext, TracingContext
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from compiler.torch_api.patching import replaced

__all__ = ["CompileContext", "TracingContext", "coerce_to_expected_memory_format", "flatten_graph_inputs"]

Call = Callable[[list[Any]], Sequence[Any]]
Compile = Callable[[GraphModule, Sequence[Any]], Call]

untraced = torch._dynamo.disable
"""(function, reason="…") -> the same function, which TorchDynamo does not trace."""

_SKIPPED = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def aot_module(module: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a module as torch._dynamo.backends.common's `aot_module_simplified` does."""
    found: Callable[..., Any] = aot_backends.aot_module_simplified(module, inputs, **options)  # type: ignore[attr-defined]
    return found


def boxed(call: Call) -> Call:
    """Tell AOTAutograd that a call takes its arguments in one list, which it may empty."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def forward_facts() -> Any:
    """AOTAutograd's facts of the graph that is compiled (`ViewAndMutationMeta`), None where there are none."""
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def with_backward() -> AbstractContextManager[None]:
    """AOTAutograd compiles a backward in the block along with its forward, not when it is first asked for."""
    manager: AbstractContextManager[None] = functorch_config.patch(force_non_lazy_backward_lowering=True)
    return manager


def merges_equal_nodes() -> bool:
    """Whether AOTAutograd is set to make one of equal nodes (torch._functorch.config.cse)."""
    return bool(functorch_config.cse)


def min_cut_partition(joint: GraphModule, inputs: Any, **options: Any) -> Any:
    """Torch's partitioner, without its own pass over equal nodes."""
    with functorch_config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def without_python_code() -> AbstractContextManager[None]:
    """Graph modules made in the block get no Python code: it takes time, and nobody calls them."""
    manager: AbstractContextManager[None] = _use_lazy_graph_module(True)
    return manager


@contextmanager
def without_unread_logs() -> Iterator[None]:
    """AOTAutograd writes its graphs as text for torch's structured trace and logs: not where nobody is to read it."""
    logs = (graph_compile.aot_joint_log, graph_compile.aot_graphs_log)
    with ExitStack() as stack:
        if not logging.getLogger("torch.__trace").handlers and not any(log.isEnabledFor(logging.INFO) for log in logs):
            for name in ("_log_inference_graph", "_log_joint_graph", "_log_fw_bw_graphs"):
                stack.enter_context(replaced(graph_compile, name, _disable_log))
        yield


def _disable_log(log: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *graphs_and_config: log(*graphs_and_config[:-1], replace(graphs_and_config[-1], enable_log=False))


def never_trace(function: Any) -> None:
    """Let TorchDynamo trace neither a function's frames nor what they call."""
    set_code_exec_strategy(function.__code__, _SKIPPED)
