"""Pass, for GPUs: fuse a matmul with the kernel that reads it: each program holds a tile of the result.

Small matmuls, which PyTorch takes longer to call than the GPU to compute, always become our own kernels. With
mode="max-autotune" all are fused at first: the first call on a GPU times such a kernel against PyTorch's matmul and the
kernel after it (`runtime/tune.py`), and splits it again (`split_fused_matmul`) if that is not slower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import torch

from compiler.backend.ir import Extern, Kernel, Loop, MatmulKernel, Program, Step, Strided
from compiler.backend.ir.expr import Load, Put, Shape
from compiler.backend.ir.index import Index, Var, factor_of
from compiler.backend.passes.context import Context
from compiler.backend.passes.names import unique
from compiler.backend.passes.order import sort_ranges
from compiler.backend.passes.reorder import reorder
from compiler.backend.passes.schedule import schedule

CALLS: Mapping[str, int] = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1}
"""The products that kernels compute, and which argument of each is the left one."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_MATRICES, MOST_COLUMNS = 2**16 - 1, 2**19
"""A grid's third axis has no more programs, nor has its second, of 16 columns each."""


@dataclass(frozen=True, slots=True)
class Factors:
    """What is multiplied: `left` [.., m, k] by `right` [.., k, n], in `shape` [.., m, n]. A `bias` is added before the
    sum is rounded, if there is one: it has the product's shape, less dimensions at the front, or 1 in place of some.
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
        """The size of the inner dimension."""
        return self.left.shape[-1]

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return (*self.left.shape[:-1], self.right.shape[-1])

    @property
    def axes(self) -> tuple[Var, ...]:
        """A variable for each dimension of the product."""
        names = ("b", "m", "n")[-len(self.shape) :]
        return tuple(Var(name, size) for name, size in zip(names, self.shape, strict=True))


def fuse_small_matmuls(program: Program, ctx: Context) -> Program:
    """Replace small matmuls by kernels, without timing."""
    return fuse_small_calls(program, ctx) if ctx.processors else program


def fuse_small_calls(program: Program, ctx: Context) -> Program:
    """Fuse small matmuls with the first kernels that read them, else make them standalone kernels."""
    program, refused = _merge_all(program, ctx, [call for call in _calls(program) if _is_small(call, program, ctx)])
    taken = {kernel.name for kernel in program.kernels}
    own: dict[int, Step] = {}
    buffers = [*program.buffers]
    for call, _, why in reversed(refused):
        product = own[id(call)] = _standalone_matmul(call, program, unique(_operator(call), taken))
        buffers.append(replace(program.by_name[call.targets[0]], name=product.made))
        ctx.decide(call.targets, "product", f"{call.name} is a kernel of its own: {why}")
    steps = tuple(own.get(id(step), step) for step in program.steps)
    return replace(program, steps=steps, buffers=tuple(buffers)) if own else program


def fuse_matmuls(program: Program, ctx: Context) -> Program:
    """Fuse matmuls with the first kernels that read them, where that is legal."""
    program, refused = _merge_all(program, ctx, _calls(program), ", where that is not slower than both")
    for call, kernel, why in refused:
        if kernel:
            subjects = call.targets[0], kernel.targets[-1]
            ctx.decide(subjects, "refused", f"{call.name} is not computed by the kernel {kernel.name}: {why}")
    return program


Refused: TypeAlias = tuple[Extern, Kernel | None, str]
"""A product, the kernel that reads it first, and why it is not merged with that."""


def _calls(program: Program) -> list[Extern]:
    return [call for call in program.calls if call.name in CALLS]


def _operator(call: Extern) -> str:
    return call.name.split(".")[1]


def _merge_all(
    program: Program, ctx: Context, calls: Sequence[Extern], unless: str = ""
) -> tuple[Program, list[Refused]]:
    """The program with these products in the first kernels that read them, but for what is refused: last ones first."""
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
        name = unique(f"{_operator(call)}_{kernel.name}", taken)
        steps[later[0]] = MatmulKernel(name, kernel.ranges, (), kernel.loops, local, call=call)
        del steps[place]
        size = ctx.number(buffer.size) * buffer.dtype.itemsize * (2 if only else 1)
        said = f"{call.name} and {kernel.name} are one kernel{unless}"
        ctx.decide((buffer.name, kernel.targets[-1]), "product", said, bytes=size)
    return program if len(steps) == len(program.steps) else replace(program, steps=tuple(steps.values())), refused


def _is_small(call: Extern, program: Program, ctx: Context) -> bool:
    """Whether our kernels take a matmul, and it has few multiplications and a short inner dimension."""
    factors = Factors.from_call(call)
    sizes = [size.constant for size in (*factors.shape, factors.inner)]
    is_known = None not in sizes and not _unfit(call, program) and not _is_off_gpu(call, program, ctx)
    is_short = (factors.inner.constant or 0) <= ctx.thresholds.own_matmul_sum
    return is_known and is_short and prod(size or 0 for size in sizes) <= ctx.thresholds.own_matmul


def _is_off_gpu(call: Extern, program: Program, ctx: Context) -> bool:
    return bool(ctx.processors) and program.by_name[call.targets[0]].device == "cpu"


def _standalone_matmul(call: Extern, program: Program, name: str) -> MatmulKernel:
    """A kernel that computes a matmul and nothing else."""
    axes, buffer = Factors.from_call(call).axes, program.by_name[call.targets[0]]
    at, whole = tuple(map(Index.of, axes)), f"{buffer.name}_product"
    loop = Loop(buffer.name, axes, at, Load(whole, at, buffer.dtype), origins=call.origins, source=call.source)
    return MatmulKernel(name, axes, (), (loop,), frozenset({whole}), call=replace(call, outputs=whole))


def split_fused_matmul(program: Program, names: Collection[str], ctx: Context) -> Program:
    """A scheduled program with some fused matmuls, by kernel name, split into PyTorch's matmul and a kernel."""
    if not names:
        return program
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, MatmulKernel) and step.name in names:
            steps += [step.call, kernel_after_matmul(step, program, ctx)]
        else:
            steps.append(step)
    adding = {loop.target for kernel in program.kernels for loop in kernel.loops if isinstance(loop.value, Put)}
    buffers = [buffer if buffer.name in adding else replace(buffer, reuses="") for buffer in program.buffers]
    found = replace(program, steps=tuple(steps), buffers=tuple(buffers))
    return schedule(reorder(found, ctx.without_decisions()), ctx.without_decisions())


def with_alternatives(program: Program, ctx: Context) -> Program:
    """A program of kernels, with the kernels that would follow PyTorch's matmuls appended."""
    others = tuple(
        kernel_after_matmul(kernel, program, ctx) for kernel in program.kernels if isinstance(kernel, MatmulKernel)
    )
    return replace(program, steps=(*program.steps, *others)) if others else program


def kernel_after_matmul(product: MatmulKernel, program: Program, ctx: Context) -> Kernel:
    """The kernel that follows PyTorch's matmul if the two are not fused."""
    return sort_ranges(product.parts[1], program, ctx.without_decisions())


def coordinates(product: MatmulKernel) -> Mapping[str, Index]:
    """The product's ranges by the variables of `Factors.axes`. Raises ValueError where these do not give them."""
    [place] = product.places(product.made)
    found = _solve_axes(place, product.ranges, Factors.from_call(product.call).axes)
    if found is None:
        raise ValueError(f"{product.name} does not walk {product.made}")
    return found


def _refusal(call: Extern, kernel: Kernel, between: Sequence[Step], program: Program, ctx: Context) -> str:
    """Why a matmul is not fused with the kernel that reads it, "" if it may be."""
    if _is_off_gpu(call, program, ctx):
        return "it is on the CPU"
    if why := _unfit(call, program):
        return why
    if isinstance(kernel, MatmulKernel):
        return f"it computes {kernel.made}"
    if kernel.reduced or any(loop.reduction or isinstance(loop.value, Put) for loop in kernel.loops):
        return "it reduces, or adds to memory"
    places = [*kernel.places(call.targets[0])]
    if len(places) != 1 or _solve_axes(places[0], kernel.ranges, Factors.from_call(call).axes) is None:
        return "its points are not those of the product, each element read once"
    changed = {name for step in (*between, kernel) for name in step.targets}
    changed |= {name for step in between for name in (step.writes if isinstance(step, Extern) else step.taken)}
    if late := sorted(changed & {*call.reads}):
        return f"{', '.join(late)} changes before it"
    return ""


def _unfit(call: Extern, program: Program) -> str:
    """Why our kernels can't compute a matmul, "" if they can."""
    factors, buffer = Factors.from_call(call), program.by_name[call.targets[0]]
    used = [program.by_name[view.buffer] for view in (factors.left, factors.right)]
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
    """Each range in terms of the axes, where coordinate by coordinate the ranges count the axes' points."""
    values: dict[str, Index] = {}
    for axis, coordinate in zip(axes, place, strict=True):
        rest, covered = coordinate, Index.of(1)
        while rest.terms:
            new = (var for var in ranges if var.name not in values and factor_of(rest, var) == covered)
            if (var := next(new, None)) is None:
                return None
            values[var.name] = Index.of(axis) // covered % var.size
            rest, covered = rest - Index.of(var) * covered, covered * var.size
        if covered != axis.size:
            return None
    return values if len(values) == len(ranges) else None
