"""One tensor against eager's: the largest errors, and a verdict in words."""

from __future__ import annotations

import math

import torch

from compiler.record import Check

# Relative to the largest magnitude of the eager tensor: what torch.testing.assert_close allows, by dtype.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}

ROUNDINGS = 16
"""So many units in the last place of the largest result are rounding, where terms cancel."""


def compared(
    name: str,
    mine: torch.Tensor,
    theirs: torch.Tensor,
    *,
    relative: bool = False,
    computed_in: torch.dtype | None = None,
) -> Check:
    """Mine against eager's. Errors are measured against the largest magnitude of eager's, or 1 where that is less;
    with `relative`, against that magnitude however small. `computed_in` is a narrower format that was used on the way.
    """
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        note = f"eager gives {theirs.dtype} {tuple(theirs.shape)}, compiled {mine.dtype} {tuple(mine.shape)}"
        return Check(name, 0.0, 0.0, "differs", note)
    allowed = max(TOLERANCE.get(dtype, 0.0) for dtype in (mine.dtype, computed_in or mine.dtype))
    note = f"allowed {allowed:g} of the largest magnitude"
    if not mine.numel() or torch.equal(mine, theirs):
        return Check(name, 0.0, 0.0, "equal", note)
    difference, scale = largest(mine.double() - theirs.double()), max(largest(theirs.double()), 1e-30)
    if not (math.isfinite(difference) and math.isfinite(scale)):
        return Check(name, None, None, "differs", "not a number or infinite, in one and not the same in the other")
    verdict = "close" if difference <= allowed * (scale if relative else max(scale, 1.0)) else "differs"
    return Check(name, difference, difference / scale, verdict, note)


def largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max())


def rounding(dtype: torch.dtype, largest: float) -> float:
    """The error that rounding leaves where terms as large as the largest result cancel, as in what should be zero."""
    return min(ROUNDINGS * torch.finfo(dtype).eps, TOLERANCE.get(dtype, 0.0)) * largest
