"""The user's names of functions, for functions that TorchDynamo generated."""

from __future__ import annotations

import re

_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")


def function_name(name: str) -> str:
    """The user's name of a function; for `torch_dynamo_resume_in_f_at_7`, which resumes after a break, `f`."""
    found = _RESUME.match(name)
    return found[1] if found else name
