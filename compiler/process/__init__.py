"""The user's process, left as it was found; garbage collection; child processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

LARGEST_THRESHOLD = 2**31 - 1
"""CPython keeps thresholds as C integers. A user, or torch 2.15 during a compilation, may have raised the last one."""


@contextmanager
def preserve_state() -> Iterator[None]:
    """Restore warning filters and the recursion limit, which one compilation changes.

    Random state is not here: a compiled call must advance it just as the plain call would, and Inductor restores it
    around its own work (torch._dynamo.utils.preserve_rng_state).
    """
    limit, filters, show = sys.getrecursionlimit(), warnings.filters, warnings.showwarning
    known = list(filters)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        # Not always catch_warnings: with it, Python shows every warning again that it has shown once.
        if warnings.filters is not filters or list(filters) != known or warnings.showwarning is not show:
            warnings.filters, warnings.showwarning = known, show
            with warnings.catch_warnings():
                pass


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is collected in the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def fewer_full_collections(factor: int) -> Iterator[None]:
    """Make Python's full garbage collections in the block rarer by a factor.

    A full one walks every object there is, a waste while many are made that stay. Not for repeated work: without
    any, the process grows.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0], thresholds[1], min(factor * thresholds[2], LARGEST_THRESHOLD))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def made_to_stay() -> Iterator[None]:
    """Count objects made in the block as old at its end, without a full collection."""
    with fewer_full_collections(1_000_000):
        yield
        if not gc.get_freeze_count():  # now: under the old thresholds the next object may start one
            gc.freeze()  # takes all objects out of the young generations, without a look at them,
            gc.unfreeze()  # and this puts them into the oldest one


def start_in_own_group(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program that leads a process group: Jupyter interrupts all of the kernel's group.

    It gets no input, and its output is dropped, unless `options` (those of subprocess.Popen) say otherwise.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    return subprocess.Popen(command, **{**pipes, **options}, process_group=0)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """End a program that leads a process group, with all that it has started."""
    with suppress(ProcessLookupError, PermissionError):  # the group is gone
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_in_own_group(
    command: Sequence[str], given: str = "", timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a process group of its own, with `given` as its input.

    However this ends, the program and all that it has started have ended. Raises OSError,
    subprocess.TimeoutExpired.
    """
    pipe = subprocess.PIPE
    process = start_in_own_group(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        output, errors = process.communicate(given, timeout)
    finally:
        kill_group(process)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
