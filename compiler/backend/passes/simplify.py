"""Pass: fold constants, remove redundant casts, merge equal loops, remove unused steps."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

import torch

from compiler.backend.ir import Extern, Kernel, Loop, Program, Step
from compiler.backend.ir.expr import Const, Expr, Guard, Op, Put, rename_buffers, with_index
from compiler.backend.ir.index import Index, Var
from compiler.backend.ir.scalar import HALVES, OPERATIONS
from compiler.backend.passes.context import Context
from compiler.torch_api.fake_tensors import without_modes


def simplify(program: Program, ctx: Context) -> Program:
    """Simplify all expressions, merge equal loops, and remove unused steps."""
    steps: list[Step] = []
    known: dict[str, str] = {}
    same: dict[str, str] = {}
    stored = program.passed | program.returned | program.mutated
    for step in program.steps:
        simpler = _simpler(step, same) if isinstance(step, Kernel) else step
        if isinstance(simpler, Kernel) and (twin := _twin(simpler, program, stored, known)) is not None:
            same[simpler.targets[0]] = twin
            ctx.decide((simpler.targets[0], twin), "merged", "they compute the same")
        else:
            steps.append(simpler)
    return remove_unused(program, tuple(steps), ctx)


def _simpler(kernel: Kernel, same: Mapping[str, str]) -> Kernel:
    values = [fold(rename_buffers(loop.value, same) if same else loop.value) for loop in kernel.loops]
    if values == [loop.value for loop in kernel.loops]:
        return kernel
    return replace(kernel, loops=tuple(map(lambda loop, value: replace(loop, value=value), kernel.loops, values)))


def _twin(kernel: Kernel, program: Program, stored: Set[str], known: dict[str, str]) -> str | None:
    """Target of an earlier loop that computes the same value, None if there is none.

    Also None if anything but loops uses the kernel's target, or if a buffer that it uses is mutated.
    """
    target, loop = kernel.targets[0], kernel.loops[0]
    if len(kernel.loops) > 1 or target in program.taken or program.mutated & {target, *loop.reads}:
        return None
    space = ", ".join(var.key for var in loop.space)
    buffer = program.by_name[target]
    shape = [size.key for size in buffer.shape]
    twin = known.setdefault(f"{loop.reduction} {space} {loop.value.key} {shape} {buffer.device}", target)
    return twin if twin != target and target not in stored else None


def remove_unused(program: Program, steps: tuple[Step, ...], ctx: Context) -> Program:
    """The program with `steps` as its steps, without unused ones."""
    needed = set(program.returned) | program.mutated
    kept: list[Step] = []
    for step in reversed(steps):
        effect = isinstance(step, Extern) and (step.pinned or step.writes)
        if effect or needed & set(step.targets):
            needed.update(step.reads)
            kept.append(step)
        else:
            ctx.decide(step.targets, "left out", "nothing needs it")
    kept.reverse()
    unchanged = [*map(id, kept)] == [*map(id, program.steps)]
    return program if unchanged else program.with_steps(tuple(kept))


def value_at(producer: Loop, index: tuple[Index, ...]) -> Expr:
    """Value that a lowered loop stores at `index`. Each coordinate of the loop's own index must be a variable or 0."""
    places = zip(producer.index, index, strict=True)
    values = {own.atom.name: place for own, place in places if isinstance(own.atom, Var)}
    return with_index(producer.value, values)


def fold(value: Expr) -> Expr:
    """Simplify an expression, bottom-up."""
    match value:
        case Op():
            args = tuple(map(fold, value.args))
            if any(new is not old for new, old in zip(args, value.args, strict=True)):
                value = Op(value.name, args, value.dtype)
            return _fold_operation(value)
        case Guard():
            condition = fold(value.condition)
            if isinstance(condition, Const):
                return fold(value.value if condition.value else value.other)
            return Guard(condition, _simplify_guarded(fold(value.value), condition), fold(value.other))
        case Index() if value.constant is not None:
            return Const(value.constant, torch.int64)
        case Put():
            return replace(value, value=fold(value.value))
    return value


def _simplify_guarded(value: Expr, condition: Expr) -> Expr:
    """Simplify the indices of a guarded value, given the upper bound that the condition sets on a loop variable."""
    match condition:
        case Op("and", (left, right)):
            return _simplify_guarded(_simplify_guarded(value, left), right)
        case Op("lt", (Index() as index, end)) if isinstance(var := index.atom, Var):
            pass
        case _:
            return value
    size = end if isinstance(end, Index) else Index.of(int(end.value)) if isinstance(end, Const) else var.size
    if size.constant is None or size.constant < 1 or size == var.size:
        return value
    inside = Var(var.name, size)
    return with_index(with_index(value, {var.name: Index.of(inside)}), {var.name: Index.of(var)})


def _fold_operation(value: Op) -> Expr:
    args = value.args
    if all(isinstance(arg, Const) for arg in args) and value.dtype not in HALVES:
        with without_modes():
            tensors = [torch.tensor(arg.value, dtype=arg.dtype) for arg in args if isinstance(arg, Const)]
            return Const(OPERATIONS[value.name].torch(*tensors).to(value.dtype).item(), value.dtype)
    match value:
        case Op("cast", (Op("cast", (kept,)) as inner,)) if _is_cast_back(kept.dtype, inner.dtype, value.dtype):
            return kept
        case Op("where", (Const(holds), kept, other)):
            return kept if holds else other
        case Op("where", (_, kept, other)) if kept == other:
            return kept
        case Op("mul" | "div", (kept, one)) if _is_one(one):
            return kept
        case Op("mul", (one, kept)) if _is_one(one):
            return kept
        case Op("and" | "or" as name, (kept, Const(holds, torch.bool))):
            return kept if holds == (name == "and") else args[1]
    return value


def _is_one(value: Expr) -> bool:
    return isinstance(value, Const) and value.dtype != torch.bool and value.value == 1


def _is_cast_back(old: torch.dtype, through: torch.dtype, new: torch.dtype) -> bool:
    """Whether casts are a lossless round trip through another dtype."""
    both_float = through.is_floating_point == new.is_floating_point
    return old == new and both_float and torch.promote_types(through, new) == through
