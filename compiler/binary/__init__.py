"""Compile Triton kernels without the GPU, to TTIR, TTGIR, LLIR, PTX and SASS or AMDGCN, and analyze the machine code.

`compile_record(record)` compiles the kernels of a record in parallel, in separate processes. It returns the record with
an artifact for each kernel and stage, and facts (`compiler.record.Binary`). `compile_incrementally` yields the record
after each kernel. Nothing is compiled before it is requested. A record loaded from a file suffices, as it contains the
kernels' source. The source is executed, as if you ran the record's notebook: compile only what you trust.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.binary.compiling import CompilationInterrupted, compile_incrementally, compile_record

__all__ = ["CompilationInterrupted", "compile_incrementally", "compile_record"]


def __getattr__(name: str) -> Any:
    """Import `compiling` lazily, as it imports torch; the processes that run Triton do not need torch."""
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.compiling"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
