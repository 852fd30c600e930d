"""mode="max-autotune": each kernel in several configurations, timed on the GPU; the fastest is kept on disk.

Timed as triton.testing.do_bench does it, with an empty L2 cache, on memory of the kernel's own sizes that holds random
numbers, or zeros where it may hold indices: zero is never out of range. A kernel with a product is timed beside what it
may be taken apart to, PyTorch's product and a kernel after it.
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
"""Launches that do not count and that do, and how often memory is filled before each, some 70 µs at a time."""
_CACHE = 2**28
"""Bytes, more than any cache holds."""

Candidate: TypeAlias = tuple[Wanted, Loaded]
"""A kernel in one configuration, and its code on the GPU."""


def fastest(program: Program, candidates: Sequence[Candidate], ctx: Context, device: int) -> Candidate:
    """The fastest configuration of a kernel, from disk if it was timed on such a GPU before."""
    times = _cached_seconds(
        candidates, ctx, device, lambda: [_seconds(program, *one, ctx, device) for one in candidates]
    )
    best = times.index(min(times))
    (chosen, _), (first, _) = candidates[best], candidates[0]
    why = f"{words(chosen.config)} is {times[0] / times[best]:.2f} times as fast as {words(first.config)}"
    ctx.decide((chosen.function.kernel,), "tuned", why, seconds=times[best], heuristic=times[0])
    return candidates[best]


def fastest_matmul(
    program: Program, product: MatmulKernel, candidates: Sequence[Candidate], rest: Candidate, ctx: Context, device: int
) -> Candidate | None:
    """The fastest configuration of a matmul kernel; None if PyTorch's matmul and the kernel `rest` are faster."""

    def measure() -> list[float]:
        own = [_seconds(program, *candidate, ctx, device) for candidate in candidates]
        return [*own, _seconds_of_parts(program, product, rest, ctx, device)]

    *own, apart = _cached_seconds([*candidates, rest], ctx, device, measure)
    best = min(range(len(own)), key=own.__getitem__, default=None)
    beside = f"{product.call.name} and the kernel {rest[0].function.kernel}, {_microseconds(apart)}"
    subjects = (product.made, product.targets[-1])
    if best is None:
        ctx.decide(subjects, "refused", f"no tile of one kernel fits into the GPU: {beside}", seconds=apart)
        return None
    one = f"one kernel ({words(candidates[best][0].config)}), {_microseconds(own[best])}"
    if own[best] < apart:
        ctx.decide(subjects, "tuned", f"{one}: sooner than {beside}", seconds=own[best], apart=apart)
        return candidates[best]
    ctx.decide(subjects, "refused", f"{beside}: no later than {one}", seconds=apart, together=own[best])
    return None


def _cached_seconds(
    candidates: Sequence[Candidate], ctx: Context, device: int, measure: Callable[[], list[float]]
) -> list[float]:
    """Seconds of each candidate, from disk or measured and written there."""
    key = _key(candidates, ctx, device)
    kept = disk_cache.read(key)
    if kept is not None and len(kept[0].get("seconds", ())) == len(candidates):
        return [*kept[0]["seconds"]]
    times = measure()
    with suppress(OSError):  # they are measured again by the next process
        disk_cache.write(key, {"seconds": times})
    return times


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs"


def words(config: TritonConfig) -> str:
    """A configuration as text."""
    blocks = ", ".join(f"{name} {size}" for name, size in config.blocks.items())
    return f"{blocks}, {config.num_warps} warps".removeprefix(", ")


def _key(candidates: Sequence[Candidate], ctx: Context, device: int) -> str:
    """What the times depend on: the code, and how many points there are, which code without masks does not say."""
    said = [*(kernel.job.key() for kernel, _ in candidates), *map(str, sorted(ctx.sizes.items()))]
    said += [str(ctx.number(points)) for kernel, _ in candidates for points, _ in kernel.function.grid]
    return disk_cache.key("tuned", *said, torch.cuda.get_device_name(device))


def _seconds(program: Program, kernel: Wanted, loaded: Loaded, ctx: Context, device: int) -> float:
    memory = {name: _memory(program, name, ctx, device) for name in kernel.function.buffers}
    return _measure(_launcher(kernel, loaded, memory, ctx, device), device)


def _seconds_of_parts(program: Program, product: MatmulKernel, rest: Candidate, ctx: Context, device: int) -> float:
    """Seconds of PyTorch's matmul followed by the kernel that reads its result."""
    call, names = product.call, {*product.call.reads, *rest[0].function.buffers}
    memory = {name: _memory(program, name, ctx, device) for name in sorted(names)}
    state = State(program, ctx.examples, {**memory})
    function, args = quick(call.function), [*map(state.argument, call.args)]
    start = _launcher(*rest, memory, ctx, device)

    def run() -> None:
        memory[product.made] = function(*args)
        start()

    return _measure(run, device)


def _measure(run: Callable[[], None], device: int) -> float:
    """Median GPU seconds of a call; the GPU is kept busy before, so that it never waits for the host."""
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
        memory.normal_(generator=torch.Generator(memory.device).manual_seed(0))  # the user's own stays as it is
    return memory.as_strided(shape, strides)
