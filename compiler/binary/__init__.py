"""Triton kernels as machine code, without the GPU: TTIR, TTGIR, LLIR, PTX and SASS, or AMDGCN; and what they tell.

`compile_record(record)` compiles the kernels of a record in parallel, in processes of their own, and returns the record
with an artifact for each kernel and stage, and facts (`compiler.record.Binary`). `compile_incrementally` yields the
record kernel by kernel. Nothing is compiled before it is asked for, and a record that was loaded from a file will do:
the source of its kernels is in it. That source is executed, as running the notebook it came from would: compile what
you trust.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.binary.compiling import CompilationInterrupted, compile_incrementally, compile_record

__all__ = ["CompilationInterrupted", "compile_incrementally", "compile_record"]


def __getattr__(name: str) -> Any:
    """Import `compiling` lazily: it imports torch, which the processes that run Triton do without."""
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.compiling"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
