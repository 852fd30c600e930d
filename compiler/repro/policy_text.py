"""The policy that judges results, as text for a file that runs without tcompile: the policy's own source."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

from compiler.numerics.policy import judge as policy

_CONSTANTS = (
    "ZERO_TOLERANCE", "FLUSHED", "FLOOR", "AS_NEAR", "ROUNDINGS", "FLIPPED", "NOT_FINITE", "AS_NEAR_AS_EAGER",
    "UNDERFLOW", "CANCELLATION",
)  # fmt: skip
_PARTS: tuple[Any, ...] = (
    policy.Scope, policy.judge, policy._judge_values, policy._judge_whole_numbers, policy._judge_floats,
    policy.is_as_near, policy.errors, policy.largest, policy.relative, policy.name_of, policy._tolerance,
    policy._allowed_error, policy._rounding_error, policy._finite, policy.plain, policy.real, policy._kind,
)  # fmt: skip
_CHECK = """@dataclass(frozen=True)
class Check:
    subject: str
    max_absolute: float | None
    max_relative: float | None
    verdict: str
    note: str = ""
    max_absolute_float64: float | None = None
    max_relative_float64: float | None = None
    dtype: str = ""
    tolerance: float | None = None
    eager_absolute_float64: float | None = None
"""


@cache
def policy_text() -> str:
    """Code that defines `judge` and `Scope` as they are here; docstrings are left out."""
    imports = (
        "from collections.abc import Iterable\nfrom dataclasses import dataclass, replace\nfrom typing import Any\n\n"
        "from torch import Tensor\n"
    )
    known = ", ".join(f"{dtype}: {value!r}" for dtype, value in policy.TOLERANCE.items())
    constants = [f"TOLERANCE = {{{known}}}", *(f"{name} = {getattr(policy, name)!r}" for name in _CONSTANTS)]
    parts = [re.sub(r'\n +"""(.|\n)*?"""(?=\n)', "", inspect.getsource(part)).strip() for part in _PARTS]
    start = "# What counts as rounding: the rules of tcompile (compiler/numerics/policy/judge.py)"
    return "\n\n\n".join([f"{start}\n{imports}", "\n".join(constants), _CHECK.strip(), *parts]) + "\n"
