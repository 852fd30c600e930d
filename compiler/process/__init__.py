"""Preserve the user's process state, control garbage collection, and run child processes."""

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
"""Largest gc threshold: a C int in CPython. The user, or torch 2.15 while it compiles, may have raised thresholds."""


@contextmanager
def preserve_state() -> Iterator[None]:
    """Restore warning filters and the recursion limit after the block, as a compilation changes them.

    Random state is not restored: a compiled call must advance it like the plain call, and Inductor restores it after
    its own work (torch._dynamo.utils.preserve_rng_state).
    """
    limit, filters, show = sys.getrecursionlimit(), warnings.filters, warnings.showwarning
    known = list(filters)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        # catch_warnings only if needed: after it, Python shows once-only warnings again.
        if warnings.filters is not filters or list(filters) != known or warnings.showwarning is not show:
            warnings.filters, warnings.showwarning = known, show
            with warnings.catch_warnings():
                pass


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn garbage collection off in the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def fewer_full_collections(factor: int) -> Iterator[None]:
    """Run Python's full garbage collections `factor` times less often within the block.

    A full collection visits every object, which is wasteful while many long-lived objects are created. Not for repeated
    work: without full collections the process grows.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0], thresholds[1], min(factor * thresholds[2], LARGEST_THRESHOLD))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def made_to_stay() -> Iterator[None]:
    """Move objects created in the block to the oldest generation at its end, without a full collection."""
    with fewer_full_collections(1_000_000):
        yield
        if not gc.get_freeze_count():  # before the thresholds are restored: the next object might start a collection
            gc.freeze()  # takes all objects out of the young generations without visiting them,
            gc.unfreeze()  # and this moves them to the oldest generation


def start_in_own_group(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program in its own process group, because Jupyter interrupts the kernel's whole group.

    The program gets no input, and its output is dropped, unless `options` (of subprocess.Popen) say otherwise.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    return subprocess.Popen(command, **{**pipes, **options}, process_group=0)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a program's process group, including all child processes, and wait for the program."""
    with suppress(ProcessLookupError, PermissionError):  # the group is gone
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_in_own_group(
    command: Sequence[str], given: str = "", timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in its own process group, with `given` as its input.

    The process group is always killed at the end. Raises OSError, subprocess.TimeoutExpired.
    """
    pipe = subprocess.PIPE
    process = start_in_own_group(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        output, errors = process.communicate(given, timeout)
    finally:
        kill_group(process)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
