"""Compile for a virtual GPU: move traced graphs to the target, and go on as on that machine.

The graphs that AOTAutograd traced with CPU tensors are moved before Inductor's first pass over them. The observer hears
where that differs from a real GPU: choices that Inductor would make by timing are made by rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compiler.targets import Target
from compiler.torch_api import fx
from compiler.torch_api import gpu_compilation as places
from compiler.torch_api.fake_tensors import FakeTensor, FakeTensorMode, detect_fake_mode
from compiler.torch_api.gpu_compilation import Identity, SkipFrame, default_partition
from compiler.torch_api.moving import CPU, Mover, device_swap, swap_devices
from compiler.torch_api.patching import Original, Wrapper, around, replaced
from compiler.torch_api.python_kernels import python_kernels
from compiler.virtual_gpu import formats
from compiler.virtual_gpu.attention import attention_kernels
from compiler.virtual_gpu.autocast import CudaRegions, autocast_kernels
from compiler.virtual_gpu.decompositions import wrap_decomposition, wrap_device, wrap_dispatch
from compiler.virtual_gpu.gpu import DEVICE, VirtualGenerator, virtual_gpu
from compiler.virtual_gpu.padding import Padding
from compiler.virtual_gpu.recurrent import cell_kernels, wrap_layer_choice

Told = Callable[[str, str, str], None]
"""Hears of a choice: the pass, its verdict, and why."""


_COMPILERS = ("fw_compiler", "bw_compiler", "inference_compiler")


_UNEVALUATED = (
    f"an index has a number inside of Identity, which torch {torch.__version__.partition('+')[0]} does not evaluate: "
    'torch.compile on this GPU may stop with ValueError ("… is not comparable")'
)


class NoInstructionsError(RuntimeError):
    """The target can't compute in a format that the graph uses."""


class Retargeting:
    """Wrappers that make the `compile_fx` calls of one exploration write code for `target`."""

    def __init__(self, target: Target, tell: Told) -> None:
        self.target = target
        self.tell = tell
        self.source = CPU

    def wrappers(self) -> list[Wrapper]:
        return [
            (*places.COMPILE_MAIN, self.wrap_main),
            (*places.DECOMPOSITION, wrap_decomposition),
            (*places.DISPATCH, wrap_dispatch),
            (*places.FAKE_DEVICE, wrap_device),
            (*places.GENERATORS, lambda _here: (VirtualGenerator(),)),
            (*places.EVALUATION, around(self.evaluate_identity)),
            (*places.FALLBACK, around(run_fallback)),
            (*places.LSTM_CHOICE, wrap_layer_choice),
            (*places.PARTITION, self.wrap_partition),
            (*places.COMPILE_FORWARD, self.wrap_compile),
            (*places.COMPILE_BACKWARD, self.wrap_compile),
            (*places.CONSTANT_FOLDING, self.wrap_constant_folding),
            (*places.FOLDING_OF_ZEROS, around(add_zeros)),
            (*places.SHOULD_PAD, around(Padding(self.target, self.tell).decide_padding)),
            (*places.BFLOAT16_CHECK, around(self.check_bfloat16)),
            *((*place, lambda _warn: self.note_tf32) for place in places.TF32_WARNINGS),
            (*places.AOT_FUNCTION, around(self.trace_on_cpu)),
        ]

    def evaluate_identity(self, _evaluate: Original, wrapped: Identity, precision: int) -> Any:
        """Evaluate an `Identity` of a number as that number.

        torch 2.13 calls it a number, but sympy can't evaluate it, so Inductor's `Min` and `Max` raise
        ValueError where it merges loops for a GPU.
        """
        self.tell("indexing", "evaluated", _UNEVALUATED)
        return wrapped.args[0]._eval_evalf(precision)

    def wrap_aot(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap aot_module_simplified, as backends other than Inductor call it."""

        def wrapper(module: GraphModule, inputs: Sequence[Any], *, partition_fn: Any, **kwargs: Any) -> Any:
            compilers = {name: self.wrap_compile(self._checked(kwargs[name])) for name in _COMPILERS}
            kwargs |= compilers | {"partition_fn": self.wrap_partition(partition_fn)}
            return self.wrap_main(run)(module, inputs, **kwargs)

        return wrapper

    def _checked(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(module: GraphModule, inputs: Sequence[Any]) -> Any:
            self.check_formats(module)
            return compile_graph(module, inputs)

        return wrapper

    def wrap_main(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(module: GraphModule, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            self.source = _source(inputs)
            kernels = {**attention_kernels(self.target, self.tell), **autocast_kernels(), **cell_kernels()}
            with python_kernels(kernels), CudaRegions():
                return run(module, inputs, *args, **kwargs)

        return wrapper

    def wrap_partition(self, partition: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(module: GraphModule, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            with self._on_target(module, inputs) as moved_inputs:
                return partition(module, moved_inputs, *args, **kwargs)

        return wrapper

    def wrap_compile(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(module: GraphModule, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            with self._on_target(module, inputs) as moved_inputs:
                return compile_graph(module, moved_inputs, *args, **kwargs)

        return wrapper

    @contextmanager
    def _on_target(self, module: GraphModule, inputs: Sequence[Any]) -> Iterator[list[Any]]:
        mode = _mode_of(inputs)
        mover = Mover(mode, self.source, DEVICE)
        with virtual_gpu(self.target), mode:
            if self.source != DEVICE:
                mover.graph(module)
            for verdict, why in formats.notes(self.target, module):
                self.tell("formats", verdict, why)
            yield mover.values(inputs) if self.source != DEVICE else list(inputs)

    def check_formats(self, module: GraphModule) -> None:
        """Raise NoInstructionsError where the target lacks a format, for backends that do not check."""
        if reason := formats.refusal(self.target, module) or formats.no_bfloat16(self.target, module):
            raise NoInstructionsError(reason)

    def note_tf32(self) -> None:
        if note := formats.tf32_note(self.target):
            self.tell("formats", *note)

    def check_bfloat16(self, check: Original, lowering: Any) -> None:
        if reason := formats.refusal(self.target, lowering.orig_gm):
            raise NoInstructionsError(reason)
        try:
            with warnings.catch_warnings(action="ignore"):
                check(lowering)
        except SkipFrame:
            raise NoInstructionsError(formats.NO_BFLOAT16.format(self.target.title)) from None

    def wrap_constant_folding(self, fold: Callable[[GraphModule], Any]) -> Callable[[GraphModule], Any]:
        """Compute folded constants on the CPU: Inductor makes real tensors on the graph's device."""
        to_cpu, back = device_swap(DEVICE, CPU), device_swap(CPU, DEVICE)

        def wrapper(module: GraphModule) -> Any:
            asked = [node for node in module.graph.nodes if swap_devices(node, to_cpu)]
            try:
                return fold(module)
            finally:
                for node in set(asked) & set(module.graph.nodes):
                    swap_devices(node, back)

        return wrapper

    def trace_on_cpu(
        self, trace: Original, fn: Any, compiler: Any, *args: Any, partition_fn: Any, **kwargs: Any
    ) -> Any:
        """Let the pattern matcher trace on the CPU, and move the graph.

        It traces with autograd, whose device threads are as many as there are GPUs: that fails for a virtual
        GPU.
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


@contextmanager
def retarget_backends(target: Target, tell: Told) -> Iterator[None]:
    """Give backends that call AOTAutograd themselves the graphs of this GPU in the block."""
    session = Retargeting(target, tell)
    with ExitStack() as stack:
        for owner, name, make in [(*places.AOT_MODULE, session.wrap_aot), *session.wrappers()]:
            stack.enter_context(replaced(owner, name, make))
        yield


def add_zeros(add: Callable[[Any], None], folder: Any) -> None:
    """Fold products with 0 on the CPU: Inductor makes a real zero on the product's device."""
    products = [node for node in _products(folder.module) if isinstance(node.meta.get("val"), FakeTensor)]
    values = [node.meta["val"] for node in products]
    try:
        for node, value in zip(products, values, strict=True):
            [node.meta["val"]] = Mover(value.fake_mode, DEVICE, CPU).values([value])
        add(folder)
    finally:
        for node, value in zip(products, values, strict=True):
            node.meta["val"] = value


def _products(module: GraphModule) -> list[Node]:
    targets = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar)
    return [node for target in targets for node in module.graph.find_nodes(op="call_function", target=target)]


def run_fallback(run: Original, mode: FakeTensorMode, func: Any, values: Sequence[Any], *args: Any) -> Any:
    """Run an operator on the CPU to learn its shapes, where its tensors are on a virtual GPU.

    `run_fallback_kernel` runs operators without a meta function with zeros, on the device of their arguments.
    """
    if all(getattr(value, "device", CPU).type == "cpu" for value in values):
        return run(mode, func, values, *args)
    here = [device_swap(DEVICE, CPU)(value) for value in Mover(mode, DEVICE, CPU).values(values)]
    return Mover(mode, CPU, DEVICE).values([run(mode, func, here, *args)])[0]


def _source(inputs: Sequence[Any]) -> torch.device:
    """The GPU that a graph's inputs are on, else the CPU. Inputs on the CPU stay beside a GPU."""
    devices = (value.device for value in inputs if isinstance(value, torch.Tensor))
    return next((device for device in devices if device.type == DEVICE.type), CPU)


def _mode_of(inputs: Sequence[Any]) -> FakeTensorMode:
    mode = detect_fake_mode(inputs)
    if mode is None:
        raise RuntimeError("the example inputs of this graph are not fake tensors, so it can't be moved to a GPU")
    return mode
