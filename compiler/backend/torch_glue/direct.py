"""Call a compiled inference graph without AOTAutograd's wrappers.

AOTAutograd wraps an inference graph for mutated inputs, outputs that are views, subclasses, random numbers and effects
(torch._functorch._aot_autograd.runtime_wrappers). For a graph with none of these, the wrappers only turn gradients and
autocast off, and bump the versions of inputs that the graph mutates. The first call goes through the wrappers and is
observed. Later calls skip them only if the first call's inputs and outputs went through them unchanged.
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
"""Metadata of features for which AOTAutograd's wrappers are needed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Inputs and outputs of the graph's own code in one call.

    `is_bare` says whether gradients and autocast were off, and saved-tensor hooks were allowed.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    is_bare: bool


class Watched:
    """The code of an inference graph, observed in the first call through AOTAutograd's wrappers.

    Several threads may make a first call at the same time. `autocast` says whether autocast was on during compilation.
    `written` are the indices of the inputs that the graph mutates.
    """

    def __init__(self, call: Call, autocast: bool, written: Sequence[int] = ()) -> None:
        self.call = without_autocast(call) if autocast else call
        self.written = written
        self.local = threading.local()
        self.is_direct: bool | None = None

    def run(self, args: list[Any]) -> Sequence[Any]:
        """Run the graph's code inside the wrappers; in the first call, record its inputs and outputs."""
        if self.is_direct is not None:
            return self.call(args)
        inputs = tuple(args)
        is_bare = not torch.is_grad_enabled() and not is_autocast_on() and why_no_saved_hooks() is None
        outputs = self.call(args)
        self.local.observation = Observation(inputs, outputs, is_bare)
        return outputs

    def call_first(self, wrapped: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Sequence[Any]:
        """Make the first call, through the wrappers, and decide whether later calls may skip them."""
        try:
            outputs = wrapped(*args)
            if (found := getattr(self.local, "observation", None)) is not None:  # else another thread has decided
                self.is_direct = found.is_bare and are_the_same(found.inputs, args) and self.may_skip(found, outputs)
        finally:
            self.local.__dict__.clear()
        return outputs

    def may_skip(self, found: Observation, outputs: Sequence[Any]) -> bool:
        """Whether the wrappers returned the code's outputs unchanged, so that later calls may skip them."""
        return are_the_same(found.outputs, outputs)

    def wrap(
        self, wrapped: Callable[..., Sequence[Any]], captured: Callable[..., Sequence[Any]]
    ) -> Callable[..., Sequence[Any]]:
        """The function for TorchDynamo to call in place of `wrapped`, which is `run` inside AOTAutograd's wrappers.

        The function calls `captured` if forward-mode AD may be in use.
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
        """Whether this call may skip the wrappers; only asked if `is_direct` is true."""
        return True

    def call_directly(self, args: Sequence[Any]) -> Sequence[Any]:
        """Call the code without the wrappers, with gradients off as inside them."""
        if not torch.is_grad_enabled():
            return self.call([*args])
        set_grad_enabled(False)
        try:
            return self.call([*args])
        finally:
            set_grad_enabled(True)


def without_forward(call: Callable[..., Any], captured: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `captured` if forward-mode AD may be in use, else `call`.

    Kernels don't support forward-mode AD, and TorchDynamo has no guards against it.
    """

    def call_or_run_captured(*args: Any) -> Any:
        return call(*args) if forward_ad._current_level < 0 else captured(*args)

    return call_or_run_captured


def written_inputs() -> Sequence[int] | None:
    """Indices of the inputs that the graph itself mutates, such as the running statistics of BatchNorm.

    Direct calls bump their versions for autograd. None if AOTAutograd's wrappers are needed.
    """
    facts = forward_facts()
    if facts is None or facts.grad_enabled_mutation is not None or any(getattr(facts, name) for name in _MORE):
        return None
    return (*facts.mutated_graph_handled_indices_seen_by_autograd,)


def without_autocast(call: Call) -> Call:
    """Wrap a call to turn autocast off, as its graph already contains autocast's casts."""

    def cast(args: list[Any]) -> Sequence[Any]:
        with autocast_off():
            return call(args)

    return cast


def are_the_same(these: Sequence[Any], those: Sequence[Any]) -> bool:
    return [*map(id, these)] == [*map(id, those)]
