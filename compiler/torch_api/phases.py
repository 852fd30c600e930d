"""torch's compile time by phase, from the events that torch logs for Chromium's trace viewer.

Each event has a name, a compilation, and enclosing events. The logger is wrapped, so neither the structured trace nor
any file is needed. Events of other threads and processes (parallel builds by g++ and Triton) are not counted, but the
event in which torch waits for them is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo.utils import ChromiumEventLogger

from compiler.torch_api.compilations import NO_COMPILATION, CompileKey, current_key
from compiler.torch_api.patching import call_hidden_before, replace_attributes


@dataclass(slots=True)
class PhaseFacts:
    """Total time in seconds and number of events of one name in one compilation, inside `parent` ("" if outermost)."""

    name: str
    key: CompileKey
    parent: str
    seconds: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    name: str
    key: CompileKey
    began: float
    wanted: bool


@dataclass
class PhaseLog:
    """Collects torch's events. `now` is the clock; an event counts if `wanted()` is true at its start."""

    now: Callable[[], float]
    wanted: Callable[[], bool]
    found: dict[tuple[CompileKey, str, str], PhaseFacts] = field(default_factory=dict)
    _open: list[_Open] = field(default_factory=list)
    _thread: int = field(default_factory=threading.get_ident)

    def listen(self) -> AbstractContextManager[None]:
        """Collect torch's events in the block."""
        start, end = call_hidden_before(self._start), call_hidden_before(self._end)
        return replace_attributes([
            (ChromiumEventLogger, "log_event_start", start), (ChromiumEventLogger, "log_event_end", end),
        ])  # fmt: skip

    def _start(self, _logger: Any, name: str, *_: Any, **__: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        key = current_key()
        if key == NO_COMPILATION and self._open:
            key = self._open[-1].key
        self._open.append(_Open(name, key, self.now(), self.wanted()))

    def _end(self, _logger: Any, name: str, *_: Any, **__: Any) -> None:
        """Close an event. Inner events without an end (torch logs none after an error) are dropped."""
        own = self._open if threading.get_ident() == self._thread else []
        depth = next((index for index in reversed(range(len(own))) if own[index].name == name), None)
        if depth is None:
            return
        event = self._open[depth]
        del self._open[depth:]
        again = any(around.name == name and around.key == event.key for around in self._open)
        if event.wanted and not again:  # torch compiles subgraphs in nested phases of the same names
            parent = self._open[-1].name if self._open else ""
            facts = self.found.setdefault((event.key, parent, name), PhaseFacts(name, event.key, parent))
            facts.seconds += self.now() - event.began
            facts.count += 1
