"""Compilations that tcompile runs for itself: with separate caches, and torch's state restored."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch._dynamo.guards as guards
import torch._functorch.config as functorch_config
from torch._inductor.utils import fresh_cache

from compiler.torch_api import dynamo
from compiler.torch_api.patching import Function, call_instead, replace_attribute, set_environment
from compiler.torch_api.unread import check_once

# Each candidate adds a cache entry to each code object; torch's limit is 8.
MOST_ENTRIES = 256
GUARD_CHECKS = 200


@contextmanager
def forget_compilations(on_guards: Callable[[float], None] | None = None) -> Iterator[dynamo.BreakCounter]:
    """At the end of the block, drop its compilations but keep the user's. In the block, compile errors are raised.

    Yields a counter of the block's compilations.

    `on_guards(seconds)`, if given, is called for each compilation with the time of one check of its guards, with warm
    CPU caches.
    """

    def time_checks(_: Function, root: Any, f_locals: dict[str, Any], *args: Any) -> float:
        if on_guards is not None:
            on_guards(_check_seconds(root, f_locals))
        return check_once(root, f_locals, *args)

    limits = ("recompile_limit", "accumulated_recompile_limit")
    low = [name for name in limits if getattr(dynamo_config, name) < MOST_ENTRIES]
    counter = dynamo.BreakCounter()
    with (
        set_environment(),  # torch.compile sets environment variables for CUPTI when it uses CUDA graphs
        dynamo.observe(counter),
        dynamo_config.patch({"suppress_errors": False, **dict.fromkeys(low, MOST_ENTRIES)}),
        replace_attribute(guards, "profile_guard_manager", call_instead(time_checks)),
    ):
        yield counter


def recompile_limit() -> int:
    """How often torch compiles a code object, as the user has set it."""
    return int(dynamo_config.recompile_limit)


def call_without_compiling(step: Callable[[], Any]) -> Callable[[], None]:
    """The call as it runs from the recompile limit on: code that fits no compiled code runs as plain Python."""

    def call() -> None:
        with torch.compiler.set_stance("eager_on_recompile"):
            step()

    return call


def keep_saved_tensors() -> AbstractContextManager[None]:
    """Let code that is compiled in the block run its backward pass more than once (`retain_graph=True`)."""
    return functorch_config.patch("donated_buffer", False)


def _check_seconds(root: Any, f_locals: dict[str, Any]) -> float:
    root.check(f_locals)
    start = time.perf_counter_ns()
    for _ in range(GUARD_CHECKS):
        root.check(f_locals)
    return (time.perf_counter_ns() - start) / GUARD_CHECKS * 1e-9


def cache_folder() -> AbstractContextManager[str]:
    """A temporary folder for candidates' caches; kept until the block ends, as compiled code may be loaded late."""
    return tempfile.TemporaryDirectory(prefix="tcompile-time-", ignore_cleanup_errors=True)


def empty_caches(folder: str) -> AbstractContextManager[None]:
    """Give the block empty caches in memory and on disk; the disk cache is kept in `folder`."""
    return fresh_cache(dir=folder, delete=False)
