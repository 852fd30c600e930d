"""Recover the user's name of a function from the name that TorchDynamo generated."""

from __future__ import annotations

import re
from types import CodeType
from typing import Any

_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")


def function_name(name: str) -> str:
    """The user's name of a function: `f` for the resume function `torch_dynamo_resume_in_f_at_7`."""
    found = _RESUME.match(name)
    return found[1] if found else name


def title_of(fn: Any) -> str:
    """Name of a function or module, as the user knows it."""
    return getattr(fn, "__qualname__", type(fn).__name__).rsplit("<locals>.", 1)[-1]


def code_title(code: CodeType) -> str:
    """Name of the function or module that has this code, as the user knows it: `Block` for `Block.forward`."""
    return code.co_qualname.rsplit("<locals>.", 1)[-1].removesuffix(".forward")
