"""The verifier catches illegal programs, and names the broken rule of the IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import compiler
from compiler.backend import tcompile
from compiler.backend.ir import Kernel, Loop, Program
from compiler.backend.ir.expr import Const, Load, Op, cast, loads
from compiler.backend.ir.index import Index, Var
from compiler.backend.passes.context import Context
from compiler.backend.passes.fuse import fuse
from compiler.backend.passes.verify import BrokenProgramError, verify

X = torch.ones(4, 6)


def program() -> Program:
    return compiler.open(lambda x: (x.sin() + 1).sum(-1), X).fused


def unfused() -> Program:
    return compiler.open(lambda x: x.sin() @ (x + 1).t(), X).fused


def with_loop(before: Program, number: int, change: Callable[[Loop], Loop]) -> Program:
    """The program of one kernel with one of its loops changed."""
    (kernel,) = before.kernels
    loops = tuple(change(loop) if place == number else loop for place, loop in enumerate(kernel.loops))
    return replace(before, steps=(replace(kernel, loops=loops),))


def with_frees(before: Program, frees: Callable[[Program], tuple[tuple[str, ...], ...]]) -> Program:
    return replace(before, frees=frees(before))


def with_reuse(before: Program) -> Program:
    """The program whose last step's result takes over the first step's."""
    (old,), (new,) = before.steps[0].targets, before.steps[-1].targets
    return replace(before, buffers=tuple(replace(x, reuses=old) if x.name == new else x for x in before.buffers))


def with_kernel(before: Program, change: Callable[[Kernel], Kernel]) -> Program:
    return replace(before, steps=tuple(change(step) if isinstance(step, Kernel) else step for step in before.steps))


def reads_before_overwriting(x: torch.Tensor) -> torch.Tensor:
    y = x @ x.t()
    x.add_(1)
    return y


def moved(loop: Loop) -> Loop:
    """Shift an index by one element."""
    (load,) = [part for part in loop.value.args if isinstance(part, Load)]  # type: ignore[union-attr]
    place = (load.index[0], load.index[1] + 1)
    return replace(loop, value=Op("sin", (Load(load.buffer, place, load.dtype),), torch.float32))


def on_two_devices(before: Program) -> Program:
    """The program with its first input on a GPU."""
    elsewhere = before.inputs[0]
    buffers = (replace(x, device="cuda:0") if x.name == elsewhere else x for x in before.buffers)
    return replace(before, buffers=tuple(buffers))


BROKEN: dict[str, tuple[Callable[[], Program], str]] = {
    "a kernel that reads another device's memory": (
        lambda: on_two_devices(program()), "its buffers are on cpu and cuda:0",
    ),
    "steps in the wrong order": (
        lambda: replace(unfused(), steps=unfused().steps[::-1]), "before it is written",
    ),
    "a read of an input after a kernel overwrote it": (
        lambda: (opened := compiler.open(reads_before_overwriting, X).fused).with_steps(opened.steps[::-1]),
        "reads arg0_1 after it was overwritten",
    ),
    "a local value that another step reads": (
        lambda: with_kernel(unfused(), lambda kernel: replace(kernel, local=frozenset(kernel.targets))), "is local to",
    ),
    "an output that is local": (
        lambda: with_kernel(program(), lambda kernel: replace(kernel, local=frozenset(kernel.targets))), "an output",
    ),
    "an output that is never written": (lambda: replace(program(), steps=()), "is never written"),
    "a buffer that there is not": (lambda: replace(program(), buffers=()), "there is no buffer"),
    "a variable of no loop": (
        lambda: with_loop(program(), 1, lambda loop: replace(
            loop, value=Load("sin", (loop.index[0], Index.of(Var("z", Index.of(6)))), torch.float32))),
        "which it has not",
    ),
    "a dtype that is not the target's": (
        lambda: with_loop(program(), 1, lambda loop: replace(loop, value=Const(1, torch.int64))), "makes torch.int64",
    ),
    "arguments of two dtypes": (
        lambda: with_loop(program(), 1, lambda loop: replace(
            loop, value=Op("add", (Const(1.0, torch.float32), Const(1, torch.int64)), torch.float32))),
        "mixes dtypes",
    ),
    "arithmetic in bfloat16": (
        lambda: with_loop(program(), 1, lambda loop: replace(
            loop, value=Op("neg", (Const(1.0, torch.bfloat16),), torch.bfloat16))),
        "computes in torch.bfloat16",
    ),
    "an operation that there is not": (
        lambda: with_loop(program(), 1, lambda loop: replace(
            loop, value=Op("frobnicate", (Const(1.0, torch.float32),), torch.float32))),
        "no operation frobnicate",
    ),
    "a reduction that there is not": (
        lambda: with_loop(program(), 2, lambda loop: replace(loop, reduction="median")), "no reduction median",
    ),
    "an element that is never written": (
        lambda: with_loop(program(), 0, lambda loop: replace(loop, index=(loop.index[0], Index.of(0)))), "once",
    ),
    "a read next to where the kernel writes": (
        lambda: with_loop(program(), 1, lambda loop: replace(loop, value=Load(
            "sin", (loop.index[0], Index.of(5) - loop.index[1]), torch.float32))),
        "at another place",
    ),
    "a coordinate too few": (
        lambda: with_loop(program(), 0, lambda loop: replace(loop, index=loop.index[:1])), "coordinates for",
    ),
    "a read outside of a buffer": (
        lambda: with_loop(program(), 0, lambda loop: replace(loop, value=Load(
            "arg0_1", (loop.index[0] + 4, loop.index[1]), torch.float32))),
        "lies outside",
    ),
    "a read before a buffer": (
        lambda: with_loop(program(), 0, lambda loop: replace(loop, value=Load(
            "arg0_1", (loop.index[0] - 4, loop.index[1]), torch.float32))),
        "lies outside",
    ),
    "a kernel that overwrites an input": (
        lambda: with_loop(program(), 0, lambda loop: replace(loop, target="arg0_1")), "overwrites arg0_1",
    ),
    "freed before its last use": (
        lambda: with_frees(unfused(), lambda p: (p.steps[0].targets, *[()] * (len(p.steps) - 1))), "which was freed",
    ),
    "an output that is freed": (
        lambda: with_frees(program(), lambda p: (tuple(p.returned),)), "the output .* is a buffer which was freed",
    ),
    "memory of a smaller buffer": (
        lambda: with_reuse(compiler.open(lambda x: x.sum(-1, keepdim=True) @ x[:1], X).fused), "which is smaller than",
    ),
    "frees of steps that are gone": (
        lambda: replace(program(), frees=((), ())), "its frees are for 2 steps, and it has 1",
    ),
}  # fmt: skip


def test_unreachable_read_may_be_out_of_bounds() -> None:
    """Which part of a concatenation is read may be known only after inlining."""
    x, before = torch.randn(5, 3), torch.randn(2, 3)
    found = torch.compile(lambda x, before: x.diff(2, 0, before), backend=tcompile)(x, before)
    torch.testing.assert_close(found, x.diff(2, 0, before))


@pytest.mark.parametrize("what", BROKEN)
def test_verifier_rejects_broken_programs(what: str) -> None:
    make, message = BROKEN[what]
    with pytest.raises(BrokenProgramError, match=message):
        verify(make())


def test_programs_from_the_passes_are_valid() -> None:
    verify(program())
    verify(unfused())


def test_a_pass_that_breaks_the_program_is_named() -> None:
    opened = compiler.open(lambda x: (x.sin() + 1).sum(-1), X)

    def wrong(before: Program, _ctx: object) -> Program:
        return replace(before, steps=before.steps[::-1][:1])

    with pytest.raises(BrokenProgramError, match="after the pass inline"):
        opened.replace("inline", wrong)


def test_expressions_of_different_dtypes_are_distinct() -> None:
    for dtype in (torch.int8, torch.int64):
        (found,) = loads(cast(Load("x", (), dtype), torch.float32))
        assert found.dtype == dtype


def test_small_kernels_on_two_devices_stay_separate() -> None:
    lowered = compiler.open(lambda x, y: (x.exp(), y.sin()), torch.ones(4), torch.ones(4)).lowered
    second = {*lowered.kernels[1].targets, *lowered.kernels[1].reads}
    buffers = tuple(replace(x, device="cuda:0") if x.name in second else x for x in lowered.buffers)
    apart = fuse(replace(lowered, buffers=buffers), Context(processors=132))
    verify(apart)
    assert [len(kernel.loops) for kernel in apart.kernels] == [1, 1]
    assert [len(kernel.loops) for kernel in fuse(lowered, Context(processors=132)).kernels] == [2]


def in_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.add_(1)
    return x.sin(), x.cos().sum(-1)


CALLED_OTHERWISE: dict[str, tuple[Callable[[Program], Program], str]] = {
    "no outputs": (lambda p: replace(p, outputs=()), "it has 0 outputs, and had 2"),
    "outputs in another order": (
        lambda p: replace(p, outputs=p.outputs[::-1]),
        r"output 0 is torch.float32 \[4\] on cpu, and was torch.float32 \[4, 6\] on cpu",
    ),
    "another graph's inputs": (lambda p: replace(p, inputs=("y",)), r"its inputs are \(y\), and were \(arg0_1\)"),
    "an input that is changed no more": (
        lambda p: replace(p, mutated=frozenset()), "it no longer writes to arg0_1, which the call changes in place",
    ),
    "a write to an input left out": (
        lambda p: p.with_steps(tuple(step for step in p.steps if "arg0_1" not in step.targets)),
        "the input arg0_1, which the call changes in place, is never written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLED_OTHERWISE)
def test_pass_must_preserve_the_call_interface(name: str) -> None:
    change, words = CALLED_OTHERWISE[name]
    opened = compiler.open(in_place, torch.ones(4, 6))
    with pytest.raises(BrokenProgramError, match=f"after the pass simplify:\n(.*\n)*{words}"):
        opened.replace("simplify", lambda program, _: change(program))
