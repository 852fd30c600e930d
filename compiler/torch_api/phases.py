"""Where torch's compile time goes, by its own events: those that it writes for Chromium's trace viewer.

Each has a name, the compilation that it is for, and those around it. They are heard where torch logs them, so neither
the structured trace nor any file is needed. Events of other threads and processes (g++ and Triton at work in parallel)
are not counted: the event in which torch waits for them is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo.utils import ChromiumEventLogger
from torch._guards import CompileContext, CompileId

from compiler.torch_api.patching import call_unseen, replaced, unseen

Key = tuple[int, int] | None


@dataclass(slots=True)
class PhaseFacts:
    """All events of one name in one compilation, inside `parent`; `seconds` is their sum."""

    name: str
    key: Key
    parent: str
    seconds: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    name: str
    key: Key
    began: float
    wanted: bool


@dataclass
class PhaseLog:
    """Hears torch's events. `now` is the clock; `wanted` says whether to count them now."""

    now: Callable[[], float]
    wanted: Callable[[], bool]
    found: dict[tuple[Key, str, str], PhaseFacts] = field(default_factory=dict)
    _open: list[_Open] = field(default_factory=list)
    _thread: int = field(default_factory=threading.get_ident)

    @contextmanager
    def hearing(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(replaced(ChromiumEventLogger, "log_event_start", self._wrap_start))
            stack.enter_context(replaced(ChromiumEventLogger, "log_event_end", self._wrap_end))
            yield

    def _wrap_start(self, log: Callable[..., None]) -> Callable[..., None]:
        @unseen
        def wrapper(logger: Any, event_name: str, *args: Any, **kwargs: Any) -> None:
            log(logger, event_name, *args, **kwargs)
            if threading.get_ident() == self._thread:
                call_unseen(self._started, event_name)

        return wrapper

    def _wrap_end(self, log: Callable[..., None]) -> Callable[..., None]:
        @unseen
        def wrapper(logger: Any, event_name: str, *args: Any, **kwargs: Any) -> None:
            if threading.get_ident() == self._thread:
                call_unseen(self._ended, event_name)
            log(logger, event_name, *args, **kwargs)

        return wrapper

    def _started(self, name: str) -> None:
        key = _key(CompileContext.current_compile_id()) or (self._open[-1].key if self._open else None)
        self._open.append(_Open(name, key, self.now(), self.wanted()))

    def _ended(self, name: str) -> None:
        """Close an event. One that an error ended has no end from torch, and is dropped."""
        depth = next((index for index in reversed(range(len(self._open))) if self._open[index].name == name), None)
        if depth is None:
            return
        event = self._open[depth]
        del self._open[depth:]
        again = any(around.name == name and around.key == event.key for around in self._open)
        if event.wanted and not again:  # torch compiles a subgraph in the phases that it is compiled in
            parent = self._open[-1].name if self._open else ""
            facts = self.found.setdefault((event.key, parent, name), PhaseFacts(name, event.key, parent))
            facts.seconds += self.now() - event.began
            facts.count += 1


def _key(compile_id: CompileId | None) -> Key:
    return None if compile_id is None else (compile_id.frame_id or 0, compile_id.frame_compile_id or 0)
