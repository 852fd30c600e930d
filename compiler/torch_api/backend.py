"""What our own backend needs of torch: AOTAutograd around our compiler, Inductor's decompositions less those that hurt
us, what an operator's schema says, and views made in the least time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch._dynamo.backends.common as aot_backends
import torch._functorch._aot_autograd.graph_compile as graph_compile
import torch._functorch.config as functorch_config
from torch._C._dynamo.guards import _empty_strided_cpu, _reinterpret_tensor  # type: ignore[attr-defined]
from torch._dynamo.utils import flatten_graph_inputs
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.utils._python_dispatch import _disable_current_modes

from compiler.torch_api.data_sizes import asks_data, divided
from compiler.torch_api.decomposition_tables import is_operator, is_random, table
from compiler.torch_api.direct import Watched, is_autocast_on, without_forward, written_inputs
from compiler.torch_api.direct_training import WatchedTraining, written_out
from compiler.torch_api.mended import MENDED
from compiler.torch_api.patching import replaced
from compiler.torch_api.pooling import POOLING
from compiler.torch_api.random_numbers import DECOMPOSITIONS, partition
from compiler.torch_api.repeats import without_repeats
from compiler.torch_api.saved import keep_what_is_saved
from compiler.torch_api.traced_again import copying
from compiler.torch_api.user_triton import operators_kept_whole

_backends: Any = aot_backends
Call = Callable[[list[Any]], Sequence[Any]]
Compile = Callable[[GraphModule, Sequence[Any]], Call]

empty_on_cpu = _empty_strided_cpu
"""(sizes, strides, dtype) -> a tensor in memory of its own, with less ado than torch.empty_strided."""

view_of_memory = _reinterpret_tensor
"""(tensor, sizes, strides, offset) -> a view of its memory; the offset is in elements from where the tensor starts."""

_RANDOM = (
    "aten.native_dropout", "aten.bernoulli", "aten.rand_like", "aten.randn_like", "aten.randint_like", "aten.uniform",
    "aten.normal", "aten.exponential", "aten.cauchy", "aten.geometric", "aten.log_normal", "aten.rrelu_with_noise",
    "aten.multinomial", "aten.randint", "aten.rand", "aten.randn",
)  # fmt: skip
without_modes = _disable_current_modes
"""In a block of it tensors are real: AOTAutograd compiles under a mode that makes fake ones."""

FEW = 24
"""A graph of no more nodes meets few operators again: to remember how they were traced takes longer than to trace."""

_KEPT_WHOLE = (
    "aten.addmm", "aten.mm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.addmv", "aten.dot",
    "aten.max_pool2d_with_indices_backward",
    "aten.avg_pool2d_backward", "aten.convolution_backward", "aten.embedding_dense_backward",
    "aten._scaled_dot_product_flash_attention_for_cpu", "aten.native_dropout_backward",
    "aten.binary_cross_entropy_with_logits_backward", "aten.grid_sampler_2d", "aten.logit", "aten.lerp",
    "aten.addcdiv", "aten.cat", "aten.round", "aten.index_add", "aten.index_copy", "aten.index_select",
)  # fmt: skip
"""Not decomposed: products, which libraries do best; those of `_RANDOM` where numbers are to be eager's; what falls
into many small steps, or into operators that only Inductor has, where ATen has one good kernel; what eager rounds
once where the steps round each; what gives other strides than eager, as one tensor alone that is joined; and where
eager has an error for negative places, which the steps take from the end."""


@cache
def decompositions(random: str = "philox") -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions, less those that hurt us. With `random` "eager", random operators stay as they are."""
    kept, own = (_KEPT_WHOLE + _RANDOM, {}) if random == "eager" else (_KEPT_WHOLE, DECOMPOSITIONS)
    found = {op: function for op, function in table("Inductor").items() if str(op.overloadpacket) not in kept}
    return {**found, **own, **MENDED, **POOLING}


def compile_with_autograd(
    module: GraphModule,
    inputs: Sequence[Any],
    forward: Compile,
    backward: Compile,
    inference: Compile,
    random: str = "philox",
    is_direct: bool = True,
) -> Callable[..., Any]:
    """AOTAutograd with torch's min-cut partitioner: each of the three compiles one graph of ATen operators. `random`
    numbers are to be "eager" mode's, or those of "philox". With `is_direct` later calls may leave AOTAutograd's
    wrappers out. Kernels know nothing of forward derivatives, nor has TorchDynamo guards against them: where there may
    be any, PyTorch runs the graph that it captured.
    """
    if any(isinstance(value, list | tuple | dict) for value in inputs):
        options: Any = {"random": random, "is_direct": is_direct}
        again = partial(compile_with_autograd, forward=forward, backward=backward, inference=inference, **options)
        return flatten_graph_inputs(module, inputs, again)
    forward, backward, inference = _in_pieces(forward, inference), _in_pieces(backward), _in_pieces(inference)
    plain: list[Watched] = []
    halves: list[WatchedTraining] = []
    autocast = is_autocast_on()  # it is off while AOTAutograd compiles

    def watched(graph: GraphModule, given: Sequence[Any]) -> Call:
        without_repeats(graph)  # as the partitioner does it for graphs that are divided
        call = inference(graph, given)
        if (written := written_inputs()) is None:
            return call
        plain.append(Watched(call, autocast, written))
        return boxed(partial(plain[0].seen))

    def watched_forward(graph: GraphModule, given: Sequence[Any]) -> Call:
        call = forward(graph, given)
        if (written := written_inputs()) is None:
            return call
        halves.append(WatchedTraining(graph, call, autocast, written))
        return boxed(partial(halves[0].seen))

    def watched_backward(graph: GraphModule, given: Sequence[Any]) -> Call:
        call = backward(graph, given)
        for of_both in halves:
            of_both.has_backward(graph, call)
        return boxed(written_out(call))

    with _traced(module, inputs):
        made = _backends.aot_module_simplified(
            module,
            inputs,
            fw_compiler=watched_forward,
            bw_compiler=_untraced(watched_backward),
            inference_compiler=watched,
            decompositions=decompositions(random),
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )
    wrapped = torch._dynamo.disable(made, reason="it is compiled")
    seen = [*plain, *halves] if is_direct else []
    captured = torch._dynamo.disable(module, reason="it has forward derivatives")
    return _with_traced_dtypes((seen[0].around if seen else without_forward)(wrapped, captured), module)


@contextmanager
def _traced(module: GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """AOTAutograd traces the module in the block, and does nothing else that takes time."""
    graph = getattr(module, "gm", module).graph  # flatten_graph_inputs gives a module around it
    once = copying() if len(graph.nodes) > FEW else nullcontext()
    lazy = _use_lazy_graph_module(True)  # nobody calls these modules: they need no Python code
    with lazy, _untold(), once, operators_kept_whole(inputs):
        yield


def _with_traced_dtypes(call: Callable[..., Any], module: GraphModule) -> Callable[..., Any]:
    """The call, with Python's numbers in the dtype they were traced in: TorchDynamo traces that of random.uniform() as
    a float32 tensor (`VariableBuilder.wrap_unspecialized_primitive`) and gives the call a float64 one.
    """
    dtypes: dict[int, torch.dtype] = {}
    inputs = module.graph.find_nodes(op="placeholder") if isinstance(module, GraphModule) else ()
    for place, node in enumerate(inputs):
        traced = node.meta.get("example_value")
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False) and isinstance(traced, torch.Tensor):
            dtypes[place] = traced.dtype
    if not dtypes:
        return call

    def converted(*args: Any) -> Any:
        return call(*[arg if (dtype := dtypes.get(place)) is None else arg.to(dtype) for place, arg in enumerate(args)])

    return converted


def _in_pieces(compile_graph: Compile, compile_piece: Compile | None = None) -> Compile:
    """The same, for graphs too in which data say how large something is: pieces of these are compiled."""

    def compiled(graph: GraphModule, inputs: Sequence[Any]) -> Call:
        if not asks_data(graph):
            return compile_graph(graph, inputs)
        keep_what_is_saved()
        return boxed(partial(divided(graph, compile_piece or compile_graph)))

    return compiled


def _untraced(compile_graph: Compile) -> Compile:
    """The same, of which TorchDynamo traces nothing, nor of what it returns. AOTAutograd may ask for a backward while
    a call is traced. `torch._dynamo.backends.common.aot_autograd` does that too; it imports Inductor's IR for a log.
    """

    @torch._dynamo.disable(reason="it compiles a backward")  # type: ignore[untyped-decorator]
    def compiled(graph: GraphModule, inputs: Sequence[Any]) -> Call:
        return torch._dynamo.disable(compile_graph(graph, inputs), reason="it is compiled")

    return compiled


@contextmanager
def _untold() -> Iterator[None]:
    """AOTAutograd writes its graphs as text for torch's structured trace and logs: not where nobody is to read it."""
    logs = (graph_compile.aot_joint_log, graph_compile.aot_graphs_log)
    with ExitStack() as stack:
        if not logging.getLogger("torch.__trace").handlers and not any(log.isEnabledFor(logging.INFO) for log in logs):
            for name in ("_log_inference_graph", "_log_joint_graph", "_log_fw_bw_graphs"):
                stack.enter_context(replaced(graph_compile, name, _without_log))
        yield


def _without_log(told: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *graphs_and_config: told(*graphs_and_config[:-1], replace(graphs_and_config[-1], enable_log=False))


def with_backward() -> AbstractContextManager[None]:
    """AOTAutograd compiles a backward in the block along with its forward, not when it is first asked for."""
    manager: AbstractContextManager[None] = functorch_config.patch(force_non_lazy_backward_lowering=True)
    return manager


def boxed(call: Call) -> Call:
    """Tell AOTAutograd that a call takes its arguments in one list, which it may empty."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def written_arguments(op: Any) -> tuple[int | str, ...]:
    """Positions (names for those by keyword only) of the arguments that an operator changes."""
    if not is_operator(op):
        return ()
    return tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


_BOUND = (
    "mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
"""Operators whose binding in Python takes exactly the operator's arguments: it is called in less time."""


def quick(op: Any) -> Callable[..., Any]:
    """The same call with the least time in between: torch.mm for aten.mm.default, else without OpOverload's frame."""
    if not is_operator(op):
        return op
    name = op._schema.name.removeprefix("aten::")
    if name in _BOUND and not op._schema.overload_name:
        return getattr(torch._C._VariableFunctions, name, op._op)
    return op._op


def returns_alias(op: Any) -> bool:
    """Whether what it returns may share memory with an argument; true where there is no schema that would say."""
    return not is_operator(op) or any(result.alias_info is not None for result in op._schema.returns)


def has_effect(op: Any) -> bool:
    """Whether calls of it have to stay in their order: they draw random numbers, or torch does not say."""
    return not is_operator(op) or is_random(op) or bool(op._schema.is_mutable) or not op._schema.returns
