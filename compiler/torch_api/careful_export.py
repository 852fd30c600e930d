"""torch.export without its side effects.

torch.export prints the graph of a failed export and warns about its symbols. Strict export drops all code that
torch.compile has compiled in this process (torch._dynamo.reset).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor
import torch.export._trace as trace
from torch.export import ExportedProgram

from compiler.torch_api.patching import Wrapper, replace_attributes

_LOGGERS = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.export._trace",
    "torch._export.non_strict_utils",
    "torch._dynamo.eval_frame",
)


@contextmanager
def careful_export() -> Iterator[None]:
    """Silence torch.export in the block, and keep compiled code. The user's own prints still appear."""
    silenced: list[Wrapper] = [(logging.getLogger(name), "disabled", lambda _: True) for name in _LOGGERS]
    wrappers = [*silenced, (torch._dynamo, "reset", lambda _: _do_nothing)]
    vars(trace)["print"] = _do_nothing
    try:
        with replace_attributes(wrappers):
            yield
    finally:
        del vars(trace)["print"]


def _do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing: replaces `print` in torch's module, and `torch._dynamo.reset`."""


def aoti_package(program: ExportedProgram, file: Path) -> None:
    """Compile an exported program with AOTInductor into a package (torch._inductor.aoti_compile_and_package)."""
    torch._inductor.aoti_compile_and_package(program, package_path=str(file))


def aoti_load(file: Path) -> Callable[..., Any]:
    """Load an AOTInductor package as a function."""
    return torch._inductor.aoti_load_package(str(file))
