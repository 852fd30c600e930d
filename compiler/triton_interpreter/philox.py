"""Random numbers of Triton's kernels: Philox 4x32-10.

Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3", as triton.language.random and Inductor's
triton_helpers use it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
ROUNDS = 10


def words(seed: int, counters: NDArray[np.uint64]) -> tuple[Words, Words, Words, Words]:
    """Four 32-bit words for each counter, all with the 64-bit key `seed`."""
    keys = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    zero = np.zeros_like(counters)
    state = [counters & _LOW, counters >> _HALF, zero, zero]
    for _ in range(ROUNDS):
        first, second = state[0] * _MULTIPLIERS[0], state[2] * _MULTIPLIERS[1]
        state = [
            (second >> _HALF) ^ state[1] ^ np.uint64(keys[0]),
            second & _LOW,
            (first >> _HALF) ^ state[3] ^ np.uint64(keys[1]),
            first & _LOW,
        ]
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return tuple(word.astype(np.uint32) for word in state)  # type: ignore[return-value]


def uniform(seed: int, count: int, *, by_four: bool) -> NDArray[np.float32]:
    """`count` float32 numbers in [0, 1).

    `by_four` uses all words of a counter (tl.rand4x), else the first (tl.rand).
    """
    return _uniform(_draw(seed, count, by_four))


def normal(seed: int, count: int, *, by_four: bool) -> NDArray[np.float32]:
    """`count` float32 numbers of the normal distribution, by Box and Muller."""
    if not by_four:
        first, second, _, _ = words(seed, np.arange(count, dtype=np.uint64))
        return _pair(_uniform(first), _uniform(second))[0]
    drawn = _uniform(_draw(seed, -(-count // 4) * 4, by_four)).reshape(-1, 4)
    pairs = [*_pair(drawn[:, 0], drawn[:, 1]), *_pair(drawn[:, 2], drawn[:, 3])]
    return np.stack(pairs, -1).reshape(-1)[:count]


def integers(seed: int, count: int, low: int, high: int) -> NDArray[np.int64]:
    """`count` integers from `low` up to, not including, `high` (triton_helpers.randint64)."""
    first, second, _, _ = words(seed, np.arange(count, dtype=np.uint64))
    wide = first.astype(np.uint64) | (second.astype(np.uint64) << _HALF)
    return (wide % np.uint64(high - low)).astype(np.int64) + low


def _draw(seed: int, count: int, by_four: bool) -> Words:
    if not by_four:
        return words(seed, np.arange(count, dtype=np.uint64))[0]
    return np.stack(words(seed, np.arange(-(-count // 4), dtype=np.uint64)), -1).reshape(-1)[:count]


def _uniform(drawn: Words) -> NDArray[np.float32]:
    """tl.random's uint_to_uniform_float."""
    signed = drawn.view(np.int32)
    folded = np.where(signed < 0, -signed - 1, signed)
    return folded.astype(np.float32) * np.float32(4.6566127342e-10)


def _pair(first: NDArray[np.float32], second: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    radius = np.sqrt(np.float32(-2.0) * np.log(np.maximum(np.float32(1.0e-7), first)))
    angle = np.float32(6.283185307179586) * second
    return radius * np.cos(angle), radius * np.sin(angle)


def as_tensor(numbers: NDArray[np.generic], size: list[int]) -> torch.Tensor:
    """The numbers as a tensor of this size."""
    return torch.from_numpy(numbers).reshape(size)
