"""A kernel that a compiler refuses, in the user's terms: which stage is missing, what the tool said, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compiler.targets import Target

_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"shared (data|memory)|OutOfResources",
        "smaller blocks or fewer stages need less shared memory; a target with more of it may do",
    ),
    (
        r"fp8|float8|e4m3|e5m2",
        "{title} ({architecture}) has no instructions for this 8-bit format: compute in float16 or bfloat16 there",
    ),
    (
        r"bf16",
        "{title} ({architecture}) has no instructions for bfloat16: compute in float16 or float32 there",
    ),
    (r"process (died|ended)", "the other kernels are not affected; it is a bug of the compiler, worth a report"),
)


def failure(said: str, missing: Sequence[str], target: Target) -> tuple[str, str, str]:
    """Stage, reason and hint for what the tools `said`; `missing` are the stages that they did not come to."""
    stage = missing[0]
    tool = "ptxas" if said.startswith("ptxas") else ""
    hint = next((advice for pattern, advice in _ADVICE if re.search(pattern, said, re.IGNORECASE)), "")
    reason = said if tool else f"it could not be compiled for {target.title}: {said}"
    return stage, reason, hint.format(title=target.title, architecture=target.architecture)
