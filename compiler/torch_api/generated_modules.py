"""The modules that Inductor's generated code was loaded as, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

from torch._inductor.codecache import PyCodeCache


def generated_modules() -> Iterator[tuple[ModuleType, str]]:
    """Each module with its source, the newest first; those whose file is gone are left out."""
    for module in reversed(PyCodeCache.modules):
        path = Path(module.__file__ or "")
        if path.is_file():
            yield module, path.read_text(encoding="utf-8")


def function_of(module: ModuleType, qualified: str) -> FunctionType | None:
    """The function of this qualified name (`Runner.call`) in a generated module."""
    found: object = module
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, FunctionType) else None
