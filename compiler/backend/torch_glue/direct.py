"""Calls of a compiled inference graph without AOTAutograd's wrappers.

AOTAutograd wraps an inference graph for mutated inputs, outputs that are views, subclasses, random numbers and effects
(torch._functorch._aot_autograd.runtime_wrappers). For a graph with none of these, the wrappers turn gradients and
autocast off, and bump the versions of inputs that the graph writes into. The first call goes through them and is
watched: later calls skip them only if they passed on the same inputs and outputs in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from compiler.torch_api.aot import Call, forward_facts
from compiler.torch_api.bindings import autocast_off, is_autocast_on, set_grad_enabled, why_no_saved_hooks

_MORE = (
    "num_mutated_inp_runtime_indices", "num_outputs_aliased", "dynamic_outputs", "tokens", "is_rng_op_functionalized",
)  # fmt: skip
"""Facts of AOTAutograd by which its wrappers do more than is done here."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the graph's own code got and returned in one call.

    `is_bare` says that gradients and autocast were off, and hooks of saved tensors were not.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    is_bare: bool


class Watched:
    """The code of an inference graph, watched in its first call through AOTAutograd's wrappers.

    Threads may make first calls at the same time. `autocast` says whether the compiled call is under autocast,
    `written` which inputs the graph writes into.
    """

    def __init__(self, call: Call, autocast: bool, written: Sequence[int] = ()) -> None:
        self.call = without_autocast(call) if autocast else call
        self.written = written
        self.local = threading.local()
        self.is_direct: bool | None = None

    def run(self, args: list[Any]) -> Sequence[Any]:
        """Run the graph's code for the wrappers, and note its inputs and outputs in the first call."""
        if self.is_direct is not None:
            return self.call(args)
        inputs = tuple(args)
        is_bare = not torch.is_grad_enabled() and not is_autocast_on() and why_no_saved_hooks() is None
        outputs = self.call(args)
        self.local.observation = Observation(inputs, outputs, is_bare)
        return outputs

    def call_first(self, wrapped: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Sequence[Any]:
        """Call through the wrappers, and decide whether later calls may skip them."""
        try:
            outputs = wrapped(*args)
            if (found := getattr(self.local, "observation", None)) is not None:  # else another thread has decided
                self.is_direct = found.is_bare and are_the_same(found.inputs, args) and self.may_skip(found, outputs)
        finally:
            self.local.__dict__.clear()
        return outputs

    def may_skip(self, found: Observation, outputs: Sequence[Any]) -> bool:
        """Whether later calls may skip the wrappers, which passed on the inputs and returned `outputs`."""
        return are_the_same(found.outputs, outputs)

    def wrap(
        self, wrapped: Callable[..., Sequence[Any]], captured: Callable[..., Sequence[Any]]
    ) -> Callable[..., Sequence[Any]]:
        """The function that TorchDynamo calls in place of `wrapped`, which ends in `run`.

        It calls `captured` where tensors may have forward derivatives.
        """
        written = self.written

        def call(*args: Any) -> Sequence[Any]:
            if forward_ad._current_level >= 0:
                return captured(*args)
            if not self.is_direct or not self.applies():
                return self.call_first(wrapped, args) if self.is_direct is None else wrapped(*args)
            if written:
                increment_version([args[place] for place in written])
            return self.call_directly(args)

        return call

    def applies(self) -> bool:
        """Whether this call may skip the wrappers, if later calls may."""
        return True

    def call_directly(self, args: Sequence[Any]) -> Sequence[Any]:
        """Call the code without the wrappers, which turn gradients off."""
        if not torch.is_grad_enabled():
            return self.call([*args])
        set_grad_enabled(False)
        try:
            return self.call([*args])
        finally:
            set_grad_enabled(True)


def without_forward(call: Callable[..., Any], captured: Callable[..., Any]) -> Callable[..., Any]:
    """Call `captured` where tensors may have forward derivatives, else `call`.

    Kernels know no forward derivatives, and TorchDynamo has no guards against them.
    """

    def call_or_run_captured(*args: Any) -> Any:
        return call(*args) if forward_ad._current_level < 0 else captured(*args)

    return call_or_run_captured


def written_inputs() -> Sequence[int] | None:
    """The inputs that the graph itself writes into, as BatchNorm into its statistics.

    Calls bump the versions of these, so that autograd knows. None where AOTAutograd's wrappers do more.
    """
    facts = forward_facts()
    if facts is None or facts.grad_enabled_mutation is not None or any(getattr(facts, name) for name in _MORE):
        return None
    return (*facts.mutated_graph_handled_indices_seen_by_autograd,)


def without_autocast(call: Call) -> Call:
    """Turn autocast off around a call: its graph has autocast's casts in it."""

    def cast(args: list[Any]) -> Sequence[Any]:
        with autocast_off():
            return call(args)

    return cast


def are_the_same(these: Sequence[Any], those: Sequence[Any]) -> bool:
    return [*map(id, these)] == [*map(id, those)]
