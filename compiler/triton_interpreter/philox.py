"""Counter-based random numbers: Philox 4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3").

The numbers are those of triton.language.random and of Inductor's triton_helpers. The 64-bit key is the seed; the
counter is an element's index.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LOW = 0xFFFFFFFF
FIRST, SECOND = 0xD2511F53, 0xCD9E8D57
STEPS = (0x9E3779B9, 0xBB67AE85)
UNIT = 4.6566127342e-10
LEAST = 1.0e-7
ROUNDS = 10


def words(seed: Tensor | int, counter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random 32-bit words for each counter, as int64.

    Products of two 32-bit words may overflow int64, which wraps around: the bits are still correct.
    """
    low, high = seed & LOW, seed >> 32 & LOW
    a, b = counter & LOW, counter >> 32 & LOW
    c = d = torch.zeros_like(a)
    for _ in range(ROUNDS):
        x, y = FIRST * a, SECOND * c
        a, b = (y >> 32 & LOW) ^ b ^ low, y & LOW
        c, d = (x >> 32 & LOW) ^ d ^ high, x & LOW
        low, high = low + STEPS[0] & LOW, high + STEPS[1] & LOW
    return a, b, c, d


def to_uniform(word: Tensor) -> Tensor:
    """Convert 32-bit words to float32 numbers in [0, 1) (tl.random's uint_to_uniform_float)."""
    return torch.where(word > LOW >> 1, LOW - word, word).to(torch.float32) * UNIT


def to_normal(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Convert two uniform float32 numbers to two normal ones (Box-Muller transform)."""
    radius = torch.sqrt(-2.0 * torch.log(first.clamp(min=LEAST)))
    angle = torch.tensor(2 * math.pi) * second
    return radius * torch.cos(angle), radius * torch.sin(angle)


def uniform(seed: int, count: int, *, by_four: bool) -> Tensor:
    """Draw `count` float32 numbers in [0, 1).

    `by_four` uses all four words of a counter (tl.rand4x), else only the first (tl.rand).
    """
    if not by_four:
        return to_uniform(words(seed, torch.arange(count))[0])
    return to_uniform(torch.stack(words(seed, torch.arange(-(-count // 4))), -1)).reshape(-1)[:count]


def normal(seed: int, count: int, *, by_four: bool) -> Tensor:
    """Draw `count` float32 numbers from the normal distribution; `by_four` as for `uniform`."""
    drawn = [to_uniform(word) for word in words(seed, torch.arange(-(-count // 4) if by_four else count))]
    if not by_four:
        return to_normal(drawn[0], drawn[1])[0]
    return torch.stack([*to_normal(*drawn[:2]), *to_normal(*drawn[2:])], -1).reshape(-1)[:count]


def integers(seed: int, count: int, low: int, high: int) -> Tensor:
    """Draw `count` int64 numbers from `low` to `high` (exclusive), like triton_helpers.randint64."""
    first, second = words(seed, torch.arange(count))[:2]
    wide = (first | second << 32).numpy().view(np.uint64) % np.uint64(high - low)
    return torch.from_numpy(wide.view(np.int64)) + low
