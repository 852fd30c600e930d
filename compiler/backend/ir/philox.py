"""Counter-based random numbers: Philox 4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3").

Gives the same numbers as Triton's `tl.rand` and `tl.randn` and Inductor's `randint64`, implemented in torch for the
reference interpreter, and in C++. The 64-bit key is the seed, the counter is the position of an element. Equal seeds
and counters give equal numbers, so that numbers can be recomputed instead of stored.
"""

from __future__ import annotations

import math

import torch

from compiler.triton_interpreter.philox import FIRST, LEAST, SECOND, STEPS, UNIT, to_normal, to_uniform, words

CPP = f"""\
// Philox 4x32-10: the first two of four random words, by a seed and a counter.
struct Words {{ unsigned int first, second; }};
static inline Words philox(unsigned long seed, unsigned long counter) {{
    unsigned int a = counter, b = counter >> 32, c = 0, d = 0, low = seed, high = seed >> 32;
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {{
        unsigned long x = {FIRST:#x}ul * a, y = {SECOND:#x}ul * c;
        a = (unsigned int)(y >> 32) ^ b ^ low, b = y, c = (unsigned int)(x >> 32) ^ d ^ high, d = x;
        low += {STEPS[0]:#x}u, high += {STEPS[1]:#x}u;
    }}
    return {{a, b}};
}}
static inline float uniform(unsigned int word) {{ return ((int)word < 0 ? ~word : word) * {UNIT}f; }}
static inline float rand(long seed, long counter) {{ return uniform(philox(seed, counter).first); }}
static inline float randn(long seed, long counter) {{
    Words words = philox(seed, counter);
    float radius = __builtin_sqrtf(-2.0f * ::logf(maximum({LEAST}f, uniform(words.first))));
    return radius * ::cosf({2 * math.pi!r}f * uniform(words.second));
}}
static inline long randint(long seed, long counter, long size) {{
    Words words = philox(seed, counter);
    return (words.first | (unsigned long)words.second << 32) % (unsigned long)size;
}}
"""


def rand(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """Uniform float32 numbers in [0, 1)."""
    return to_uniform(words(seed, counter)[0])


def randn(seed: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    """Standard normal float32 numbers, by the Box-Muller transform."""
    first, second = words(seed, counter)[:2]
    return to_normal(to_uniform(first), to_uniform(second))[0]


def randint(seed: torch.Tensor, counter: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Int64 numbers in [0, size), for a `size` below 2 ** 31."""
    first, second = words(seed, counter)[:2]
    return (second % size * (2**32 % size) + first) % size
