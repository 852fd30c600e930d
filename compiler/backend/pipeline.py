"""The passes, in order. `run` alone times, names and verifies them and keeps what each one made.

A `Watcher` tells an exploration what the backend makes of each graph.
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
    "simplify": simplify,  # constants folded, what nothing needs left out
    "fold_padding": fold_padding,  # what a call reads padded, computed where the padded copy is
    "inline": inline,  # cheap expressions in place of reads of them
    "split": split,  # on GPUs, long reductions with few results in two steps
    "fuse": fuse,  # kernels merged that share what they read and write
    "fission": fission,  # on GPUs, kernels split again that would access memory in short runs
    "one_hot": one_hot,  # one-hot sums as their only non-zero term
    "recompute": recompute,  # on GPUs, values computed again where that moves fewer bytes
    "matmuls": fuse_small_matmuls,  # on GPUs, small matmuls in one kernel with what reads them
    "order": order,  # loops walk memory in its order, and as few of them as it takes
    "combine": combine,  # on GPUs, small kernels that do not need each other share a launch
    "reorder": reorder,  # on GPUs, steps in the order that holds least memory at once
    "schedule": schedule,  # when buffers are freed, and who takes over whose memory
}
"""A pass is a pure function: Program, Context -> Program. It returns the same object if it changes nothing."""

_STAGES = {
    "simplify": "simplified", "inline": "inlined", "fuse": "fused", "order": "ordered", "combine": "combined",
    "reorder": "reordered", "schedule": "scheduled",
}  # fmt: skip


def stage_name(pass_name: str) -> str:
    """What a program is called after a pass: `fused` after `fuse`; else by the pass's own name."""
    return _STAGES.get(pass_name, pass_name)


def passes_for_tuning(passes: Mapping[str, Pass]) -> Mapping[str, Pass]:
    """The passes of mode="max-autotune" on a GPU: matmuls of any size may be fused with kernels."""
    return {**passes, "matmuls": fuse_matmuls} if passes["matmuls"] is fuse_small_matmuls else passes


@dataclass(frozen=True, slots=True)
class Stages:
    """What each pass made, "lowered" first, and how long it took, in seconds."""

    programs: Mapping[str, Program]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def last(self) -> Program:
        """The program that code is written for."""
        return list(self.programs.values())[-1]


def run(lowered: Program, ctx: Context, passes: Mapping[str, Pass] = PASSES) -> Stages:
    """Run all passes. Each program is verified; one that is broken raises BrokenProgramError, naming the pass."""
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
    """Called for one graph after the other.

    `builds` is whether code is built to run or only to be read. `replaces` is whether later calls run graphs in place
    of code; those go through AOTAutograd's wrappers then.
    """

    builds: bool
    replaces: bool

    def after_passes(self, stages: Stages, ctx: Context, options: BackendOptions) -> None:
        """Called after the passes of the graph `ctx.graph`, before code is written."""


_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def watcher() -> Watcher | None:
    """The active watcher."""
    return _WATCHER.get()


@contextmanager
def watch(by: Watcher) -> Iterator[None]:
    """Report the graphs that are compiled in a block to `by`."""
    token = _WATCHER.set(by)
    try:
        yield
    finally:
        _WATCHER.reset(token)
