"""The versions of torch that tcompile supports: `make matrix` runs the tests with each."""

from __future__ import annotations

import logging
import re
from functools import cache

import torch

_LOG = logging.getLogger("tcompile")
MADE_FOR = ("2.11", "2.12", "2.13", "2.14", "2.15")


@cache
def warn_of_newer_torch(version: str = torch.__version__) -> None:
    """Warn once, in one line, that torch is newer than every supported version."""
    if _numbers(version) > _numbers(MADE_FOR[-1]):
        _LOG.warning(
            "tcompile is made for torch %s to %s; with torch %s some stages may be missing",
            MADE_FOR[0],
            MADE_FOR[-1],
            version,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
