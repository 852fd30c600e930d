"""Run graphs with the random numbers that compiled CPU code draws from its seeds, Inductor's or our backend's.

Inductor's are in torch/csrc/inductor/cpp_prefix.h: `normalized_rand_cpu`, `randn_cpu` and `randint64_cpu` use an
element's index as the counter of Philox 4x32-10, and 32 bits of the seed as its key. `aten.randint` draws seeds from
the whole range of int64 (`RandomSeeds` in torch/_inductor/ir.py); the graph's own operator for seeds uses half of this.
Our backend draws as Triton does (compiler/backend/ir/philox.py). The reference interpreter of graphs implements this,
except for the seeds (compiler/backend/lower/graph.py, `draw_seeds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from compiler.calls.kept_graphs import KeptFrame
from compiler.torch_api import fx
from compiler.torch_api.buffers import Kind
from compiler.triton_interpreter import philox
from compiler.triton_interpreter.reference import Reference

SEED, SEEDS = "prims.inductor_seed.default", "prims.inductor_seeds.default"
RANDOM, INTEGERS = "prims.inductor_random.default", "prims.inductor_randint.default"


def draws_its_own(frame: KeptFrame) -> bool:
    """Whether a capture's generated code draws different random numbers from eager's."""
    return any(
        fx.target_name(node) in (RANDOM, INTEGERS) for graph in _graphs(frame).values() for node in graph.graph.nodes
    )


def drawing(frame: KeptFrame) -> dict[Kind, Callable[[], Reference]]:
    """For each half of a capture, a function that makes an interpreter with the random numbers of the half's code."""
    draw = _draw_as_tcompile if frame.programs else _draw_as_inductor
    return {kind: partial(draw, graph) for kind, graph in _graphs(frame).items()}


def _graphs(frame: KeptFrame) -> dict[Kind, GraphModule]:
    """The graphs from which code was generated."""
    if frame.programs:
        return {kind: frame.stages[kind] for kind in frame.programs if kind in frame.stages}
    return {kind: graph.module for kind, graph in frame.graphs.items()}


def _draw_as_inductor(module: GraphModule) -> Reference:
    """An interpreter that draws random numbers as Inductor's CPU code does."""
    return Reference(module, (), special={SEEDS: _seeds, RANDOM: _random, INTEGERS: _integers})


def _draw_as_tcompile(module: GraphModule) -> Reference:
    """An interpreter that draws random numbers as our backend's CPU code does: all seeds first, in one call."""
    count = sum(fx.target_name(node) == SEED for node in module.graph.nodes)
    seeds = iter(torch.randint(0, torch.iinfo(torch.int64).max, [count]) if count else ())
    return Reference(module, (), special={SEED: lambda _device: next(seeds)})


def _seeds(count: int, _device: Any) -> Tensor:
    limits = torch.iinfo(torch.int64)
    return torch.randint(limits.min, limits.max, [count])


def _random(size: Sequence[int], seed: Any, mode: str) -> Tensor:
    first, second = map(_uniform, philox.words(int(seed) & philox.LOW, torch.arange(math.prod(size)))[:2])
    return (first if mode == "rand" else _normal(first, second)).reshape(size)


def _integers(low: int, high: int, size: Sequence[int], seed: Any) -> Tensor:
    return philox.integers(int(seed) & philox.LOW, math.prod(size), low, high).reshape(size)


def _uniform(word: Tensor) -> Tensor:
    return (word & 0x7FFFFFFF).to(torch.float32) * philox.UNIT


def _normal(first: Tensor, second: Tensor) -> Tensor:
    """Box-Muller transform; like the C++ code, computes the logarithm in float32 and the rest in float64."""
    radius = torch.sqrt(-2.0 * torch.log(1 - first).double())
    return (radius * torch.cos(2.0 * math.pi * (1 - second).double())).float()
