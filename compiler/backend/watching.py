"""Tell an exploration what the backend makes of each graph. No-op unless an exploration is active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from compiler.backend.options import BackendOptions
    from compiler.backend.passes.context import Context
    from compiler.backend.pipeline import Stages


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
