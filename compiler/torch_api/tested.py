"""The versions of torch that the tests were run with."""

from __future__ import annotations

import logging
import re
from functools import cache

import torch

_LOG = logging.getLogger("tcompile")
TESTED = ("2.11", "2.12", "2.13", "2.14", "2.15")


@cache
def warn_of_newer_torch(version: str = torch.__version__) -> None:
    """Warn, once and in one line, that torch is newer than every version that the tests were run with."""
    if _numbers(version) > _numbers(TESTED[-1]):
        _LOG.warning(
            "tcompile was tested with torch %s to %s; with torch %s some stages may be missing",
            *TESTED[0],
            TESTED[-1],
            version,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
