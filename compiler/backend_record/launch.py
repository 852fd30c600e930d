"""What it takes to compile and launch a kernel of ours, as plain values that a record holds."""

from __future__ import annotations

from typing import Any

from compiler.backend.cpp.emit import Function
from compiler.backend.ir import Buffer, Kernel, Program
from compiler.backend.passes.context import Context
from compiler.backend.triton.emit import TritonFunction, signature


def launch_facts(program: Program, kernel: Kernel, function: Function | TritonFunction, ctx: Context) -> dict[str, Any]:
    """What a kernel is given in the explored call: `arguments` in order, of a tensor [dtype, shape, strides], and the
    places of those that it has `written` afterwards. Of one in Triton there is more: see `_triton_facts`.
    """
    facts: dict[str, Any] = {
        "arguments": [
            *(_tensor(program.by_name[name], ctx) for name in function.buffers),
            *(ctx.sizes.get(name, 0) for name in function.symbols),
        ],
        "written": [place for place, name in enumerate(function.buffers) if name in kernel.writes],
    }
    return facts | _triton_facts(program, function, ctx) if isinstance(function, TritonFunction) else facts


def _tensor(buffer: Buffer, ctx: Context) -> list[Any]:
    shape, strides = ([ctx.number(size) for size in sizes] for sizes in (buffer.shape, buffer.strides))
    return [str(buffer.dtype).removeprefix("torch."), shape, strides]


def _triton_facts(program: Program, function: TritonFunction, ctx: Context) -> dict[str, Any]:
    """`types` of all arguments by name, `aligned` (those that are a multiple of 16), `configs` in the order in which
    they would be tried, and `grid`: for each axis its points in the explored call, and the constant that divides them;
    a launch that `is_folded` has one axis for the programs of all.
    """
    names = list(types := dict(signature(program, function)))
    symbols = {name: ctx.sizes.get(name, 0) for name in function.symbols}
    pointers = [*_alignments(program, function)]
    multiples = [*pointers, *(size > 0 and size % 16 == 0 for size in symbols.values())]
    return {
        "types": types,
        "aligned": [name for name, holds in zip(names, multiples, strict=False) if holds],
        "configs": [
            {**config.blocks, "num_warps": config.num_warps, "num_stages": config.num_stages}
            for config in function.configs
        ],
        "grid": [[ctx.number(points), block] for points, block in function.grid],
        "is_folded": function.is_folded,
    }


def _alignments(program: Program, function: TritonFunction) -> list[bool]:
    """Whether each buffer begins at a multiple of 16 bytes: inputs are taken to, and memory of our own does."""
    unknown = {name for step in program.steps if getattr(step, "aliases", False) for name in step.targets}
    return [name not in unknown for name in function.buffers]
