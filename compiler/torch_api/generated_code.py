"""Inductor's generated code: the loaded modules, their text, and counts of kernels and calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FunctionType, ModuleType

from torch._inductor.codecache import PyCodeCache
from torch._inductor.graph import GraphLowering

from compiler.torch_api.fx import attribute_at
from compiler.torch_api.patching import call_after, replace_attribute


def generated_modules() -> Iterator[tuple[ModuleType, str]]:
    """Each loaded module and its source, newest first; modules without a file are skipped."""
    for module in reversed(PyCodeCache.modules):
        path = Path(module.__file__ or "")
        if path.is_file():
            yield module, path.read_text(encoding="utf-8")


def function_of(module: ModuleType, qualified: str) -> FunctionType | None:
    """The function with this qualified name (`Runner.call`) in a generated module; None if there is none."""
    found = attribute_at(module, qualified)
    return found if isinstance(found, FunctionType) else None


_DEFINED = re.compile(r"^(\w+) = async_compile\.", re.MULTILINE)
_LIBRARY = re.compile(
    r"^[ \t]+(?:\w+(?:\[\d+\])? = )?(?:extern_kernels\.|torch\.ops\.(?!inductor|_inductor)|aten\.)", re.MULTILINE
)


def report_code(on_code: Callable[[str], None]) -> AbstractContextManager[None]:
    """Pass the code that Inductor generates for each graph in the block to `on_code`."""
    return replace_attribute(GraphLowering, "codegen", call_after(lambda result, _lowering: on_code(result[0].value)))


def kernels(code: str) -> int:
    """The number of kernels that a graph's code defines."""
    return len(set(_DEFINED.findall(code)))


def calls(code: str) -> int:
    """The number of kernel and library calls in a graph's code, counted in its text."""
    defined = set(_DEFINED.findall(code))
    generated = sum(len(re.findall(rf"^[ \t]+{name}(?:\.run)?\(", code, re.MULTILINE)) for name in defined)
    return generated + len(_LIBRARY.findall(code))
