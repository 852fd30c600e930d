"""Import one module of the adapter without its package, which imports torch."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def import_alone(name: str) -> ModuleType:
    """The module `compiler.torch_api.NAME`, in a process that should not import torch."""
    path = Path(__file__).parents[1] / "torch_api" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"tcompile_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
