"""mode="max-autotune": time each kernel's configurations on the GPU, choose the fastest, cache the times on disk.

Kernels are timed as by triton.testing.do_bench, with a cold L2 cache. Their buffers have the real sizes and hold random
numbers, or zeros if not floating-point: these may be indices, and zero is never out of range. A matmul kernel is timed
against PyTorch's matmul followed by a kernel for the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import TypeAlias

import torch

from compiler.backend.ir import MatmulKernel, Program
from compiler.backend.ir.reference_interpreter import State
from compiler.backend.passes.context import Context
from compiler.backend.runtime import disk_cache
from compiler.backend.runtime.build_triton import Wanted
from compiler.backend.torch_glue.operators import quick
from compiler.backend.triton.tiles import TritonConfig
from compiler.torch_api.cuda_launch import Loaded, launch, raw_stream

_WARM_UP, _REPEAT, _AHEAD = 3, 21, 4
"""Warm-up launches, timed launches, and memory fills before each launch (about 70 µs each)."""
_CACHE = 2**28
"""Size of a memory fill, in bytes: larger than any L2 cache."""

Candidate: TypeAlias = tuple[Wanted, Loaded]
"""A kernel in one configuration, and the loaded kernel."""


def fastest(program: Program, candidates: Sequence[Candidate], ctx: Context, device: int) -> Candidate:
    """The fastest of a kernel's configurations, by cached times if available. A single candidate is not timed."""
    if len(candidates) == 1:
        return candidates[0]
    times = _cached_seconds(
        candidates, ctx, device, lambda: [_seconds(program, *one, ctx, device) for one in candidates]
    )
    best = times.index(min(times))
    (chosen, _), (first, _) = candidates[best], candidates[0]
    why = f"{words(chosen.config)} is {times[0] / times[best]:.2f} times as fast as {words(first.config)}"
    ctx.decide((chosen.function.kernel,), "tuned", why, seconds=times[best], heuristic=times[0])
    return candidates[best]


def fastest_matmul(
    program: Program, matmul: MatmulKernel, candidates: Sequence[Candidate], rest: Candidate, ctx: Context, device: int
) -> Candidate | None:
    """The fastest candidate; None if there is none, or if PyTorch's matmul and the kernel `rest` are not slower."""

    def measure() -> list[float]:
        own = [_seconds(program, *candidate, ctx, device) for candidate in candidates]
        return [*own, _seconds_of_parts(program, matmul, rest, ctx, device)]

    *own, apart = _cached_seconds([*candidates, rest], ctx, device, measure)
    two = f"{matmul.call.name} and the kernel {rest[0].function.kernel}, {1e6 * apart:.1f} µs"
    subjects = (matmul.made, matmul.targets[-1])
    if not own:
        ctx.decide(subjects, "refused", f"no tile of one kernel fits into the GPU: {two}", seconds=apart)
        return None
    together = min(own)
    chosen = candidates[own.index(together)]
    one = f"one kernel ({words(chosen[0].config)}), {1e6 * together:.1f} µs"
    if together < apart:
        ctx.decide(subjects, "tuned", f"{one}: faster than {two}", seconds=together, apart=apart)
        return chosen
    ctx.decide(subjects, "refused", f"{two}: not slower than {one}", seconds=apart, together=together)
    return None


def _cached_seconds(
    candidates: Sequence[Candidate], ctx: Context, device: int, measure: Callable[[], list[float]]
) -> list[float]:
    """Times of the candidates in seconds, from the disk cache, or measured and cached."""
    key = _key(candidates, ctx, device)
    kept = disk_cache.read(key)
    if kept is not None and len(kept[0].get("seconds", ())) == len(candidates):
        return [*kept[0]["seconds"]]
    times = measure()
    with suppress(OSError):  # the next process measures again
        disk_cache.write(key, {"seconds": times})
    return times


def _key(candidates: Sequence[Candidate], ctx: Context, device: int) -> str:
    """Cache key of times: a hash of kernels, symbolic sizes, GPU, and numbers of points along the grid's axes."""
    parts = [*(kernel.job.key() for kernel, _ in candidates), *map(str, sorted(ctx.sizes.items()))]
    parts += [str(ctx.number(points)) for kernel, _ in candidates for points, _ in kernel.function.grid]
    return disk_cache.key("tuned", *parts, torch.cuda.get_device_name(device))


def words(config: TritonConfig) -> str:
    """A configuration as text: block sizes and number of warps."""
    blocks = ", ".join(f"{name} {size}" for name, size in config.blocks.items())
    return f"{blocks}, {config.num_warps} warps".removeprefix(", ")


def _seconds(program: Program, kernel: Wanted, loaded: Loaded, ctx: Context, device: int) -> float:
    memory = {name: _memory(program, name, ctx, device) for name in kernel.function.buffers}
    return _measure(_launcher(kernel, loaded, memory, ctx, device), device)


def _seconds_of_parts(program: Program, matmul: MatmulKernel, rest: Candidate, ctx: Context, device: int) -> float:
    """Time of PyTorch's matmul followed by the epilogue's kernel, in seconds."""
    call, names = matmul.call, {*matmul.call.reads, *rest[0].function.buffers}
    memory = {name: _memory(program, name, ctx, device) for name in sorted(names)}
    state = State(program, ctx.examples, {**memory})
    function, args = quick(call.function), [*map(state.argument, call.args)]
    start = _launcher(*rest, memory, ctx, device)

    def run() -> None:
        memory[matmul.made] = function(*args)
        start()

    return _measure(run, device)


def _measure(run: Callable[[], None], device: int) -> float:
    """Median GPU time of a call, in seconds. Memory fills before a call keep the GPU busy while the host launches."""
    with torch.cuda.device(device):
        busy = torch.empty(_CACHE, dtype=torch.uint8, device="cuda")
        found = []
        for _ in range(_WARM_UP + _REPEAT):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(_AHEAD):
                busy.zero_()
            start.record()
            run()
            end.record()
            found.append((start, end))
        torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in found[_WARM_UP:]) / 1e3


def _launcher(
    kernel: Wanted, loaded: Loaded, memory: dict[str, torch.Tensor], ctx: Context, device: int
) -> Callable[[], None]:
    """A function that launches the kernel on the buffers in `memory`."""
    function, config = kernel.function, kernel.config
    others = tuple(ctx.examples[name] for name in function.symbols) + (None,) * loaded.spare
    x, y, z = function.programs(ctx.number, config.blocks)
    stream, start = raw_stream()(device), launch()

    def run() -> None:
        places = zip(function.buffers, kernel.starts, strict=True)
        arguments = (*(memory[name].data_ptr() + place for name, place in places), *others)
        start(loaded.function, x, y, z, loaded.warps, loaded.shared, loaded.letters, arguments, stream)

    return run


def _memory(program: Program, name: str, ctx: Context, device: int) -> torch.Tensor:
    buffer = program.by_name[name]
    memory = torch.zeros(max(1, ctx.number(buffer.span)), dtype=buffer.dtype, device=f"cuda:{device}")
    shape, strides = ([*map(ctx.number, sizes)] for sizes in (buffer.shape, buffer.strides))
    if buffer.dtype.is_floating_point:
        memory.normal_(generator=torch.Generator(memory.device).manual_seed(0))  # leaves the user's generator alone
    return memory.as_strided(shape, strides)
