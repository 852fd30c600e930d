"""Capture the graphs that AOTAutograd makes of a call, with their arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from compiler.backend.backend import KINDS, context_of, saved_for_backward_only
from compiler.backend.ir import BackendError, Program
from compiler.backend.lower.graph import lower
from compiler.backend.options import BackendOptions
from compiler.backend.passes.context import Context
from compiler.backend.torch_glue.compiling import compile_with_autograd
from compiler.calls import call as calls
from compiler.record import Decision, Problem
from compiler.targets import Target, target
from compiler.targets.destination import DEFAULT_TARGET
from compiler.torch_api.aot import Call, mark_boxed, with_backward
from compiler.torch_api.dynamo import BreakCounter, compile_function, is_restart, observe
from compiler.triton_interpreter.user_kernels import interpret_launches
from compiler.virtual_gpu.retargeting import NoInstructionsError, retarget_backends


def interpret_without_gpu(gpu: Target | None) -> AbstractContextManager[None]:
    """Without a GPU, interpret users' Triton kernels in the block; each gives a warning that it was interpreted."""

    def warn(problem: Problem) -> None:
        warnings.warn(problem.reason, stacklevel=2)

    return interpret_launches(gpu or target(DEFAULT_TARGET), warn)


@dataclass(frozen=True)
class InspectedCall(calls.Call):
    """A call to inspect. `dynamic` is as for torch.compile."""

    dynamic: bool | None = None

    @property
    def title(self) -> str:
        """Name of the function, or of the module's class."""
        if isinstance(self.fn, torch.nn.Module):
            return type(self.fn).__name__
        name: str = getattr(self.fn, "__qualname__", type(self.fn).__name__)
        return name.rsplit("<locals>.", 1)[-1]

    def compile(self, backend: Callable[..., Any]) -> Callable[..., Any]:
        """The function compiled with a backend, with cache entries of its own."""
        found: Callable[..., Any] = compile_function(self.fn, backend, dynamic=self.dynamic, fullgraph=False)
        return found


@dataclass(frozen=True)
class CapturedGraph:
    """A graph of ATen operators, and its program, lowered while guards on its sizes could still be added.

    start    the initial context of the passes
    inputs   arguments of its first call, empty before that
    forward  for a backward, the graph of its forward
    saved    for a forward, names of the results that it saves only for its backward, by index among all results
    """

    name: str
    module: GraphModule
    lowered: Program
    start: Context
    inputs: list[Any] = field(default_factory=list)
    forward: CapturedGraph | None = None
    saved: Mapping[int, str] = field(default_factory=dict)

    def call(self, args: list[Any]) -> Sequence[Any]:
        """Run the graph in eager mode, and keep the arguments of its first call."""
        given = list(args)
        args.clear()
        if not self.inputs:
            self.inputs.extend(given)
        found: Sequence[Any] = self.module(*given)
        return found


def capture_graphs(asked: InspectedCall, gpu: Target | None = None) -> list[CapturedGraph]:
    """Run a call with its graphs in eager mode, and capture them.

    Restores torch.compile's caches, counters and history.

    With `gpu`, capture the graphs as on a machine with that GPU: with its attention kernels, and in the layouts that
    it prefers. These graphs keep no inputs.
    """
    found: list[CapturedGraph] = []
    errors: list[Exception] = []
    chosen: list[Decision] = []

    def keep(module: GraphModule, inputs: Sequence[Any], name: str) -> Call:
        number = sum(graph.name.partition("_")[0] == name for graph in found)
        forward = found[-1] if name == "backward" else None
        called = f"{name}_{number + 1}" if number else name
        saved = saved_for_backward_only(module) if name == "forward" else {}
        start = context_of(module, inputs, called, BackendOptions())
        start.decisions[:0] = chosen
        chosen.clear()
        lowered = lower(module, called, start)
        found.append(graph := CapturedGraph(called, module, lowered, start, forward=forward, saved=saved))
        return mark_boxed(partial(graph.call))

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            compiled = compile_with_autograd(module, inputs, *(partial(keep, name=name) for name in KINDS))
        except Exception as error:
            if not is_restart(error):  # after a restart, TorchDynamo calls again
                errors.append(error)
            raise
        return compiled if gpu is None else module.forward

    def record_choice(pass_name: str, verdict: str, why: str) -> None:
        chosen.append(Decision(pass_name, "", (), verdict, why))

    retarget = retarget_backends(gpu, record_choice) if gpu else nullcontext()
    with observe(BreakCounter()), with_backward(), interpret_without_gpu(gpu), retarget:
        asked.compile(backend)(*asked.args, **asked.kwargs)
    if errors:
        raise errors[0]
    return found


def capture_for_gpu(asked: InspectedCall, gpu: Target) -> list[CapturedGraph]:
    """Capture the graphs of a call for a GPU that this machine need not have.

    Repeats the call on the CPU, undoes its side effects, and drops its output. Raises BackendError if the GPU lacks a
    format, or if the call has tensors that are not on the CPU.
    """
    if elsewhere := sorted(asked.devices() - {"cpu"}):
        raise BackendError(f"the call's tensors are on {', '.join(elsewhere)}: open one whose tensors are on the CPU")
    with calls.leave_no_trace(asked):
        args, kwargs = asked.copied_arguments()
        try:
            return capture_graphs(replace(asked, args=args, kwargs=kwargs), gpu)
        except NoInstructionsError as error:
            raise BackendError(str(error)) from None
