"""Repeat a call of the user's, with the program changed, and put everything back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from compiler.calls.call import Call
from compiler.calls.process_state import preserve_process
from compiler.calls.state import Restore, State, roots_of, same_random_numbers
from compiler.record.break_facts import BreakFacts
from compiler.torch_api import dynamo
from compiler.torch_api.module_calls import without_compiled_call
from compiler.torch_api.patching import Function
from compiler.torch_api.pytrees import tree_leaves
from compiler.xray.outside import STOPS, Heard, inside_the_process, mute, unheard
from compiler.xray.substitution import Noted, Program, StandIn
from compiler.xray.time_limit import time_limit

SECONDS = 60.0
"""Maximum duration of each run of the call, in seconds, as a repeated program may never end."""
FORMS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x, lambda x: 10 * x, lambda x: 0.1 * x, lambda x: x.abs(), lambda x: -x.abs(), lambda x: 100 * x,
    lambda x: x + 1, lambda x: x - 1, lambda x: 0.01 * x, lambda x: x.abs() + 10, lambda x: 0 * x,
)  # fmt: skip
"""Functions of normal random numbers, by seed: together they take most branches of a program."""


@dataclass(frozen=True)
class Bench:
    """Repeats one call with changed programs. `restore` restores the user's objects before each run.

    Each run may take `seconds`. `changed` are the names of the process-wide settings that the call changes. `heard` is
    the output of the last run that recorded values.
    """

    call: Call
    restore: Restore
    seconds: float = SECONDS
    changed: dict[str, None] = field(default_factory=dict)
    heard: Heard = field(default_factory=Heard)

    @property
    def roots(self) -> list[tuple[str, Any]]:
        """The call's function and arguments, with names: the objects from which its state is reached."""
        return roots_of(self.call.fn, self.call.args, self.call.kwargs)

    def call_once(self, backend: str = "") -> Any:
        """Make the call, compiled for a backend, or eagerly; return its value."""
        function = self.compile_function(backend) if backend else self.function
        return function(*self.call.args, **self.call.kwargs)

    def compile_function(self, backend: str = "eager", dynamic: bool | None = None) -> Function:
        """The function to call, compiled."""
        return dynamo.compile_function(self.function, dynamo.named_backend(backend), dynamic=dynamic, fullgraph=False)

    def draw_inputs(self, seed: int | None) -> None:
        """Fill the tensors in the arguments with random numbers; do nothing if `seed` is None.

        Floats are normal, larger, smaller or of one sign, as the seed says. Other numbers, such as indices, change
        places. Only tensors on the CPU are filled.
        """
        if seed is None:
            return
        generator = torch.Generator().manual_seed(seed)
        form = FORMS[seed % len(FORMS)]
        with torch.no_grad():
            for leaf in tree_leaves((tuple(self.call.args), dict(self.call.kwargs))):
                if not _can_be_filled(leaf):
                    continue
                if leaf.is_floating_point():
                    leaf.data.copy_(form(torch.randn(leaf.shape, generator=generator)))
                else:
                    places = torch.randperm(leaf.numel(), generator=generator)
                    leaf.data.copy_(leaf.detach().flatten()[places].view(leaf.shape))

    def run_noting(
        self, program: Program, noted: Noted, left_out: frozenset[int], seed: int | None = None
    ) -> BaseException | None:
        """Run the call eagerly and record values; return the exception or None. With a seed, inputs are random."""
        self.restore()
        self.heard.clear()
        try:
            with program.with_notes(noted, left_out), self.in_its_modes(self.changed), unheard(self.heard):
                self.draw_inputs(seed)
                self.function(*self.call.args, **self.call.kwargs)
        except STOPS as error:
            return error
        finally:
            self.restore()
        return None

    def first_break(
        self, program: Program, stand_ins: Mapping[int, StandIn], left_out: frozenset[int] = frozenset()
    ) -> BreakFacts | None:
        """First break of the call with values in place of spots; None if the call is captured as one graph."""
        self.restore()
        try:
            with program.with_stand_ins(stand_ins, left_out), self.in_its_modes(), inside_the_process(), mute():
                return dynamo.break_of_call(self.function, self.call.args, self.call.kwargs)
        finally:
            self.restore()

    @property
    def function(self) -> Function:
        """The function to call, uncompiled."""
        return dynamo.inner_function(self.call.fn) or self.call.fn

    @contextmanager
    def in_its_modes(self, changed: dict[str, None] | None = None) -> Iterator[None]:
        """Run a block in the call's modes, with limited time; restore changed settings and name them in `changed`."""
        with (
            warnings.catch_warnings(),
            without_compiled_call(self.function),
            self.call.surroundings.restore(),
            preserve_process({} if changed is None else changed),
            time_limit(self.seconds),
        ):
            warnings.simplefilter("ignore")
            yield


def _can_be_filled(leaf: Any) -> bool:
    """Whether an argument is a dense tensor on the CPU without repeated elements."""
    is_dense = isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided
    return is_dense and 0 not in leaf.stride()


@contextmanager
def repeatable(call: Call, *later: Call) -> Iterator[Restore]:
    """Yield a function that restores the state before a call; after the block, restore the current state.

    If the state before the call was not saved, the function restores the current state. The objects of `later` calls
    are restored after the block too.
    """
    before = call.before
    state = State.of([root for each in (call, *later) for root in _objects_of(each)])
    with same_random_numbers() as restore_random:

        def restore() -> None:
            state.restore()
            restore_random()
            if before:
                before.restore()

        try:
            yield restore
        finally:
            state.restore()
            restore_random()


def restore_before(call: Call) -> None:
    """Restore the state before a call, if it was saved."""
    if call.before is not None:
        call.before.restore()


def _objects_of(call: Call) -> list[tuple[str, Any]]:
    """Objects from which a call's state is reached, now and before the call."""
    return [*roots_of(call.fn, call.args, call.kwargs), *(call.before.objects if call.before else ())]
