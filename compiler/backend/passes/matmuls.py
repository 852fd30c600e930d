"""Pass, for GPUs: fuse a matmul with its epilogue, the kernel that reads it. Each program holds a tile of the result.

Small matmuls, for which calling the library takes longer than computing, always become our own kernels. With
mode="max-autotune" matmuls of any size are fused. The first call on a GPU then times each fused kernel against
PyTorch's matmul plus an epilogue kernel (`runtime/tune.py`), and `split_fused_matmul` splits it unless it is faster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import torch

from compiler.backend.ir import Extern, Kernel, Loop, MatmulKernel, Program, Step, Strided
from compiler.backend.ir.expr import Load, Put, Shape
from compiler.backend.ir.index import Index, Var, product
from compiler.backend.passes.context import Context
from compiler.backend.passes.fit import solve_digits
from compiler.backend.passes.names import unique
from compiler.backend.passes.order import sort_ranges
from compiler.backend.passes.reorder import reorder
from compiler.backend.passes.schedule import schedule

CALLS: Mapping[str, int] = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1}
"""Matmuls that kernels can compute, with the position of the left operand among the arguments."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_MATRICES, MOST_COLUMNS = 2**16 - 1, 2**19
"""Limits of a launch grid: matrices along its third axis, and columns along its second, at least 16 per program."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Operands of a matmul: `left` [.., m, k], `right` [.., k, n]; the result has `shape` [.., m, n].

    A `bias`, if any, is broadcast to the result's shape, and added before the result is rounded.
    """

    left: Strided
    right: Strided
    bias: Strided | None

    @staticmethod
    def from_call(call: Extern) -> Factors:
        first = CALLS[call.name]
        left, right = call.args[first : first + 2]
        return Factors(left, right, call.args[0] if first else None)

    @property
    def inner(self) -> Index:
        """Size of the inner dimension k."""
        return self.left.shape[-1]

    @property
    def shape(self) -> Shape:
        """Shape of the result."""
        return (*self.left.shape[:-1], self.right.shape[-1])

    @property
    def axes(self) -> tuple[Var, ...]:
        """Loop variables over the result: (b,) m, n."""
        names = ("b", "m", "n")[-len(self.shape) :]
        return tuple(Var(name, size) for name, size in zip(names, self.shape, strict=True))


def fuse_small_matmuls(program: Program, ctx: Context) -> Program:
    """On a GPU, replace small matmuls by our own kernels, without autotuning."""
    return fuse_small_calls(program, ctx) if ctx.processors else program


def fuse_small_calls(program: Program, ctx: Context) -> Program:
    """Fuse small matmuls with their first readers, or make them standalone kernels."""
    program, refused = _merge_all(program, ctx, [call for call in _calls(program) if _is_small(call, program, ctx)])
    taken = {kernel.name for kernel in program.kernels}
    new: dict[int, tuple[Step, ...]] = {}
    buffers = [*program.buffers]
    for call, _, why in reversed(refused):
        matmul = _standalone_matmul(call, program, _kernel_name(call, taken=taken))
        new[id(call)] = (matmul,)
        buffers.append(replace(program.by_name[call.targets[0]], name=matmul.made))
        ctx.decide(call.targets, "matmul", f"{call.name} is a kernel of its own: {why}")
    return replace(program, buffers=tuple(buffers)).replace_steps(new) if new else program


def fuse_matmuls(program: Program, ctx: Context) -> Program:
    """Fuse matmuls of any size with their first readers, if that is legal."""
    program, refused = _merge_all(program, ctx, _calls(program), ", where that is not slower than both")
    for call, kernel, why in refused:
        if kernel:
            subjects = call.targets[0], kernel.targets[-1]
            ctx.decide(subjects, "refused", f"{call.name} is not computed by the kernel {kernel.name}: {why}")
    return program


Refused: TypeAlias = tuple[Extern, Kernel | None, str]
"""A matmul, the kernel that reads its result first (None if there is none), and the reason not to fuse them."""


def _calls(program: Program) -> list[Extern]:
    return [call for call in program.calls if call.name in CALLS]


def _kernel_name(call: Extern, *rest: str, taken: set[str]) -> str:
    return unique("_".join((call.name.split(".")[1], *rest)), taken)


def _merge_all(
    program: Program, ctx: Context, calls: Sequence[Extern], unless: str = ""
) -> tuple[Program, list[Refused]]:
    """Fuse matmuls with their first readers. Also returns the refused matmuls, the last one first."""
    steps: dict[int, Step] = dict(enumerate(program.steps))
    places = {id(step): place for place, step in steps.items()}
    taken = {kernel.name for kernel in program.kernels}
    refused: list[Refused] = []
    for call in reversed(calls):
        place, buffer = places[id(call)], program.by_name[call.targets[0]]
        later = [number for number, step in steps.items() if number > place and buffer.name in step.reads]
        kernel = steps[later[0]] if later else None
        if not isinstance(kernel, Kernel):
            refused.append((call, None, "no kernel reads it"))
            continue
        between = [step for number, step in steps.items() if place < number < later[0]]
        if why := _refusal(call, kernel, between, program, ctx):
            refused.append((call, kernel, why))
            continue
        only = len(later) == 1 and buffer.name not in program.returned
        local = kernel.local | {buffer.name} if only else kernel.local
        name = _kernel_name(call, kernel.name, taken=taken)
        steps[later[0]] = MatmulKernel(name, kernel.ranges, (), kernel.loops, local, call=call)
        del steps[place]
        size = ctx.number(buffer.size) * buffer.dtype.itemsize * (2 if only else 1)
        why = f"{call.name} and {kernel.name} are one kernel{unless}"
        ctx.decide((buffer.name, kernel.targets[-1]), "matmul", why, bytes=size)
    return program if len(steps) == len(program.steps) else replace(program, steps=tuple(steps.values())), refused


def _is_small(call: Extern, program: Program, ctx: Context) -> bool:
    """Whether a matmul has few multiplications and a short inner dimension, and our kernels support it."""
    factors = Factors.from_call(call)
    sizes = [size.constant for size in (*factors.shape, factors.inner)]
    is_known = None not in sizes and not _reason_unfit(call, program, ctx)
    is_short = (factors.inner.constant or 0) <= ctx.thresholds.own_matmul_sum
    return is_known and is_short and prod(size or 0 for size in sizes) <= ctx.thresholds.own_matmul


def _standalone_matmul(call: Extern, program: Program, name: str) -> MatmulKernel:
    """Make a matmul kernel without an epilogue."""
    axes, buffer = Factors.from_call(call).axes, program.by_name[call.targets[0]]
    at, whole = tuple(map(Index.of, axes)), f"{buffer.name}_product"
    loop = Loop(buffer.name, axes, at, Load(whole, at, buffer.dtype), origins=call.origins, source=call.source)
    return MatmulKernel(name, axes, (), (loop,), frozenset({whole}), call=replace(call, outputs=whole))


def split_fused_matmul(program: Program, names: Collection[str], ctx: Context) -> Program:
    """Split the fused matmuls named in `names` into PyTorch's matmul and an epilogue kernel, and schedule again."""
    if not names:
        return program
    fused = [kernel for kernel in program.kernels if isinstance(kernel, MatmulKernel) and kernel.name in names]
    new = {id(kernel): (kernel.call, kernel_after_matmul(kernel, program, ctx)) for kernel in fused}
    adding = {loop.target for kernel in program.kernels for loop in kernel.loops if isinstance(loop.value, Put)}
    buffers = (buffer if buffer.name in adding else replace(buffer, reuses="") for buffer in program.buffers)
    found = replace(program, buffers=tuple(buffers)).replace_steps(new)
    return schedule(reorder(found, ctx.without_decisions()), ctx.without_decisions())


def with_alternatives(program: Program, ctx: Context) -> Program:
    """Append the epilogue kernel of each fused matmul, for autotuning against PyTorch's matmul."""
    matmuls = [kernel for kernel in program.kernels if isinstance(kernel, MatmulKernel)]
    others = tuple(kernel_after_matmul(kernel, program, ctx) for kernel in matmuls)
    return replace(program, steps=program.steps + others)


def kernel_after_matmul(matmul: MatmulKernel, program: Program, ctx: Context) -> Kernel:
    """The epilogue of a fused matmul as a kernel of its own."""
    return sort_ranges(matmul.parts[1], program, ctx.without_decisions())


def coordinates(matmul: MatmulKernel) -> Mapping[str, Index]:
    """Ranges of a matmul kernel as indices over `Factors.axes`. Raises ValueError if they do not match."""
    [place] = matmul.places(matmul.made)
    found = _solve_axes(place, matmul.ranges, Factors.from_call(matmul.call).axes)
    if found is None:
        raise ValueError(f"{matmul.name} does not walk {matmul.made}")
    return found


def _refusal(call: Extern, kernel: Kernel, between: Sequence[Step], program: Program, ctx: Context) -> str:
    """Reason why a matmul can't be fused with its reader, "" if it can."""
    if why := _reason_unfit(call, program, ctx):
        return why
    if isinstance(kernel, MatmulKernel):
        return f"it computes {kernel.made}"
    if kernel.reduced or any(loop.reduction or isinstance(loop.value, Put) for loop in kernel.loops):
        return "it reduces, or adds to memory"
    places = [*kernel.places(call.targets[0])]
    if len(places) != 1 or _solve_axes(places[0], kernel.ranges, Factors.from_call(call).axes) is None:
        return "its points are not those of the matmul, each element read once"
    changed = {name for step in (*between, kernel) for name in step.targets}
    changed |= {name for step in between for name in (step.writes if isinstance(step, Extern) else step.taken)}
    if late := sorted(changed & {*call.reads}):
        return f"{', '.join(late)} changes before it"
    return ""


def _reason_unfit(call: Extern, program: Program, ctx: Context) -> str:
    """Reason why our kernels can't compute a matmul, "" if they can."""
    factors, buffer = Factors.from_call(call), program.by_name[call.targets[0]]
    used = [program.by_name[view.buffer] for view in (factors.left, factors.right)]
    if ctx.processors and buffer.device == "cpu":
        return "it is on the CPU"
    if call.kwargs or buffer.dtype not in DTYPES or any(other.dtype != buffer.dtype for other in used):
        return "it is scaled, or of other dtypes than float16, bfloat16 and float32"
    if any(size.constant in (0, 1) for size in (*factors.shape[-2:], factors.inner)):
        return "a matrix has one row or column, or none"
    if len(factors.shape) == 3 and not 0 < (factors.shape[0].constant or 0) <= MOST_MATRICES:
        return "how many matrices there are is not known, or it is more than a grid has"
    if not 0 < (factors.shape[-1].constant or 0) <= MOST_COLUMNS:
        return "how many columns there are is not known, or it is more than a grid has"
    return ""


def _solve_axes(place: Shape, ranges: Sequence[Var], axes: Sequence[Var]) -> Mapping[str, Index] | None:
    """Ranges as indices over the axes, if the ranges in each coordinate cover its axis; else None."""
    found: list[tuple[Var, Index]] = []
    for axis, coordinate in zip(axes, place, strict=True):
        digits = [(atom, value) for atom, value in solve_digits(coordinate, Index.of(axis)) if isinstance(atom, Var)]
        if product(var.size for var, _ in digits) != axis.size:
            return None
        found += digits
    values = {var.name: value for var, value in found}
    return values if len(found) == len(ranges) and values.keys() == {var.name for var in ranges} else None
