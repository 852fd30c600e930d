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


@dataclass(slots=True)
class Sighting:
    """What the graph's own code got and returned in one call.

    `is_bare` says that gradients and autocast were off, and hooks of saved tensors were not.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    is_bare: bool

    def is_all(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Whether the wrappers passed on exactly these inputs and outputs."""
        return self.is_bare and are_the_same(self.inputs, inputs) and are_the_same(self.outputs, outputs)


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

    def seen(self, args: list[Any]) -> Sequence[Any]:
        """Run the graph's code for the wrappers, and note its inputs and outputs in the first call."""
        if self.is_direct is not None:
            return self.call(args)
        inputs = tuple(args)
        is_bare = not torch.is_grad_enabled() and not is_autocast_on() and why_no_saved_hooks() is None
        outputs = self.call(args)
        self.local.sighting = Sighting(inputs, outputs, is_bare)
        return outputs

    def first(self, wrapped: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Sequence[Any]:
        """Call through the wrappers, and decide whether later calls may skip them."""
        try:
            outputs = wrapped(*args)
            sighting = getattr(self.local, "sighting", None)
            if sighting is not None:  # else another thread has settled it meanwhile
                self.is_direct = self.settled(sighting, args, outputs)
        finally:
            self.local.__dict__.clear()
        return outputs

    def settled(self, sighting: Sighting, args: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Whether later calls may skip the wrappers, which returned `outputs` for `args`."""
        return sighting.is_all(args, outputs)

    def around(
        self, wrapped: Callable[..., Sequence[Any]], captured: Callable[..., Sequence[Any]]
    ) -> Callable[..., Sequence[Any]]:
        """The function that TorchDynamo calls in place of `wrapped`, which ends in `seen`.

        It calls `captured` where tensors may have forward derivatives.
        """
        call, written, is_grad_enabled = self.call, self.written, torch.is_grad_enabled

        def direct(*args: Any) -> Sequence[Any]:
            if forward_ad._current_level >= 0:
                return captured(*args)
            if not self.is_direct:
                return self.first(wrapped, args) if self.is_direct is None else wrapped(*args)
            if written:
                increment_version([args[place] for place in written])
            if not is_grad_enabled():
                return call([*args])
            set_grad_enabled(False)
            try:
                return call([*args])
            finally:
                set_grad_enabled(True)

        return direct


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
    if facts is None or (
        facts.num_mutated_inp_runtime_indices
        or facts.num_outputs_aliased
        or facts.dynamic_outputs
        or facts.tokens
        or facts.is_rng_op_functionalized
        or facts.grad_enabled_mutation is not None
    ):
        return None
    return (*facts.mutated_graph_handled_indices_seen_by_autograd,)


def without_autocast(call: Call) -> Call:
    """Turn autocast off around a call: its graph has autocast's casts in it."""

    def cast(args: list[Any]) -> Sequence[Any]:
        with autocast_off():
            return call(args)

    return cast


def are_the_same(these: Sequence[Any], those: Sequence[Any]) -> bool:
    return len(these) == len(those) and all(one is other for one, other in zip(these, those, strict=True))
