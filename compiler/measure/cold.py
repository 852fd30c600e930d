"""A candidate's first call: compiled with empty caches in a folder of its own, apart from what the user compiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from compiler.measure.candidates import INDUCTOR, OWN
from compiler.measure.rounds import Clock
from compiler.options import Options
from compiler.torch_api import apart, generated_text


@dataclass
class Heard:
    """What was compiled in a first call: its seconds, graphs, Inductor's code of each, and what one check of all guards
    takes, in seconds (None where there are none).
    """

    seconds: float = 0.0
    graphs: int = 0
    codes: list[str] = field(default_factory=list)
    guards: float | None = None

    @property
    def kernels(self) -> int | None:
        """Different generated kernels; None where Inductor wrote no code."""
        return sum(map(generated_text.kernels, self.codes)) if self.codes else None

    @property
    def calls(self) -> int | None:
        """Kernels and library routines that one call runs, counted in the generated code."""
        return sum(map(generated_text.calls, self.codes)) if self.codes else None


class ColdCompiler:
    """Makes first calls. `apart` is what they, and all later calls of what they compiled, are made in."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self.options, self.clock = options, clock
        self._folder = ""
        self._heard: Heard | None = None

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The user's compiled code, caches and settings are as they were at the end of the block."""
        with ExitStack() as stack:
            self._folder = stack.enter_context(apart.cache_folder())
            stack.enter_context(apart.empty_caches(self._folder))
            stack.enter_context(apart.apart(self._guarded))
            stack.enter_context(generated_text.hearing_code(self._generated))
            yield

    def first_call(self, step: Callable[[], None]) -> Heard:
        """Make a call that compiles, until all that it launched is done. Raises what the backend raises."""
        heard = self._heard = Heard()
        try:
            self.clock.finished()
            start = time.perf_counter()
            with apart.empty_caches(self._folder):
                step()
                self.clock.finished()
            heard.seconds = time.perf_counter() - start
        finally:
            self._heard = None
        return heard

    def start(self, device: torch.device, *, ours: bool = False) -> None:
        """What the first compilation of a process for a GPU does once (workers, Triton) is no candidate's."""
        for spec in (INDUCTOR, *([OWN] if ours else [])):
            compiled = spec.compiled(_sine, self.options, lambda: None)
            self.first_call(partial(compiled, torch.ones(8, device=device)))

    def graph(self) -> None:
        """A graph is compiled."""
        if self._heard is not None:
            self._heard.graphs += 1

    def _guarded(self, seconds: float) -> None:
        if self._heard is not None:
            self._heard.guards = (self._heard.guards or 0.0) + seconds

    def _generated(self, code: str) -> None:
        if self._heard is not None:
            self._heard.codes.append(code)


def _sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()
