"""Make a candidate's first call: compile with empty caches in its own folder, isolated from the user's code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from compiler.record.options import Options
from compiler.timing.candidates import INDUCTOR, OWN
from compiler.timing.rounds import Clock
from compiler.torch_api import apart, generated_code


@dataclass
class FirstCall:
    """Facts of a first call: seconds, number of graphs, and Inductor's code of each.

    `guards` is the time of one check of all guards, in seconds; None if there are no guards.
    """

    seconds: float = 0.0
    graphs: int = 0
    codes: list[str] = field(default_factory=list)
    guards: float | None = None

    @property
    def kernels(self) -> int | None:
        """Number of distinct generated kernels; None if Inductor generated no code."""
        return sum(map(generated_code.kernels, self.codes)) if self.codes else None

    @property
    def calls(self) -> int | None:
        """Number of kernels and library routines that one call runs; None if Inductor generated no code."""
        return sum(map(generated_code.calls, self.codes)) if self.codes else None


class ColdCompiler:
    """Makes first calls. First calls, and later calls of the compiled code, must run within `isolate`."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self.options, self.clock = options, clock
        self.graphs, self.recompile_limit = 0, apart.recompile_limit()
        self._folder = ""
        self._running = FirstCall()  # outside of a first call, a dummy

    @contextmanager
    def isolate(self) -> Iterator[None]:
        """Run a block with empty caches, then restore the user's compiled code, caches and settings."""
        with ExitStack() as stack:
            self._folder = stack.enter_context(apart.cache_folder())
            stack.enter_context(apart.empty_caches(self._folder))
            stack.enter_context(apart.forget_compilations(self._add_guards))
            stack.enter_context(generated_code.report_code(self._note_code))
            yield

    def first_call(self, step: Callable[[], None]) -> FirstCall:
        """Make a call that compiles, and wait for its kernels. Raises any exception of the backend."""
        found = self._running = FirstCall()
        try:
            self.clock.synchronize()
            start = time.perf_counter()
            with apart.empty_caches(self._folder):
                step()
                self.clock.synchronize()
            found.seconds = time.perf_counter() - start
        finally:
            self._running = FirstCall()
        return found

    def start(self, device: torch.device, *, ours: bool = False) -> None:
        """Do one-time work of a process's first GPU compilation (workers, Triton), so that no candidate pays for it."""
        for spec in (INDUCTOR, *([OWN] if ours else [])):
            compiled = spec.compile(_sine, self.options, lambda: None)
            self.first_call(partial(compiled, torch.ones(8, device=device)))

    def count_graph(self) -> None:
        """Count a graph, in all and of the current first call."""
        self.graphs += 1
        self._running.graphs += 1

    def _add_guards(self, seconds: float) -> None:
        self._running.guards = (self._running.guards or 0.0) + seconds

    def _note_code(self, code: str) -> None:
        self._running.codes.append(code)


def _sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()
