"""Who is told what the backend makes of each graph: an exploration, which shows it. Outside of one nobody is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from compiler.backend.context import Context
    from compiler.backend.options import BackendOptions
    from compiler.backend.pipeline import Stages


class Watcher(Protocol):
    """Hears of one graph after the other. `builds` says whether code is made to run, or only to be read."""

    builds: bool

    def passed(self, stages: Stages, ctx: Context, options: BackendOptions) -> None:
        """The passes are done with the graph that is named `ctx.graph`; code is written next."""


_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def watcher() -> Watcher | None:
    """Who is to be told now."""
    return _WATCHER.get()


@contextmanager
def watched(by: Watcher) -> Iterator[None]:
    """Tell `by` of the graphs that are compiled in the block."""
    token = _WATCHER.set(by)
    try:
        yield
    finally:
        _WATCHER.reset(token)
