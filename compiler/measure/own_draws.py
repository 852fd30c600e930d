"""A graph run with the random numbers that Inductor's code for CPUs draws from the graph's seeds.

torch/csrc/inductor/cpp_prefix.h: `normalized_rand_cpu`, `randn_cpu` and `randint64_cpu` take an element's place as the
counter of Philox 4x32-10, and 32 bits of the seed as its key. Seeds are drawn by `aten.randint` from all of int64
(`RandomSeeds` in torch/_inductor/ir.py), where the operator that stands for them in the graph takes half of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.interpret import philox
from compiler.interpret.reference import Reference
from compiler.torch_api import fx

SEEDS = "prims.inductor_seeds.default"
RANDOM, INTEGERS = "prims.inductor_random.default", "prims.inductor_randint.default"
_SCALE = np.float32(4.6566127342e-10)


def draws_its_own(graph: GraphModule) -> bool:
    """Whether code for a graph draws random numbers of Inductor's own."""
    return any(fx.target_name(node) in (RANDOM, INTEGERS) for node in graph.graph.nodes)


class OwnDraws(Reference):
    """Runs a graph on the CPU, drawing as the code for it does."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, ())

    def computed(self, node: Node, args: Any, kwargs: Any) -> Any:
        target = fx.target_name(node)
        if target == SEEDS:
            limits = torch.iinfo(torch.int64)
            return torch.randint(limits.min, limits.max, [args[0]])
        if target == RANDOM:
            return _random(*args[:3])
        if target == INTEGERS:
            return _integers(*args[:4])
        return super().computed(node, args, kwargs)


def _random(size: Sequence[int], seed: Any, mode: str) -> Tensor:
    first, second = _words(seed, math.prod(size))[:2]
    drawn = _uniform(first) if mode == "rand" else _normal(first, second)
    return torch.from_numpy(drawn).reshape(list(size))


def _integers(low: int, high: int, size: Sequence[int], seed: Any) -> Tensor:
    first, second = _words(seed, math.prod(size))[:2]
    wide = first.astype(np.uint64) | (second.astype(np.uint64) << np.uint64(32))
    return torch.from_numpy((wide % np.uint64(high - low)).astype(np.int64) + low).reshape(list(size))


def _words(seed: Any, count: int) -> tuple[philox.Words, ...]:
    return philox.words(int(seed) & 0xFFFFFFFF, np.arange(count, dtype=np.uint64))


def _uniform(words: philox.Words) -> NDArray[np.float32]:
    return (words & np.uint32(0x7FFFFFFF)).astype(np.float32) * _SCALE


def _normal(first: philox.Words, second: philox.Words) -> NDArray[np.float32]:
    """By Box and Muller; in C++ the root is taken in float32, and the cosine in float64."""
    radius = np.sqrt(-2.0 * np.log(1 - _uniform(first)).astype(np.float64))
    return (radius * np.cos(2.0 * math.pi * (1 - _uniform(second)).astype(np.float64))).astype(np.float32)
