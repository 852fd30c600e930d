"""What a leaf guard is and says, alike in torch 2.11 to 2.13."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_MARKED = "'_dynamo_dynamic_indices')"
# Until torch 2.12 the guard on an object's identity shows the object, where it means its type.
_SHOWN = re.compile(r"type=<(code object|built-in|function) .*", re.DOTALL)
_TYPES = {"code object": "code", "built-in": "builtin_function_or_method", "function": "function"}


def kind_of(guard: Any) -> str:
    """The kind of a leaf guard. Until torch 2.12 marks on dimensions are guarded as any attribute is."""
    kind = type(guard).__name__
    marks = kind == "NO_HASATTR" and any(_MARKED in part for part in guard.verbose_code_parts())
    return "DIMENSION_DYNAMIC_MARKING_GUARD" if marks else kind


def code_of(guard: Any) -> tuple[str, ...]:
    return with_types(guard.verbose_code_parts())


def with_types(parts: Sequence[str]) -> tuple[str, ...]:
    """Guards as Python; one on an object's identity names its type."""
    return tuple(_with_type(part) for part in parts)


def _with_type(part: str) -> str:
    condition, hashes, place = part.partition("  #")
    return _SHOWN.sub(lambda match: f"type=<class '{_TYPES[match[1]]}'>", condition) + hashes + place
