"""Facts of a program for a record: launches, allocations and frees, merges of the pass `fuse`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from compiler.backend.cpp.emit import Function
from compiler.backend.ir import Buffer, Extern, Kernel, Program, Strided
from compiler.backend.passes.context import Context
from compiler.backend.passes.schedule import Sizes, bytes_of_buffers
from compiler.backend.runtime.launch import Assumed
from compiler.backend.triton.emit import TritonFunction, signature
from compiler.record import Decision
from compiler.record.measure_facts import Merge
from compiler.torch_api.memory_lines import MemoryFacts, MemoryLine


def launch_facts(program: Program, kernel: Kernel, function: Function | TritonFunction, ctx: Context) -> dict[str, Any]:
    """Facts of a kernel's launch in the explored call.

    `arguments` are in order: [dtype, shape, strides] for a tensor, or a number. `written` are the indices of arguments
    that the kernel writes. For Triton there are more facts: see `_triton_facts`.
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
    """Further facts of a Triton kernel.

    types      types of all arguments, by name
    aligned    names of the pointers that are aligned to 16 bytes, and of the sizes that are multiples of 16
    configs    configurations in the order of autotuning
    grid       for each axis, its number of points in the explored call and the constexpr of its block
    is_folded  whether the programs of all axes are launched along a single axis
    """
    names = list(types := dict(signature(program, function)))
    symbols = {name: ctx.sizes.get(name, 0) for name in function.symbols}
    multiples = [
        *Assumed().alignments(program, function.buffers),
        *(size > 0 and size % 16 == 0 for size in symbols.values()),
    ]
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


def memory_facts(program: Program, ctx: Context) -> MemoryFacts:
    """Memory facts of a scheduled program, with symbolic sizes as in the explored call."""
    sizes = bytes_of_buffers(program, ctx)
    inputs = tuple((name, sizes[name]) for name in program.inputs if name in sizes)
    outputs = tuple(value.buffer if isinstance(value, Strided) else "" for value in program.outputs)
    return MemoryFacts(inputs, tuple(_memory_lines(program, sizes)), outputs)


def _memory_lines(program: Program, sizes: Sizes) -> Iterator[MemoryLine]:
    for step, freed in program.steps_with_frees:
        for name in step.targets if isinstance(step, Extern) else step.writes:
            if name in program.mutated:
                continue
            if before := program.by_name[name].reuses:
                yield MemoryLine("reuse", name, sizes[name], before)
            elif isinstance(step, Extern) and step.aliases and step.reads:
                yield MemoryLine("alias", name, sizes[name], step.reads[0])
            else:
                yield MemoryLine("allocate", name, sizes[name])
        yield from (MemoryLine("free", name) for name in freed)


def merges(decisions: Iterable[Decision], before: Program, after: Program, *, graph: str, kind: str) -> list[Merge]:
    """Pairs of kernels that the pass `fuse` merged, in the order of the merges.

    The round of a merge is 1, or one more than the latest round in which one of its two kernels was made.
    """
    taken = {kernel.name for kernel in after.kernels}
    known = {target: f"{kernel.name} loop" if kernel.name in taken else kernel.name
             for kernel in before.kernels for target in kernel.targets}  # fmt: skip
    members = {name: [target] for target, name in known.items()}
    found: dict[str, Merge] = {}
    fused = (item for item in decisions if (item.pass_name, item.verdict) == ("fuse", "fused"))
    for number, item in enumerate(fused, 1):
        first, second = (known[target] for target in item.subjects)
        name, saved = f"step {number}", int(item.numbers.get("bytes", 0))
        rounds = [found[part].round for part in (first, second) if part in found]
        found[name] = Merge(graph, kind, max(rounds, default=0) + 1, first, second, name, saved)
        members[name] = [*members[first], *members[second]]
        known |= dict.fromkeys(members[name], name)
    last = {known[target]: kernel.name for kernel in after.kernels for target in kernel.targets if target in known}
    return [replace(merge, name=last.get(merge.name, merge.name)) for merge in found.values()]
