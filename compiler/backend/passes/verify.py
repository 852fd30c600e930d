"""Verify the invariants of programs, which hold at every stage. An error names the loop and the broken rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from compiler.backend.ir import (
    REDUCTIONS,
    BackendError,
    Buffer,
    ComboKernel,
    Extern,
    Kernel,
    Loop,
    MatmulKernel,
    Program,
    Strided,
    strided_views,
)
from compiler.backend.ir.expr import ADDED, Expr, Guard, Load, Op, Put, Shape, indices, loads, parts
from compiler.backend.ir.index import Var, atoms_of, is_below, is_bijective
from compiler.backend.ir.scalar import HALVES, OPERATIONS
from compiler.backend.ir.sweeps import overwritten_early


class BrokenProgramError(BackendError):
    """Raised for a program that breaks the rules of the IR: a bug in a pass."""


def verify(program: Program, before: Program | None = None) -> None:
    """Raise BrokenProgramError with all errors of a program.

    `before` is the verified program before a pass: the interface must be the same, and unchanged steps are not checked
    again.
    """
    unchanged = _unchanged_steps(program, before) if before else frozenset[int]()
    if wrong := [*_wrong(program, unchanged), *(_changes(program, before) if before else ())]:
        raise BrokenProgramError("\n".join(wrong))


def _changes(program: Program, before: Program) -> Iterator[str]:
    """Errors in the interface: inputs, mutated inputs or outputs that are not the same as before."""
    if program.inputs != before.inputs:
        yield f"its inputs are ({', '.join(program.inputs)}), and were ({', '.join(before.inputs)})"
    if missing := sorted(before.mutated - program.mutated):
        yield f"it no longer writes to {', '.join(missing)}, which the call changes in place"
    if len(program.outputs) != len(before.outputs):
        yield f"it has {len(program.outputs)} outputs, and had {len(before.outputs)}"
    for place, (now, was) in enumerate(zip(_describe_outputs(program), _describe_outputs(before), strict=False)):
        if now != was:
            yield f"output {place} is {now}, and was {was}"


def _describe_outputs(program: Program) -> Iterator[str]:
    """Text for each output: dtype, shape and device of a tensor, or the value itself."""
    for output in program.outputs:
        buffer = program.by_name.get(output.buffer) if isinstance(output, Strided) else None
        yield f"{buffer.dtype} [{', '.join(map(str, output.shape))}] on {buffer.device}" if buffer else str(output)


def _unchanged_steps(program: Program, before: Program) -> frozenset[int]:
    """The `id`s of steps and loops that were verified in `before`; none if buffers or results changed."""
    known = ((buffer, before.by_name.get(buffer.name, buffer)) for buffer in program.buffers)
    is_same = all(now is was or replace(now, reuses=was.reuses) == was for now, was in known)
    if not is_same or (program.mutated, program.returned) != (before.mutated, before.returned):
        return frozenset()
    return frozenset(map(id, (*before.steps, *(loop for kernel in before.kernels for loop in kernel.loops))))


def _wrong(program: Program, unchanged: frozenset[int]) -> Iterator[str]:
    written = {name for name in (*program.inputs, *program.constants) if name in program.by_name}
    rewritten: set[str] = set()
    hidden: set[str] = set()
    for step in program.steps:
        unknown = {name for name in (*step.reads, *step.targets) if name not in program.by_name}
        yield from (f"{_name(step)}: there is no buffer {name}" for name in sorted(unknown))
        if unknown:
            continue
        yield from (f"{_name(step)} reads {name} before it is written" for name in step.reads if name not in written)
        yield from (f"{_name(step)} reads {name} after it was overwritten" for name in step.reads if name in rewritten)
        yield from (f"{_name(step)} reads {name}, which is local to a kernel" for name in step.reads if name in hidden)
        changed = written.intersection(step.targets) | {*_extern_writes(step)}
        yield from (f"{_name(step)} overwrites {name}" for name in sorted(changed - program.mutated))
        if isinstance(step, Kernel):
            for kernel in step.parts if isinstance(step, ComboKernel) else (step,):
                yield from _wrong_kernel(kernel, program, unchanged) if id(kernel) not in unchanged else ()
            yield from _wrong_combo(step) if isinstance(step, ComboKernel) else ()
            hidden |= step.local
            rewritten |= changed | step.taken
        written.update(step.targets)
    changed = {name for step in program.steps for name in (*step.targets, *_extern_writes(step))}
    yield from (f"the input {name}, which the call changes in place, is never written"
                for name in sorted(program.mutated - changed))  # fmt: skip
    for view in strided_views(program.outputs):
        if view.buffer not in written or view.buffer in hidden:
            yield f"the output {view.buffer} is never written"
    if program.frees and len(program.frees) != len(program.steps):
        yield f"its frees are for {len(program.frees)} steps, and it has {len(program.steps)}; frees=() frees nothing"
    else:
        yield from _wrong_memory(program)


def _wrong_memory(program: Program) -> Iterator[str]:
    """Errors of the memory plan: a buffer that is used after its memory went, or that does not fit where it is put."""
    gone: dict[str, str] = {}
    for step, freed in program.steps_with_frees:
        yield from (f"{_name(step)} reads {name}, {gone[name]}" for name in step.reads if name in gone)
        for target in step.targets:
            new = program.by_name.get(target)
            if new is None or not new.reuses:
                continue
            old = program.by_name.get(new.reuses)
            if old is None or old.name in gone:
                yield f"{_name(step)}: {target} reuses {new.reuses}, {gone.get(new.reuses, 'which is no buffer')}"
            elif _is_larger(new, old):
                yield f"{_name(step)}: {target} reuses the memory of {old}, which is smaller than {new}"
            gone[new.reuses] = f"whose memory {target} took"
        gone |= dict.fromkeys(freed, "which was freed")
    yield from (f"the output {name} is a buffer {gone[name]}" for name in sorted(program.returned & gone.keys()))


def _is_larger(new: Buffer, old: Buffer) -> bool:
    """Whether a buffer needs more bytes than another; False if a size is symbolic."""
    sizes = [buffer.span.constant for buffer in (new, old)]
    known = [size for size in sizes if size is not None]
    return len(known) == 2 and known[0] * new.dtype.itemsize > known[1] * old.dtype.itemsize


def _extern_writes(step: Kernel | Extern) -> Sequence[str]:
    return step.writes if isinstance(step, Extern) else ()


def _name(step: Kernel | Extern) -> str:
    return f"kernel {step.name}" if isinstance(step, Kernel) else str(step)


def _wrong_kernel(kernel: Kernel, program: Program, unchanged: frozenset[int]) -> Iterator[str]:
    done: dict[str, Loop] = {}
    for loop in kernel.loops:
        where = f"kernel {kernel.name}, loop {loop.target}"
        yield from (f"{where}: {what}" for what in _wrong_place(loop, kernel, program))
        if id(loop) not in unchanged:
            yield from (f"{where}: {what}" for what in _wrong_loop(loop, program))
        for load in loads(loop.value):
            if (before := done.get(load.buffer)) and load.index != before.index:
                yield f"{where}: reads {load} where the same kernel writes {before.target} at another place"
        if loop.target in done:
            yield f"{where}: writes what another loop of the kernel writes"
        if loop.target in program.mutated and kernel.places(loop.target) - {loop.index}:
            yield f"{where}: overwrites {loop.target}, which the kernel reads at another place"
        done[loop.target] = loop
    devices = sorted({program.by_name[name].device for name in (*kernel.targets, *kernel.reads)})
    if len(devices) > 1:
        yield f"kernel {kernel.name}: it runs on one device, and its buffers are on {' and '.join(devices)}"
    if isinstance(kernel, MatmulKernel):
        yield from (f"kernel {kernel.name}: {what}" for what in _wrong_matmul(kernel, program))
    if name := overwritten_early(kernel, program.mutated):
        yield f"kernel {kernel.name}: overwrites {name} before its last read"
    never = kernel.local - set(kernel.targets)
    yield from (f"kernel {kernel.name}: {name} is local and never written" for name in never)
    yield from (f"kernel {kernel.name}: {name} is local and an output" for name in kernel.local & program.returned)


def _wrong_matmul(kernel: MatmulKernel, program: Program) -> Iterator[str]:
    """Errors of a matmul kernel: its epilogue must read each element of the result at one point."""
    found, shape = kernel.places(kernel.made), program.by_name[kernel.made].shape
    if len(found) != 1 or not all(is_bijective(index, shape, kernel.ranges) for index in found):
        yield f"its loops do not read each element of {kernel.made} at one point"
    if kernel.reduced or any(isinstance(loop.value, Put) for loop in kernel.loops):
        yield "reduces, or adds to memory, beside a matmul"
    if overwritten := {*kernel.call.reads} & {*kernel.targets, *kernel.taken}:
        yield f"overwrites {', '.join(sorted(overwritten))}, which is multiplied"


def _wrong_combo(kernel: ComboKernel) -> Iterator[str]:
    """Errors of a combo kernel: its parts must be independent, as they run in any order."""
    for part in kernel.parts:
        others = {name for other in kernel.parts if other is not part for name in other.targets}
        if met := others & {*part.reads, *part.targets}:
            yield f"kernel {kernel.name}: {part.name} needs or writes {min(met)}, which another of its parts makes"


def _wrong_place(loop: Loop, kernel: Kernel, program: Program) -> Iterator[str]:
    """Errors of a loop as part of this kernel."""
    if loop.reduction:
        if loop.reduction not in REDUCTIONS:
            yield f"there is no reduction {loop.reduction}"
        if (loop.ranges, loop.reduced) != (kernel.ranges, kernel.reduced):
            yield "reduces over other ranges than its kernel"
        if loop.is_scan and len(loop.reduced) != 1:
            yield f"a {loop.reduction} goes along one range"
    elif loop.reduced or loop.ranges not in (kernel.ranges, kernel.ranges + kernel.reduced):
        yield "walks other ranges than its kernel"
    if isinstance(loop.value, Put):
        yield from _wrong_put(loop.value, loop, kernel, program)


def _wrong_loop(loop: Loop, program: Program) -> Iterator[str]:
    """Errors of a loop, independent of its kernel."""
    target = program.by_name[loop.target]
    is_free = isinstance(loop.value, Put) or any(size.constant == 0 for size in target.shape)
    if not isinstance(loop.value, Put) and len(loop.index) != len(target.shape):
        yield f"{len(loop.index)} coordinates for {target}"
    elif not is_free and not is_bijective(loop.index, target.shape, loop.stored):
        yield f"does not write each element of {target} once"
    if (dtype := result_dtype(loop)) != target.dtype:
        yield f"makes {dtype} for {target}"
    runs = all(var.size.constant != 0 for var in loop.space)
    yield from _wrong_value(loop.value, {var.key for var in loop.space}, program, runs)


def _wrong_put(put: Put, loop: Loop, kernel: Kernel, program: Program) -> Iterator[str]:
    target, before = program.by_name[loop.target], program.by_name[put.onto]
    if (target.dtype, target.shape, target.strides) != (before.dtype, before.shape, before.strides):
        yield f"adds to {before}, which differs from {target}"
    if target.reuses != put.onto or put.onto in {*program.inputs, *program.constants, *program.returned}:
        yield f"adds to {put.onto} without reusing its memory"
    if put.adds and put.dtype not in ADDED:
        yield f"adds in {put.dtype}"
    if loop.index or loop.reduction or len(put.index) != len(target.shape):
        yield f"{put} is no place in {target}"
    read = {load.buffer for load in kernel.loads}
    if put.onto in read.union(kernel.targets) or loop.target in read:
        yield f"{loop.target} is added to, and used, by one kernel"


def result_dtype(loop: Loop) -> torch.dtype:
    """Dtype of the value that a loop stores."""
    return torch.int64 if loop.reduction.startswith("arg") else loop.value.dtype


def _wrong_value(value: Expr, known: set[str], program: Program, runs: bool) -> Iterator[str]:
    guards = (part for part in parts(value) if isinstance(part, Guard))
    guarded = {inner for guard in guards for each in (guard.value, guard.other) for inner in parts(each)}
    for part in parts(value):
        for index in indices(part):
            unknown = (atom for atom in atoms_of(index) if isinstance(atom, Var) and atom.key not in known)
            yield from (f"{part} uses {var}, which it has not" for var in unknown)
        if isinstance(part, Load):
            yield from _wrong_load(part, program, part in guarded or not runs)
        elif isinstance(part, Op):
            yield from _wrong_operation(part)
        elif isinstance(part, Guard) and (part.condition.dtype, part.other.dtype) != (torch.bool, part.value.dtype):
            yield f"{part} mixes dtypes"


def _wrong_load(load: Load, program: Program, guarded: bool) -> Iterator[str]:
    buffer = program.by_name.get(load.buffer)
    if buffer is None:
        yield f"there is no buffer {load.buffer}"
        return
    if load.dtype != buffer.dtype:
        yield f"{load} is read as {load.dtype} from {buffer}"
    if len(load.index) != len(buffer.shape):
        yield f"{load} has {len(load.index)} coordinates for {buffer}"
    elif not guarded and _is_outside(load.index, buffer.shape):
        yield f"{load} lies outside {buffer}"


@lru_cache(1 << 12)
def _is_outside(index: Shape, shape: Shape) -> bool:
    """Whether coordinates are proven to be out of bounds."""
    return any(is_below(size - 1, at) or is_below(at + size, size) for at, size in zip(index, shape, strict=True))


def _wrong_operation(value: Op) -> Iterator[str]:
    operation = OPERATIONS.get(value.name)
    if operation is None or operation.arity != len(value.args):
        yield f"there is no operation {value.name} of {len(value.args)} arguments"
        return
    if operation.kind == "random" and any(arg.dtype != torch.int64 for arg in value.args):
        yield f"{value} has arguments of other dtypes than int64"
    if operation.kind in ("cast", "random"):
        return
    args = value.args[1:] if operation.kind == "where" else value.args
    expected = torch.bool if operation.kind == "compare" else args[0].dtype
    is_same = len({arg.dtype for arg in args}) == 1 and value.dtype == expected
    if not is_same or (operation.kind == "where" and value.args[0].dtype != torch.bool):
        yield f"{value} mixes dtypes"
    if operation.kind == "same" and value.dtype in HALVES:
        yield f"{value} computes in {value.dtype}"
