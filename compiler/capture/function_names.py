"""The user's names for functions that TorchDynamo generates from theirs."""

from __future__ import annotations

import re

_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+$")


def function_name(name: str) -> str:
    """The user's name of a function; torch names the one that resumes after a break `torch_dynamo_resume_in_f_at_7`."""
    found = _RESUME.match(name)
    return found[1] if found else name
