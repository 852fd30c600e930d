"""Random numbers by counting: Philox 4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3").

The stream is Triton's (`tl.rand`, `tl.randn`, and Inductor's `randint64`), here in operations of PyTorch for the
reference interpreter, and in C++. The 64-bit key is the seed; the counter is an element's place. Equal seeds and places
give equal numbers, so nothing has to be stored for a second look.
"""

from __future__ import annotations

import math

import torch

_LOW = 0xFFFFFFFF
_FIRST, _SECOND = 0xD2511F53, 0xCD9E8D57
_STEPS = (0x9E3779B9, 0xBB67AE85)
_UNIT = 4.6566127342e-10
_LEAST = 1.0e-7

CPP = f"""\
// Philox 4x32-10: the first two of four random words, by a seed and a counter.
struct Words {{ unsigned int first, second; }};
static inline Words philox(unsigned long seed, unsigned long counter) {{
    unsigned int a = counter, b = counter >> 32, c = 0, d = 0, low = seed, high = seed >> 32;
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {{
        unsigned long x = {_FIRST:#x}ul * a, y = {_SECOND:#x}ul * c;
        a = (unsigned int)(y >> 32) ^ b ^ low, b = y, c = (unsigned int)(x >> 32) ^ d ^ high, d = x;
        low += {_STEPS[0]:#x}u, high += {_STEPS[1]:#x}u;
    }}
    return {{a, b}};
}}
static inline float uniform(unsigned int word) {{ return ((int)word < 0 ? ~word : word) * {_UNIT}f; }}
static inline float rand(long seed, long counter) {{ return uniform(philox(seed, counter).first); }}
static inline float randn(long seed, long counter) {{
    Words words = philox(seed, counter);
    float radius = __builtin_sqrtf(-2.0f * ::logf(maximum({_LEAST}f, uniform(words.first))));
    return radius * ::cosf({2 * math.pi!r}f * uniform(words.second));
}}
static inline long randint(long seed, long counter, long size) {{
    Words words = philox(seed, counter);
    return (words.first | (unsigned long)words.second << 32) % (unsigned long)size;
}}
"""


def rand(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """Float32 numbers in [0, 1)."""
    return _uniform(_words(seed, counter)[0])


def randn(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """Float32 numbers of the normal distribution, by Box and Muller."""
    first, second = map(_uniform, _words(seed, counter))
    radius = torch.sqrt(-2.0 * torch.log(first.clamp(min=_LEAST)))
    return radius * torch.cos(torch.tensor(2 * math.pi) * second)


def randint(seed: torch.Tensor, counter: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Int64 numbers from 0 up to, not including, `size`, which is below 2 ** 31."""
    first, second = _words(seed, counter)
    return (second % size * (2**32 % size) + first) % size


def _words(seed: torch.Tensor, counter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two words as int64: products of 32-bit words wrap around at 64 bits, with the right bits."""
    low, high = seed & _LOW, seed >> 32 & _LOW
    a, b = counter & _LOW, counter >> 32 & _LOW
    c = d = torch.zeros_like(a)
    for _ in range(10):
        x, y = _FIRST * a, _SECOND * c
        a, b = (y >> 32 & _LOW) ^ b ^ low, y & _LOW
        c, d = (x >> 32 & _LOW) ^ d ^ high, x & _LOW
        low, high = low + _STEPS[0] & _LOW, high + _STEPS[1] & _LOW
    return a, b


def _uniform(word: torch.Tensor) -> torch.Tensor:
    return torch.where(word > _LOW >> 1, _LOW - word, word).to(torch.float32) * _UNIT
