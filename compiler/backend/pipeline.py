"""The compiler passes, in order. `run` runs and times them, and verifies and keeps the program after each.

A `Watcher` reports the stages of each graph to an exploration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from compiler.backend.ir import Program
from compiler.backend.options import BackendOptions
from compiler.backend.passes.combo import combine
from compiler.backend.passes.context import Context
from compiler.backend.passes.fission import fission
from compiler.backend.passes.fold_padding import fold_padding
from compiler.backend.passes.fuse import fuse
from compiler.backend.passes.inline import inline
from compiler.backend.passes.matmuls import fuse_matmuls, fuse_small_matmuls
from compiler.backend.passes.one_hot import one_hot
from compiler.backend.passes.order import order
from compiler.backend.passes.recompute import recompute
from compiler.backend.passes.reorder import reorder
from compiler.backend.passes.schedule import schedule
from compiler.backend.passes.simplify import simplify
from compiler.backend.passes.split import split
from compiler.backend.passes.verify import BrokenProgramError, verify

Pass: TypeAlias = Callable[[Program, Context], Program]

PASSES: Mapping[str, Pass] = {
    "simplify": simplify,  # fold constants, merge equal loops, remove unused steps
    "fold_padding": fold_padding,  # compute values directly in the padded copies that extern calls read
    "inline": inline,  # inline cheap expressions into their readers
    "split": split,  # on GPUs: split long reductions with few results in two
    "fuse": fuse,  # merge kernels that share buffers
    "fission": fission,  # on GPUs: split kernels again that would access memory in short runs
    "one_hot": one_hot,  # replace one-hot sums by their only non-zero term
    "recompute": recompute,  # on GPUs: recompute values if that moves fewer bytes than loading them
    "matmuls": fuse_small_matmuls,  # on GPUs: fuse small matmuls with the kernels that read them
    "order": order,  # sort and merge the ranges of loops to follow memory
    "combine": combine,  # on GPUs: merge small independent kernels into one launch
    "reorder": reorder,  # on GPUs: run steps in the order with the lowest peak memory
    "schedule": schedule,  # plan when buffers are freed and which memory is reused
}
"""A pass is a pure function: Program, Context -> Program. It returns the same object if it changes nothing."""

_STAGES = {
    "simplify": "simplified", "inline": "inlined", "fuse": "fused", "order": "ordered", "combine": "combined",
    "reorder": "reordered", "schedule": "scheduled",
}  # fmt: skip


def stage_name(pass_name: str) -> str:
    """Name of the stage after a pass: `fused` after `fuse`, by default the name of the pass."""
    return _STAGES.get(pass_name, pass_name)


def passes_for_tuning(passes: Mapping[str, Pass]) -> Mapping[str, Pass]:
    """The passes for mode="max-autotune": as given, but matmuls of any size may be fused with kernels."""
    return {**passes, "matmuls": fuse_matmuls} if passes["matmuls"] is fuse_small_matmuls else passes


@dataclass(frozen=True, slots=True)
class Stages:
    """Result of a run of the passes.

    `programs` has the program after each pass, "lowered" first. `seconds` has the time of each pass.
    """

    programs: Mapping[str, Program]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def last(self) -> Program:
        """The program after the last pass, for code generation."""
        return list(self.programs.values())[-1]


def run(lowered: Program, ctx: Context, passes: Mapping[str, Pass] = PASSES) -> Stages:
    """Run all passes and verify the program after each. Raises BrokenProgramError, naming the faulty pass."""
    verify(lowered)
    programs, seconds = {"lowered": lowered}, {}
    program = lowered
    for name, change in passes.items():
        ctx.pass_name = name
        start = time.perf_counter()
        changed = change(program, ctx)
        seconds[name] = time.perf_counter() - start
        if changed is not program:
            _check(changed, name, program)
        program = programs[name] = changed
    return Stages(programs, seconds)


def _check(program: Program, name: str, before: Program) -> None:
    if not isinstance(program, Program):
        raise BrokenProgramError(f"the pass {name} returned {program!r:.40}, not a Program")
    try:
        verify(program, before)
    except BrokenProgramError as error:
        raise BrokenProgramError(f"after the pass {name}:\n{error}") from None


class Watcher(Protocol):
    """Observes compilations, one graph after the other.

    `builds` says whether code is compiled; if not, the reference interpreter runs the graphs. `replaces` says whether
    later calls run FX graphs instead of compiled code, for which AOTAutograd's wrappers are needed.
    """

    builds: bool
    replaces: bool

    def after_passes(self, stages: Stages, ctx: Context, options: BackendOptions) -> None:
        """Called after the passes of the graph `ctx.graph`, before code generation."""


_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def watcher() -> Watcher | None:
    """The active watcher, or None."""
    return _WATCHER.get()


@contextmanager
def watch(by: Watcher) -> Iterator[None]:
    """Report to `by` all graphs that are compiled inside the `with` block."""
    token = _WATCHER.set(by)
    try:
        yield
    finally:
        _WATCHER.reset(token)
