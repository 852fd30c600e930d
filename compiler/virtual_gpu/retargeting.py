"""Compile for a virtual GPU: move traced graphs to the target, and compile them there.

Graphs that AOTAutograd traced with CPU tensors are moved before Inductor's first pass over them. Differences from a
real GPU are reported to `on_choice`: choices that Inductor would make by timing are made by rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from compiler.targets import Target
from compiler.torch_api import fx
from compiler.torch_api import gpu_compilation as places
from compiler.torch_api.fake_tensors import FakeTensor, FakeTensorMode, detect_fake_mode
from compiler.torch_api.gpu_compilation import Identity, SkipFrame, default_partition
from compiler.torch_api.moving import CPU, Mover, device_swap, swap_devices
from compiler.torch_api.patching import Function, Wrapper, call_instead, replace_attributes
from compiler.torch_api.python_kernels import python_kernels
from compiler.virtual_gpu import formats
from compiler.virtual_gpu.attention import attention_kernels
from compiler.virtual_gpu.autocast import CudaRegions, autocast_kernels
from compiler.virtual_gpu.decompositions import decompose_as_on_gpu, dispatch_on_cpu, wrap_device
from compiler.virtual_gpu.gpu import DEVICE, VirtualGenerator, virtual_gpu
from compiler.virtual_gpu.padding import Padding
from compiler.virtual_gpu.recurrent import cell_kernels, choose_layer

OnChoice = Callable[[str, str, str], None]
"""Called with each choice: (pass, verdict, reason)."""


_COMPILERS = ("fw_compiler", "bw_compiler", "inference_compiler")


_UNEVALUATED = (
    f"an index has a number inside of Identity, which torch {torch.__version__.partition('+')[0]} does not evaluate: "
    'torch.compile on this GPU may stop with ValueError ("… is not comparable")'
)

_FLEX_BACKWARD = (
    "torch refuses the backward of FlexAttention, and its maxima, for tensors on a CPU: they are traced as for a GPU, "
    "and values come from its dense formula"
)


class NoInstructionsError(RuntimeError):
    """The target can't compute in a dtype that the graph uses."""


class Retargeting:
    """Wrappers that make the `compile_fx` calls of one exploration generate code for `target`."""

    def __init__(self, target: Target, on_choice: OnChoice) -> None:
        self.target = target
        self.on_choice = on_choice
        self.source = CPU

    def wrappers(self) -> list[Wrapper]:
        moved = call_instead(self.call_on_target)
        return [
            (*places.COMPILE_MAIN, call_instead(self.trace)),
            (*places.DECOMPOSITION, call_instead(decompose_as_on_gpu)),
            (*places.DISPATCH, call_instead(dispatch_on_cpu)),
            (*places.FAKE_DEVICE, wrap_device),
            (*places.GENERATORS, lambda _here: (VirtualGenerator(),)),
            (*places.EVALUATION, call_instead(self.evaluate_identity)),
            (*places.FALLBACK, call_instead(run_fallback)),
            (*places.LSTM_CHOICE, lambda _choose: choose_layer),
            (*places.PARTITION, moved),
            (*places.COMPILE_FORWARD, moved),
            (*places.COMPILE_BACKWARD, moved),
            (*places.CONSTANT_FOLDING, call_instead(fold_constants)),
            (*places.FOLDING_OF_ZEROS, call_instead(add_zeros)),
            (*places.SHOULD_PAD, call_instead(Padding(self.target, self.on_choice).decide_padding)),
            (*places.BFLOAT16_CHECK, call_instead(self.check_bfloat16)),
            *((*place, lambda _warn: self.note_tf32) for place in places.TF32_WARNINGS),
            (*places.AOT_FUNCTION, call_instead(self.trace_on_cpu)),
        ]

    def evaluate_identity(self, _evaluate: Function, wrapped: Identity, precision: int) -> Any:
        """Evaluate an `Identity` of a number as that number.

        In torch 2.13 an `Identity` counts as a number, but sympy can't evaluate it, so Inductor's `Min` and `Max` raise
        ValueError when loops are merged for a GPU.
        """
        self.on_choice("indexing", "evaluated", _UNEVALUATED)
        return wrapped.args[0]._eval_evalf(precision)

    def trace_aot(self, run: Function, module: GraphModule, inputs: Any, *, partition_fn: Any, **kwargs: Any) -> Any:
        """Replace aot_module_simplified for backends other than Inductor."""
        for name in _COMPILERS:
            kwargs[name] = partial(self.call_on_target, partial(self._check_and_compile, kwargs[name]))
        kwargs["partition_fn"] = partial(self.call_on_target, partition_fn)
        return self.trace(run, module, inputs, **kwargs)

    def _check_and_compile(self, compile_graph: Function, module: GraphModule, inputs: Sequence[Any]) -> Any:
        self.check_formats(module)
        return compile_graph(module, inputs)

    def trace(self, run: Function, module: GraphModule, inputs: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Trace a graph with the kernels that torch would choose on the GPU."""
        self.source = _source(inputs)
        if self.source == CPU and "flex_attention" in fx.higher_order_operators(module):
            self.on_choice("FlexAttention", "traced for the GPU", _FLEX_BACKWARD)
        kernels = {**attention_kernels(self.target, self.on_choice), **autocast_kernels(), **cell_kernels()}
        with python_kernels(kernels), CudaRegions():
            return run(module, inputs, *args, **kwargs)

    def call_on_target(
        self, call: Function, module: GraphModule, inputs: Sequence[Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Move a graph to the target, and call `call` on it (a partitioner or compiler)."""
        mover = Mover(_mode_of(inputs), self.source, DEVICE)
        with virtual_gpu(self.target), mover.mode:
            if self.source != DEVICE:
                mover.graph(module)
            for verdict, why in formats.notes(self.target, module):
                self.on_choice("formats", verdict, why)
            inputs = mover.values(inputs) if self.source != DEVICE else list(inputs)
            return call(module, inputs, *args, **kwargs)

    def check_formats(self, module: GraphModule) -> None:
        """Raise NoInstructionsError if the target lacks a dtype, for backends that do not check."""
        if reason := formats.refusal(self.target, module) or formats.no_bfloat16(self.target, module):
            raise NoInstructionsError(reason)

    def note_tf32(self) -> None:
        if note := formats.tf32_note(self.target):
            self.on_choice("formats", *note)

    def check_bfloat16(self, check: Function, lowering: Any) -> None:
        if reason := formats.refusal(self.target, lowering.orig_gm):
            raise NoInstructionsError(reason)
        try:
            with warnings.catch_warnings(action="ignore"):
                check(lowering)
        except SkipFrame:
            raise NoInstructionsError(formats.NO_BFLOAT16.format(self.target.title)) from None

    def trace_on_cpu(
        self, trace: Function, fn: Any, compiler: Any, *args: Any, partition_fn: Any, **kwargs: Any
    ) -> Any:
        """Let the pattern matcher trace on the CPU, and move the traced graph to the GPU.

        Tracing uses autograd, which has one device thread per real GPU and fails for a virtual GPU.
        """

        def record_partition(joint: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            moved = fx.detached_copy(joint)
            Mover(_mode_of(inputs), CPU, DEVICE).graph(moved)
            partition_fn(moved, inputs, **options)
            return default_partition(joint, inputs, **options)

        def call(*inputs: Any) -> Any:
            traced = trace(fn, compiler, *args, partition_fn=record_partition, **kwargs)
            return traced(*Mover(_mode_of(inputs), DEVICE, CPU).values(inputs))

        return call


def retarget_backends(target: Target, on_choice: OnChoice) -> AbstractContextManager[None]:
    """In the block, make backends that call AOTAutograd themselves compile for this GPU."""
    session = Retargeting(target, on_choice)
    return replace_attributes([(*places.AOT_MODULE, call_instead(session.trace_aot)), *session.wrappers()])


def fold_constants(fold: Function, module: GraphModule) -> Any:
    """Fold constants on the CPU: Inductor would create real tensors on the graph's device."""
    asked = [node for node in module.graph.nodes if swap_devices(node, device_swap(DEVICE, CPU))]
    try:
        return fold(module)
    finally:
        for node in set(asked) & set(module.graph.nodes):
            swap_devices(node, device_swap(CPU, DEVICE))


def add_zeros(add: Callable[[Any], None], folder: Any) -> None:
    """Fold products with 0 on the CPU: Inductor would create a real zero on the product's device."""
    targets = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar)
    calls = [node for target in targets for node in folder.module.graph.find_nodes(op="call_function", target=target)]
    products = [node for node in calls if isinstance(node.meta.get("val"), FakeTensor)]
    values = [node.meta["val"] for node in products]
    try:
        for node, value in zip(products, values, strict=True):
            [node.meta["val"]] = Mover(value.fake_mode, DEVICE, CPU).values([value])
        add(folder)
    finally:
        for node, value in zip(products, values, strict=True):
            node.meta["val"] = value


def run_fallback(run: Function, mode: FakeTensorMode, func: Any, values: Sequence[Any], *args: Any) -> Any:
    """Run an operator on the CPU to learn its result shapes, if its tensors are on a virtual GPU.

    `run_fallback_kernel` runs operators without a meta function on zeros, on the device of their arguments.
    """
    if all(getattr(value, "device", CPU).type == "cpu" for value in values):
        return run(mode, func, values, *args)
    here = [device_swap(DEVICE, CPU)(value) for value in Mover(mode, DEVICE, CPU).values(values)]
    return Mover(mode, CPU, DEVICE).values([run(mode, func, here, *args)])[0]


def _source(inputs: Sequence[Any]) -> torch.device:
    """The GPU of a graph's inputs, else the CPU. CPU inputs of a graph on a GPU are not moved."""
    devices = (value.device for value in inputs if isinstance(value, torch.Tensor))
    return next((device for device in devices if device.type == DEVICE.type), CPU)


def _mode_of(inputs: Sequence[Any]) -> FakeTensorMode:
    mode = detect_fake_mode(inputs)
    if mode is None:
        raise RuntimeError("the example inputs of this graph are not fake tensors, so it can't be moved to a GPU")
    return mode
