"""The C++ compiler of this machine, and the command by which our backend's kernels are compiled."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

FLAGS = (
    "-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fopenmp", "-shared", "-fPIC", "-fwrapv",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-strict-aliasing", "-w",
)  # fmt: skip


def compiler() -> tuple[str, ...]:
    """The C++ compiler's command, split into words: from the variable CXX, else g++, else clang++.

    Empty if none is found. Warns if the command in CXX can't be used.
    """
    named = os.environ.get("CXX", "").strip()
    for command in filter(None, (named, "g++", "clang++")):
        try:
            program, *rest = shlex.split(command)
        except ValueError as error:
            _warn_of_variable(named, f"is no command: {error}")
            continue
        if found := shutil.which(program):
            return found, *rest
        if command is named:
            _warn_of_variable(named, f"and there is no program {program!r}")
    return ()


@cache
def _warn_of_variable(named: str, why: str) -> None:
    warnings.warn(f"CXX names {named!r}, {why}. Another C++ compiler is looked for", stacklevel=3)


@cache
def has_vector_math() -> bool:
    """Whether g++ can use vectorized math functions of the C library: glibc 2.35 or later on x86-64."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or "clang" in " ".join(compiler()):
        return False
    try:
        return hasattr(ctypes.CDLL("libmvec.so.1"), "_ZGVbN4v_tanhf")
    except OSError:
        return False


def command_for(program: Sequence[str], source: Path, library: Path) -> list[str]:
    """The command that compiles generated code to a shared library."""
    native = ["-march=native"] * (platform.machine() in ("x86_64", "AMD64"))
    vector = ["-lmvec"] * has_vector_math()
    return [*program, *FLAGS, *native, str(source), "-o", str(library), *vector, "-lm"]
