"""Names in torch's wrapper around modules (`torch._dynamo.external_utils.wrap_inline`).

The wrapper's arguments are `args` and `kwargs`, and the module is `fn`. The user knows a module and its forward's
arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

import torch

WRAPPER = "/torch/_dynamo/external_utils.py"
Names = Mapping[str, str]
"""What torch calls a local variable (`L['args'][0]`) -> what it would be called in forward (`L['input']`)."""


def forward_names(code: CodeType, f_locals: Mapping[str, Any]) -> Names:
    """The user's names of the locals in the wrapper around a module; {} for any other code."""
    module = f_locals.get("fn")
    if not code.co_filename.replace("\\", "/").endswith(WRAPPER) or not isinstance(module, torch.nn.Module):
        return {}
    return dict(_names(module, len(f_locals.get("args", ())), f_locals.get("kwargs", {})))


def _names(module: torch.nn.Module, count: int, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "L['fn']", "L['self']"
    parameters = inspect.signature(module.forward).parameters.values()
    positional = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    for index, name in zip(range(count), positional, strict=False):
        yield f"L['args'][{index}]", f"L['{name}']"
    for name in kwargs:
        yield f"L['kwargs']['{name}']", f"L['{name}']"


def rename(text: str, names: Names) -> str:
    """Rename variables in code to what the user calls them."""
    if not names or "L['" not in text:
        return text
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)
