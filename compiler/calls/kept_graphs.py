"""Graphs, buffers and inputs of the user's call, kept to run kernels again.

Tensors are copied only if `copies` is set; otherwise later in-place changes by the user's code show in them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils.hooks import RemovableHandle

from compiler.calls.call import Surroundings
from compiler.capture.sources import SourceBook
from compiler.torch_api import compiled_autograd, fx
from compiler.torch_api.aot import AotFacts, Replaceable
from compiler.torch_api.buffers import Buffer, InputLayout, Kind
from compiler.torch_api.flex_attention import MaskTensors, watch_block_masks
from compiler.torch_api.module_calls import outermost_module
from compiler.torch_api.partitioning import Joint
from compiler.torch_api.pytrees import tree_leaves


@dataclass(slots=True)
class KeptGraph:
    """A graph after the post-grad passes, its buffers, and the scheduler nodes of each kernel."""

    module: GraphModule
    inputs: tuple[InputLayout, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    nodes: dict[str, set[str]] = field(default_factory=dict)


@dataclass(slots=True)
class KeptFrame:
    """One capture: its graphs, the arguments of its first call, and the gradients of its outputs, by index.

    `captured` is the captured graph, and `book` the record's source files; both are needed to trace it again.
    `eager` is the captured graph with higher-order operators replaced by their eager implementations.
    `programs` are the lowered graphs of our own backend (`compiler.backend_record.rerun.KeptProgram`).
    `joint` is AOTAutograd's joint graph, before partitioning. `autocast` are the call's autocast dtypes, by device.
    With `keeps_stages`, `stages` are AOTAutograd's graphs: "joint", "joint passes" (after Inductor's), "forward",
    "backward", "inference"; `aot` are its facts about inputs and outputs; `halves` is the built code.
    `around`, if set, wraps every call after the first. `block_masks` are those of FlexAttention in the first call, in
    order, if it ran uncompiled. `calls` counts the calls until `stop_hearing`, by the index and the `id` of the first
    argument that is a parameter, or by None. `root` is the outermost module whose forward ran the first of them.
    `fell_back` is set if the backend raised, so that the captured graph runs without being compiled.
    """

    copies: bool = False
    graphs: dict[Kind, KeptGraph] = field(default_factory=dict)
    programs: dict[Kind, Any] = field(default_factory=dict)
    arguments: tuple[Any, ...] | None = None
    trained: list[int] = field(default_factory=list)
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    captured: GraphModule | None = None
    eager: GraphModule | None = None
    joint: Joint | None = None
    book: SourceBook | None = None
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    keeps_stages: bool = False
    stages: dict[str, GraphModule] = field(default_factory=dict)
    aot: AotFacts | None = None
    halves: dict[Kind, Replaceable] = field(default_factory=dict)
    around: Callable[..., Any] | None = None
    block_masks: list[MaskTensors | None] = field(default_factory=list)
    calls: Counter[tuple[int, int] | None] = field(default_factory=Counter)
    root: torch.nn.Module | None = None
    fell_back: bool = False
    _hooks: list[RemovableHandle] = field(default_factory=list)
    _listens: bool = True

    @property
    def attends(self) -> bool:
        """Whether the captured graph calls FlexAttention."""
        return self.captured is not None and "flex_attention" in fx.higher_order_operators(self.captured)

    def stage(self, name: str, module: GraphModule) -> None:
        """Keep a copy of a stage's graph if stages are kept; passes may mutate the original."""
        if self.keeps_stages:
            self.stages[name] = fx.detached_copy(module)

    def keep_graph(self, kind: Kind, module: GraphModule, inputs: tuple[InputLayout, ...]) -> None:
        self.graphs[kind] = KeptGraph(module, inputs)

    def keep_buffers(self, kind: Kind, buffers: tuple[Buffer, ...]) -> None:
        self.graphs[kind].buffers = buffers

    def keep_kernel(self, kind: Kind, kernel: str, nodes: tuple[str, ...]) -> None:
        self.graphs[kind].nodes.setdefault(kernel, set()).update(nodes)

    def keep_first_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` to count its calls, and to keep the first one's arguments and the gradients of its outputs."""

        def call_and_keep(*args: Any, **kwargs: Any) -> Any:
            if self._listens:
                self.calls[_first_parameter(args)] += 1
            if self.arguments is not None or kwargs:
                return self.around(call, *args, **kwargs) if self.around is not None else call(*args, **kwargs)
            self.root = outermost_module(sys._getframe(1))
            self.arguments = tuple(self._keep_value(argument) for argument in args)
            self.autocast = Surroundings.current().autocast
            with watch_block_masks(self.block_masks) if self.attends else nullcontext():
                results = call(*args)
            self._hear_gradients(results)
            return results

        return call_and_keep

    def _keep_value(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        detached = value.detach()
        return detached.clone() if self.copies else detached

    def _hear_gradients(self, results: Any) -> None:
        outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        for index, output in enumerate(outputs):
            if output.requires_grad:
                self.trained.append(index)
            # A hook on the tensor would be saved with it by torch.save; and compiled autograd traces any hook.
            if output.grad_fn is not None and not compiled_autograd.is_enabled():
                self._hooks.append(output.grad_fn.register_prehook(self._hears(index, output.output_nr)))

    def stop_hearing(self) -> None:
        """Count no more calls, and remove the gradient hooks from the user's autograd graph."""
        self._listens = False
        while self._hooks:
            self._hooks.pop().remove()

    def _hears(self, index: int, place: int) -> Callable[[Sequence[torch.Tensor | None]], None]:
        def hear(gradients: Sequence[torch.Tensor | None]) -> None:
            gradient = gradients[place]
            if gradient is not None and index not in self.gradients:
                self.gradients[index] = self._keep_value(gradient)

        # The backward may run inside the compiled function: the hook must not be traced as part of it.
        return torch.compiler.disable(hear)


def _first_parameter(args: Sequence[Any]) -> tuple[int, int] | None:
    return next(((at, id(value)) for at, value in enumerate(args) if isinstance(value, torch.nn.Parameter)), None)
