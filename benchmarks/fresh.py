"""Fresh processes for measurements, with their own, empty torch caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 1800
# Variables that change what torch.compile does, or how long it takes.
CHANGING = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE", "TORCH_LOGS", "TORCH_TRACE", "TRITON_")
TOLD_LINES = 15


class ProcessError(RuntimeError):
    """A measurement's process failed; the message has the command, the error, and the end of the output."""


@contextmanager
def cold() -> Iterator[dict[str, str]]:
    """Environment variables for a process with empty compilation caches.

    It needs its own temporary folder, too: Inductor keeps precompiled headers there, not in its cache folder.
    """
    with tempfile.TemporaryDirectory(prefix="tcompile-bench-", ignore_cleanup_errors=True) as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(CHANGING)}
        yield kept | {
            "TMPDIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "HF_HUB_OFFLINE": "1",
        }


def measured(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run `python -m module arguments` cold, with extra environment variables; return the last JSON object it prints.

    Raises ProcessError.
    """
    command = [sys.executable, "-m", module, *arguments]
    with cold() as variables:
        try:
            done = subprocess.run(
                command, cwd=ROOT, env={**variables, **(environment or {})}, capture_output=True, text=True,
                timeout=LIMIT_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{shown(command)} was stopped after {LIMIT_SECONDS} s") from None
    if done.returncode:
        raise ProcessError(f"{shown(command)} ended with code {done.returncode}:\n{ending(done.stderr)}")
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        raise ProcessError(f"{shown(command)} printed no JSON but:\n{ending(done.stdout + done.stderr)}") from None


def keep_to(share: str) -> None:
    """Use this share of the cores: "1/4" is the second of four."""
    number, of = map(int, share.split("/"))
    if of > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number * len(cores) // of : (number + 1) * len(cores) // of])


def shown(command: list[str]) -> str:
    return " ".join(["python", *command[1:]])


def ending(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-TOLD_LINES:])
