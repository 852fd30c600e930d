"""A kernel launched on the GPU that is here: for its numbers, and for its time."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch._inductor.runtime.triton_heuristics as heuristics

from compiler.torch_api.patching import replaced
from compiler.torch_api.triton_kernels import defined, executed, untuned


def loaded(name: str, source: str, config: int) -> Any:
    """A kernel of Inductor's, to be launched in one of its configurations. Raises KernelSourceError."""
    with replaced(heuristics, "check_autotune_cache", lambda _: untuned):
        kernel = executed(name, source)
    kernel.configs = [kernel.configs[config]]
    return kernel


class Plain:
    """A function that has `@triton.jit` alone, to be launched as Inductor's kernels are. Raises KernelSourceError."""

    def __init__(self, name: str, source: str, config: Mapping[str, int], grid: tuple[int, int, int]) -> None:
        self._function, self._config, self._grid = defined(name, source), config, grid

    def run(self, *arguments: Any, **_stream: int) -> None:
        """One launch, on torch's current stream."""
        self._function[self._grid](*arguments, **self._config)


def launch(kernel: Any, arguments: Sequence[Any]) -> None:
    """One launch, finished when this returns. Raises what CUDA reports."""
    kernel.run(*arguments, stream=torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()


def times(kernel: Any, arguments: Sequence[Any]) -> tuple[float, float, float]:
    """Median and quartiles of a launch's duration, in seconds (triton.testing.do_bench: caches are emptied between)."""
    from triton.testing import do_bench

    stream = torch.cuda.current_stream().cuda_stream
    every = do_bench(lambda: kernel.run(*arguments, stream=stream), return_mode="all")
    low, middle, high = statistics.quantiles([milliseconds / 1e3 for milliseconds in every], n=4)
    return middle, low, high
