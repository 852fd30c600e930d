"""Compilations of tcompile's own: with separate caches, and with torch's changes undone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch._dynamo.config as dynamo_config
import torch._dynamo.guards as guards
from torch._inductor.utils import fresh_cache

from compiler.torch_api import dynamo
from compiler.torch_api.patching import replaced
from compiler.torch_api.unread import check_once

# Each candidate has an entry of its own for each code object; torch gives up at 8.
MOST_ENTRIES = 256
GUARD_CHECKS = 200


@contextmanager
def forget_compilations(guarded: Callable[[float], None]) -> Iterator[None]:
    """Forget the block's compilations at its end, keep the user's, and raise errors as usual.

    `guarded` hears for each compilation how many seconds one check of its guards takes, with warm caches of the
    CPU.
    """

    def wrap_profile(_: Callable[..., float]) -> Callable[..., float]:
        def time_checks(root: Any, f_locals: dict[str, Any], *args: Any) -> float:
            guarded(_check_seconds(root, f_locals))
            return check_once(root, f_locals, *args)

        return time_checks

    settings = {"suppress_errors": False, **dict.fromkeys(_limits(), MOST_ENTRIES)}
    with (
        _environment(),
        dynamo.observe(dynamo.Unheard()),
        dynamo_config.patch(settings),
        replaced(guards, "profile_guard_manager", wrap_profile),
    ):
        yield


def _limits() -> list[str]:
    known = ("recompile_limit", "accumulated_recompile_limit")
    return [name for name in known if getattr(dynamo_config, name) < MOST_ENTRIES]


def _check_seconds(root: Any, f_locals: dict[str, Any]) -> float:
    root.check(f_locals)
    start = time.perf_counter_ns()
    for _ in range(GUARD_CHECKS):
        root.check(f_locals)
    return (time.perf_counter_ns() - start) / GUARD_CHECKS * 1e-9


@contextmanager
def _environment() -> Iterator[None]:
    """torch.compile sets variables that CUPTI reads where it is to make CUDA graphs."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def cache_folder() -> Iterator[str]:
    """A folder for candidates' caches, deleted after the block: built code is read from it late."""
    folder = tempfile.mkdtemp(prefix="tcompile-time-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def empty_caches(folder: str) -> Iterator[None]:
    """Give the block empty caches in memory and on disk; what it caches stays in `folder`."""
    with fresh_cache(dir=folder, delete=False):
        yield
