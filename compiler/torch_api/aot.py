"""AOTAutograd as a backend calls it: compile a module, read its metadata, switch off its logs.

While its graphs are compiled, the tracing context holds metadata of inputs and outputs (`ViewAndMutationMeta` of
torch._functorch._aot_autograd.schemas).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch._dynamo.backends.common as aot_backends
import torch._functorch._aot_autograd.graph_compile as graph_compile
import torch._functorch.config as functorch_config
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch._aot_autograd.runtime_wrappers import coerce_to_expected_memory_format
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import CompileContext, TracingContext
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from compiler.torch_api.patching import Function, call_instead, replace_attributes

__all__ = ["CompileContext", "TracingContext", "coerce_to_expected_memory_format", "flatten_graph_inputs"]

Call = Callable[[list[Any]], Sequence[Any]]
Compile = Callable[[GraphModule, Sequence[Any]], Call]

untraced = torch._dynamo.disable
"""(function, reason="…") -> a wrapper of the function that TorchDynamo does not trace."""

_SKIPPED = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def aot_module(module: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a module with `aot_module_simplified` of torch._dynamo.backends.common.

    The module is counted, as torch's own backends do: otherwise DDPOptimizer would not make the call that AOTAutograd
    answers with fake tensors, and the first call of the program would get them.
    """
    counters["aot_autograd"]["total"] += 1
    return aot_backends.aot_module_simplified(module, inputs, **options)  # type: ignore[attr-defined]


def mark_boxed(call: Call) -> Call:
    """Mark a callable as boxed for AOTAutograd: it takes one list of arguments, and may clear the list."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def forward_facts() -> Any:
    """AOTAutograd's `ViewAndMutationMeta` of the graph being compiled, or None."""
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def with_backward() -> AbstractContextManager[None]:
    """Compile each backward in the block together with its forward, not lazily."""
    return functorch_config.patch(force_non_lazy_backward_lowering=True)


def merges_equal_nodes() -> bool:
    """Whether AOTAutograd eliminates common subexpressions (torch._functorch.config.cse)."""
    return bool(functorch_config.cse)


def min_cut_partition(joint: GraphModule, inputs: Any, **options: Any) -> Any:
    """Partition a joint graph with torch's min-cut partitioner, without its CSE pass."""
    with functorch_config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def without_python_code() -> AbstractContextManager[None]:
    """Generate no Python code for graph modules in the block, to save time: the modules are never called."""
    return _use_lazy_graph_module(True)


def without_unread_logs() -> AbstractContextManager[None]:
    """Keep AOTAutograd from logging its graphs in the block, unless its logs or the structured trace are on."""
    logs = (graph_compile.aot_joint_log, graph_compile.aot_graphs_log)
    names = ("_log_inference_graph", "_log_joint_graph", "_log_fw_bw_graphs")
    is_read = logging.getLogger("torch.__trace").handlers or any(log.isEnabledFor(logging.INFO) for log in logs)
    return replace_attributes((graph_compile, name, call_instead(_log_nothing)) for name in names if not is_read)


def _log_nothing(log: Function, *graphs_and_config: Any) -> Any:
    return log(*graphs_and_config[:-1], replace(graphs_and_config[-1], enable_log=False))


def never_trace(function: Any) -> None:
    """Keep TorchDynamo from tracing a function and everything that it calls."""
    set_code_exec_strategy(function.__code__, _SKIPPED)


@dataclass(frozen=True, slots=True)
class InputFacts:
    """AOTAutograd's metadata of one input.

    `mutated` is "in" if the graph writes the new value, "after" if the runtime wrapper does, "" if not mutated.
    """

    requires_grad: bool
    is_leaf: bool
    mutated: str
    metadata_mutated: bool


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """One output of the user's function.

    `kind` is the name of torch's `OutputType`. `base` is AOTAutograd's index of the tensor that the output
    aliases, or None.
    """

    kind: str
    base: int | None
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class AotFacts:
    """AOTAutograd's metadata of all inputs and outputs, in the user's order.

    `first_output` is the index of the user's output 0 among the forward graph's outputs. The first `returned` of these
    outputs go to the caller, the others to the backward. `subclasses` are the types of flattened tensor subclasses;
    if there are any, indices in the graph differ from the user's.
    """

    inputs: tuple[InputFacts, ...]
    outputs: tuple[OutputFacts, ...]
    first_output: int
    returned: int
    subclasses: tuple[str, ...]


def aot_facts() -> AotFacts | None:
    """Metadata of the graphs being compiled; None outside of a compilation."""
    metadata = forward_facts()
    if metadata is None:
        return None
    return AotFacts(
        inputs=tuple(
            InputFacts(item.requires_grad, item.is_leaf, _place(item.mutation_type.name), item.mutates_metadata)
            for item in metadata.input_info
        ),
        outputs=tuple(
            OutputFacts(item.output_type.name, item.base_idx, item.requires_grad) for item in metadata.output_info
        ),
        first_output=metadata.num_mutated_inp_runtime_indices,
        returned=metadata.num_forward_returns,
        subclasses=_subclasses([*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta]),
    )


def _place(mutation: str) -> str:
    return {"MUTATED_IN_GRAPH": "in", "MUTATED_OUT_GRAPH": "after"}.get(mutation, "")


def _subclasses(metas: list[object]) -> tuple[str, ...]:
    kinds = (getattr(meta, "original_subclass_type", None) for meta in metas)
    return tuple(dict.fromkeys(kind.__name__ for kind in kinds if kind is not None))


Boxed = Callable[[list[Any]], Any]


class Replaceable:
    """A boxed callable that calls `run`, or `instead` once `instead` is set."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._boxed_call = True  # an instance attribute: torch's wrappers copy `__dict__`
        self._run: Boxed = run if getattr(run, "_boxed_call", False) else make_boxed_func(run)
        self.instead: Boxed | None = None

    def __call__(self, arguments: list[Any]) -> Any:
        return self._run(arguments) if self.instead is None else self.instead(arguments)
