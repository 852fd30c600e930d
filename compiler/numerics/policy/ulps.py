"""The distance between numbers in units in the last place: how many numbers of their own format lie between them."""

from __future__ import annotations

import torch
from torch import Tensor

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def ulps(mine: Tensor, theirs: Tensor) -> Tensor:
    """Elementwise, as float64: 0 where equal, 1 for neighbours. Both are of one floating-point format and shape;
    across zero the distances to zero add up. NaN where exactly one is NaN, 0 where both are.
    """
    (sign, size), (other_sign, other_size) = _sign_and_magnitude(mine), _sign_and_magnitude(theirs)
    apart = torch.where(sign == other_sign, (size - other_size).abs().double(), size.double() + other_size.double())
    apart = torch.where(mine.isnan() ^ theirs.isnan(), torch.nan, apart)
    return torch.where(mine.isnan() & theirs.isnan(), 0.0, apart)


def _sign_and_magnitude(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Signs, and magnitudes as whole numbers: IEEE formats are ordered as their bits are."""
    bits = numbers.contiguous().view(_WORDS[numbers.element_size()])
    highest = torch.iinfo(bits.dtype).max
    return bits < 0, (bits & highest).long()
