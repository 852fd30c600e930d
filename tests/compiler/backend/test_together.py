"""Combo kernels: independent small kernels share a launch on a GPU, and compute the same as alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import compiler
from compiler.backend.backend import interpret_triton
from compiler.backend.ir import ComboKernel, Program
from compiler.backend.ir.reference_interpreter import interpret
from compiler.backend.passes.combo import combine_kernels
from compiler.backend.passes.context import Context, Thresholds
from compiler.backend.passes.verify import BrokenProgramError, verify
from compiler.backend.pipeline import run


def for_a_gpu(fn: Callable[..., Any], *arguments: Tensor, **limits: int) -> tuple[Program, Context, list[Any]]:
    """The program of a call, and the graph's arguments: the call's arguments in the order of their use."""
    torch.compiler.reset()
    graph = compiler.open(fn, *arguments).graph
    ctx = Context(Thresholds(fused_loops=limits.pop("fused_loops", 64), inline_points=0, **limits), processors=132)
    return run(graph.stages.programs["lowered"], ctx).last, ctx, list(graph.captured.inputs)


def shared(program: Program) -> list[int]:
    """The number of kernels in each combo kernel."""
    return [len(kernel.parts) for kernel in program.kernels if isinstance(kernel, ComboKernel)]


def casts(*weights: Tensor) -> list[Tensor]:
    return [weight.bfloat16() for weight in weights]


def weights(*sizes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(size) for size in sizes]


def agrees(fn: Callable[..., Any], program: Program, ctx: Context, given: list[Any]) -> None:
    expected = [*fn(*given)]
    torch.testing.assert_close(interpret(program, list(given)), expected, rtol=0, atol=0)
    torch.testing.assert_close([*interpret_triton(program, ctx)(list(given))], expected, rtol=0, atol=0)


def test_casts_of_several_sizes_are_one_launch() -> None:
    program, ctx, given = for_a_gpu(casts, *weights((5,), (700, 3), (64, 3, 3, 3), (1,), (2048,)))
    assert shared(program) == [5]
    assert len(program.kernels) == 1
    agrees(casts, program, ctx, given)


def laid_out(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.bfloat16(memory_format=torch.channels_last), y.bfloat16(memory_format=torch.channels_last), x[0, 0] * 2]


def test_tiles_of_two_axes_share_a_launch() -> None:
    program, ctx, given = for_a_gpu(laid_out, *weights((40, 33, 3, 3), (16, 70, 5, 5)))
    assert shared(program) == [3]
    agrees(laid_out, program, ctx, given)


def test_dependent_or_large_kernels_launch_alone() -> None:
    def chain(x: Tensor, weight: Tensor, large: Tensor) -> list[Tensor]:
        total = (x * 2).sum(0)
        return [total, (total + 1)[:3] @ weight.half().float(), large.bfloat16()]

    program, _, _ = for_a_gpu(chain, *weights((50, 7), (3, 4), (65, 65)), shared_points=4096)
    assert shared(program) == []
    assert len(program.kernels) > 2
    program, _, _ = for_a_gpu(casts, *weights((64, 64), (64, 65), (63,), (64, 63)), shared_points=4096)
    assert shared(program) == [3]
    program, _, _ = for_a_gpu(casts, *weights(*((k,) for k in range(2, 42))), fused_buffers=48)
    assert shared(program) == [24, 16]


def test_caller_only_results_are_written_together_last() -> None:
    def gradients(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        first = x @ y
        return [first.bfloat16(), (first.t() @ z).bfloat16(), (x @ z).bfloat16()]

    program, _, given = for_a_gpu(gradients, *weights((64, 64), (64, 48), (64, 80)))
    assert shared(program) == [3]
    assert isinstance(program.steps[-1], ComboKernel)
    torch.testing.assert_close(interpret(program, list(given)), gradients(*given))


def test_kernels_reuse_no_memory_others_still_read() -> None:
    """Blocks of one kernel may run before or after blocks of another, so a kernel overwrites only its own inputs."""

    def products(x: Tensor, y: Tensor, a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        return [a.bfloat16() + (x @ y).t().bfloat16().t(), b + (y @ x).t(), c.t() * (y @ y)]

    arguments = weights(*[(64, 64)] * 5)
    program, ctx, given = for_a_gpu(products, *arguments)
    (kernel,) = (kernel for kernel in program.kernels if isinstance(kernel, ComboKernel))
    assert len(kernel.parts) == 3
    old = [program.by_name[part.targets[-1]].reuses for part in kernel.parts]
    assert all(name in ("", *part.reads) for name, part in zip(old, kernel.parts, strict=True)), str(program)
    torch.testing.assert_close([*interpret_triton(program, ctx)(given)], products(*arguments))


def test_mutated_input_keeps_its_order() -> None:
    def changing(x: Tensor, y: Tensor) -> Tensor:
        z = y.bfloat16()
        x.add_(1)
        return z

    program, _, _ = for_a_gpu(changing, *weights((8,), (9,)))
    assert shared(program) == []


def test_verifier_names_a_dependent_kernel() -> None:
    def sines(x: Tensor) -> list[Tensor]:
        return [x.sin(), (x[:1] * x[:1]).sum().cos()]

    program, _, _ = for_a_gpu(sines, *weights((8,)))
    first, second = program.kernels[0], program.kernels[-1]
    loop = replace(first.loops[0], target=second.targets[-1])
    wrong = combine_kernels([second, replace(first, loops=(loop,))], set())
    with pytest.raises(BrokenProgramError, match="which another of its parts makes"):
        verify(replace(program, steps=(wrong,)))


def test_gpu_code_has_one_function_per_kernel() -> None:
    with torch.no_grad():
        code = compiler.open(casts, *weights((5,), (700, 3))).on("h200").code
    assert "if program < 1:" in code
    assert "if (1 <= program) & (program < 4):" in code
    assert code.count("@triton.jit") == 3
