"""Compile a captured graph through AOTAutograd, with our compiler for each resulting graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from compiler.backend.torch_glue.data_sizes import asks_data, divide_at_data
from compiler.backend.torch_glue.decompositions import decompositions
from compiler.backend.torch_glue.direct import Watched, without_forward, written_inputs
from compiler.backend.torch_glue.direct_training import WatchedTraining, write_out_tangents
from compiler.backend.torch_glue.partition import merge_equal_nodes, partition
from compiler.backend.torch_glue.saved import claim_donated_buffers
from compiler.backend.torch_glue.traced_again import copy_known_traces
from compiler.torch_api import fx
from compiler.torch_api.aot import (
    Call,
    Compile,
    aot_module,
    flatten_graph_inputs,
    mark_boxed,
    untraced,
    without_python_code,
    without_unread_logs,
)
from compiler.torch_api.bindings import is_autocast_on
from compiler.torch_api.user_triton import operators_kept_whole

FEW = 24
"""Graphs of at most this many nodes don't cache traces: few operators repeat, and a cache costs more than it saves."""


def compile_with_autograd(
    module: GraphModule,
    inputs: Sequence[Any],
    forward: Compile,
    backward: Compile,
    inference: Compile,
    *,
    random: str = "philox",
    is_direct: bool = True,
) -> Callable[..., Any]:
    """Compile a captured graph through AOTAutograd and torch's min-cut partitioner.

    `forward`, `backward` and `inference` each compile one graph of ATen operators. `random` is "philox", or "eager"
    for the random numbers of eager mode. With `is_direct`, calls after the first may skip AOTAutograd's wrappers.
    Our kernels don't support forward-mode AD, and TorchDynamo has no guards against it: if it may be in use,
    PyTorch runs the captured graph.
    """
    if any(isinstance(value, list | tuple | dict) for value in inputs):
        options: Any = {"random": random, "is_direct": is_direct}
        again = partial(compile_with_autograd, forward=forward, backward=backward, inference=inference, **options)
        return flatten_graph_inputs(module, inputs, again)
    forward, backward, inference = _in_pieces(forward, inference), _in_pieces(backward), _in_pieces(inference)
    plain: list[Watched] = []
    halves: list[WatchedTraining] = []
    autocast = is_autocast_on()  # read now: AOTAutograd turns it off while it compiles

    def compile_inference(graph: GraphModule, given: Sequence[Any]) -> Call:
        merge_equal_nodes(graph)  # as `partition` does for training graphs
        call = inference(graph, given)
        if (written := written_inputs()) is None:
            return call
        plain.append(Watched(call, autocast, written))
        return mark_boxed(partial(plain[0].run))

    def compile_forward(graph: GraphModule, given: Sequence[Any]) -> Call:
        call = forward(graph, given)
        if (written := written_inputs()) is None:
            return call
        halves.append(WatchedTraining(graph, call, autocast, written))
        return mark_boxed(partial(halves[0].run))

    def compile_backward(graph: GraphModule, given: Sequence[Any]) -> Call:
        call = backward(graph, given)
        for of_both in halves:
            of_both.has_backward(graph, call)
        return mark_boxed(write_out_tangents(call))

    has_scan = "scan" in fx.higher_order_operators(_whole(module))
    with _skip_other_work(module, inputs):
        made = aot_module(
            module, inputs, fw_compiler=compile_forward, bw_compiler=_compile_untraced(compile_backward),
            inference_compiler=compile_inference, decompositions=decompositions(random, has_scan),
            partition_fn=partition, keep_inference_input_mutations=True,
        )  # fmt: skip
    wrapped = untraced(made, reason="it is compiled")
    watched = [*plain, *halves] if is_direct else []
    captured = untraced(module, reason="it has forward derivatives")
    return _with_traced_dtypes((watched[0].wrap if watched else without_forward)(wrapped, captured), module)


@contextmanager
def _skip_other_work(module: GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """In the block, skip work of AOTAutograd that our compiler does not need."""
    once = copy_known_traces() if len(_whole(module).graph.nodes) > FEW else nullcontext()
    with without_python_code(), without_unread_logs(), once, operators_kept_whole(inputs):
        yield


def _whole(module: GraphModule) -> GraphModule:
    """The captured graph, without the wrapper module of `flatten_graph_inputs` if there is one."""
    found: GraphModule = getattr(module, "gm", module)
    return found


def _with_traced_dtypes(call: Callable[..., Any], module: GraphModule) -> Callable[..., Any]:
    """Wrap a call to convert Python numbers, passed as tensors, to the dtype that they were traced with.

    TorchDynamo traces the result of random.uniform() as a float32 tensor
    (`VariableBuilder.wrap_unspecialized_primitive`) and passes a float64 tensor.
    """
    dtypes: dict[int, torch.dtype] = {}
    inputs = module.graph.find_nodes(op="placeholder") if isinstance(module, GraphModule) else ()
    for place, node in enumerate(inputs):
        traced = node.meta.get("example_value")
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False) and isinstance(traced, torch.Tensor):
            dtypes[place] = traced.dtype
    if not dtypes:
        return call

    def call_converted(*args: Any) -> Any:
        return call(*[arg if (dtype := dtypes.get(place)) is None else arg.to(dtype) for place, arg in enumerate(args)])

    return call_converted


def _in_pieces(compile_graph: Compile, compile_piece: Compile | None = None) -> Compile:
    """Wrap a compiler to divide graphs with data-dependent sizes, and compile the pieces."""

    def compile_divided(graph: GraphModule, inputs: Sequence[Any]) -> Call:
        if not asks_data(graph):
            return compile_graph(graph, inputs)
        claim_donated_buffers()
        return mark_boxed(divide_at_data(graph, compile_piece or compile_graph))

    return compile_divided


def _compile_untraced(compile_graph: Compile) -> Compile:
    """Wrap a compiler so that TorchDynamo does not trace it, nor the function that it returns.

    AOTAutograd may compile a backward while a call is traced. `torch._dynamo.backends.common.aot_autograd` does
    the same, but imports Inductor's IR for a log.
    """

    @untraced(reason="it compiles a backward")  # type: ignore[untyped-decorator]
    def compile_backward(graph: GraphModule, inputs: Sequence[Any]) -> Call:
        return untraced(compile_graph(graph, inputs), reason="it is compiled")

    return compile_backward
