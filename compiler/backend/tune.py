"""mode="max-autotune": each kernel in several configurations, timed on the GPU; the fastest is kept on disk.

Timed by triton.testing.do_bench, which empties the L2 cache between launches, on memory of the kernel's own sizes that
holds zeros: an index of zero is never out of range.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch

from compiler.backend.build_triton import Wanted, cache_folder, written
from compiler.backend.context import Context
from compiler.backend.emit_triton import TritonConfig
from compiler.backend.ir import Program
from compiler.torch_api.cuda_launch import Loaded, launch, raw_stream

_WARM_UP, _REPEAT = 2, 10
"""Milliseconds for each configuration, as do_bench takes them."""


def fastest(
    program: Program, candidates: Sequence[tuple[Wanted, Loaded]], ctx: Context, device: int
) -> tuple[Wanted, Loaded]:
    """The configuration of a kernel that takes least; the one on disk where it was timed before on such a GPU."""
    path = cache_folder() / f"tuned_{_key(candidates, ctx, device)}.json"
    try:
        return candidates[json.loads(path.read_text())["choice"]]
    except (OSError, ValueError, KeyError, IndexError):
        times = [_seconds(program, kernel, loaded, ctx, device) for kernel, loaded in candidates]
    best = times.index(min(times))
    written(path, json.dumps({"choice": best, "seconds": times}).encode())
    (chosen, _), (first, _) = candidates[best], candidates[0]
    why = f"{_words(chosen.config)} is {times[0] / times[best]:.2f} times as fast as {_words(first.config)}"
    ctx.decide((chosen.function.kernel,), "tuned", why, seconds=times[best], heuristic=times[0])
    return candidates[best]


def _words(config: TritonConfig) -> str:
    blocks = ", ".join(f"{name} {size}" for name, size in config.blocks.items())
    return f"{blocks}, {config.num_warps} warps".removeprefix(", ")


def _key(candidates: Sequence[tuple[Wanted, Loaded]], ctx: Context, device: int) -> str:
    said = [*(kernel.job.key() for kernel, _ in candidates), *map(str, sorted(ctx.sizes.items()))]
    return hashlib.sha256("\n".join([*said, torch.cuda.get_device_name(device)]).encode()).hexdigest()[:40]


def _seconds(program: Program, kernel: Wanted, loaded: Loaded, ctx: Context, device: int) -> float:
    from triton.testing import do_bench

    function, config = kernel.function, kernel.config
    memory = [_memory(program, name, ctx, device) for name in function.buffers]
    arguments: tuple[Any, ...] = tuple(tensor.data_ptr() for tensor in memory)
    arguments += tuple(ctx.sizes.get(name, 64) for name in function.symbols) + (None,) * loaded.spare
    grid = [-(-ctx.number(points) // config.blocks.get(block, 1)) for points, block in function.grid]
    x, y, z = [*grid, 1, 1][:3]
    stream, start = raw_stream()(device), launch()

    def run() -> None:
        start(loaded.function, x, y, z, loaded.warps, loaded.shared, loaded.letters, arguments, stream)

    return float(do_bench(run, warmup=_WARM_UP, rep=_REPEAT, return_mode="median")) / 1e3


def _memory(program: Program, name: str, ctx: Context, device: int) -> torch.Tensor:
    buffer = program.by_name[name]
    extent = 1 + sum(
        (ctx.number(size) - 1) * ctx.number(s) for size, s in zip(buffer.shape, buffer.strides, strict=True)
    )
    return torch.zeros(max(1, extent), dtype=buffer.dtype, device=f"cuda:{device}")
