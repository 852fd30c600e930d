"""Kernels, extern calls and bytes of our backend's programs for a GPU.

Bytes are the minimum that the kernels have to read and write, computed by hand next to each program: an element that
two kernels read counts twice. A better pass changes the numbers here; a worse pass fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import compiler
from compiler.backend.ir import Kernel, Program
from compiler.backend.ir.reference_interpreter import interpret
from compiler.backend.passes.context import Context, Thresholds
from compiler.backend.passes.cost import Totals
from compiler.backend.passes.schedule import lifetimes
from compiler.backend.pipeline import PASSES, run

ROWS, WIDE = 2048, 768
MANY = ROWS * WIDE


def numbers(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype).requires_grad_(grad)


def x(grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    return numbers(ROWS, WIDE, grad=grad, dtype=dtype)


@dataclass(frozen=True)
class Case:
    """A program with the kernels, extern calls and bytes of all its graphs."""

    fn: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    kernels: int
    calls: int
    bytes: int


def norm_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (WIDE,), weight, bias))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def feedforward(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x + F.gelu(x @ up) @ down


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def batch_norm(x: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, training=True))


def pictures(grad: bool = False) -> Tensor:
    return numbers(16, 64, 28, 28, grad=grad)


PIXELS, LOGITS, SCORES, LONG, HIDDEN = 16 * 64 * 28 * 28, 512 * 5000, 8 * 256 * 256, 65536 * 16, ROWS * 1024
CASES: dict[str, Case] = {
    "a chain of pointwise operations": Case(
        lambda x: (x.sin() * 2 + x.cos()).relu(), lambda: (x(),), 1, 0, 4 * 2 * MANY
    ),
    "broadcast": Case(lambda x, b: x * (b.exp() + 1), lambda: (x(), numbers(WIDE)), 1, 0, 4 * (2 * MANY + 768)),
    "group norm, whose weights torch sees through as_strided": Case(
        lambda x, w: F.group_norm(x, 8, w, w), lambda: (pictures(), numbers(64)), 1, 0, 4 * (2 * PIXELS + 64)
    ),
    "bfloat16": Case(lambda x: F.silu(x) * x, lambda: (x(dtype=torch.bfloat16),), 1, 0, 4 * MANY),
    "transposed": Case(lambda x, y: x.t().exp() + y, lambda: (x(), numbers(WIDE, ROWS)), 1, 0, 4 * 3 * MANY),
    "softmax": Case(lambda x: F.softmax(x * 0.125, -1), lambda: (x(),), 1, 0, 4 * 2 * MANY),
    "softmax, trained": Case(lambda x: F.softmax(x, -1), lambda: (x(grad=True),), 2, 0, 4 * 5 * MANY),
    "LayerNorm and GELU": Case(norm_gelu, lambda: (x(), numbers(WIDE), numbers(WIDE)), 1, 0, 4 * (2 * MANY + 1536)),
    "LayerNorm and GELU, trained": Case(
        norm_gelu,
        lambda: (x(grad=True), numbers(WIDE, grad=True), numbers(WIDE, grad=True)),
        4,
        0,
        4 * (7 * MANY + 116736),
    ),
    "RMS norm": Case(rms_norm, lambda: (x(), numbers(WIDE)), 1, 0, 4 * (2 * MANY + 768)),
    "RMS norm, trained": Case(rms_norm, lambda: (x(grad=True), numbers(WIDE, grad=True)), 4, 0, 4 * (7 * MANY + 57600)),
    "column sums": Case(lambda x: x.sum(0), lambda: (x(),), 2, 0, 4 * (MANY + 49920)),
    "column sums with what is summed": Case(
        lambda x: (y := F.gelu(x), y.sum(0)), lambda: (x(),), 2, 0, 4 * (2 * MANY + 49920)
    ),
    "row and column sums": Case(lambda x: (x.sum(0), x.sum(1)), lambda: (x(),), 3, 0, 4 * (2 * MANY + 51968)),
    "the mean of all": Case(lambda x: x.mean(), lambda: (x(),), 2, 0, 4 * (MANY + 2049)),
    "the loss of a mean, trained": Case(F.mse_loss, lambda: (x(grad=True), x()), 3, 0, 4 * (5 * MANY + 2050)),
    "variance of few long columns": Case(lambda x: x.var(0), lambda: (numbers(65536, 16),), 2, 0, 4 * (LONG + 32784)),
    "batch norm": Case(batch_norm, lambda: (pictures(),), 3, 0, 4 * (3 * PIXELS + 2304)),
    "batch norm, trained": Case(batch_norm, lambda: (pictures(grad=True),), 6, 0, 4 * (8 * PIXELS + 606912)),
    "feed-forward": Case(
        feedforward, lambda: (x(), numbers(WIDE, 1024), numbers(1024, WIDE)), 2, 2, 4 * (4 * HIDDEN + 524288)
    ),
    "feed-forward, trained": Case(
        feedforward,
        lambda: (x(), numbers(WIDE, 1024, grad=True), numbers(1024, WIDE, grad=True)),
        3,
        5,
        4 * (7 * HIDDEN + 524288),
    ),
    "rotary embedding": Case(rotary, lambda: (x(), numbers(ROWS, WIDE), numbers(ROWS, WIDE)), 1, 0, 4 * 4 * MANY),
    "embedding and norm": Case(
        lambda ids, table: F.layer_norm(table[ids], (WIDE,)),
        lambda: (torch.arange(ROWS) % 50, numbers(5000, WIDE)),
        1,
        0,
        4 * (2 * MANY + 4096),
    ),
    "cross entropy": Case(F.cross_entropy, lambda: (numbers(512, 5000), torch.arange(512)), 2, 0, 4 * (LOGITS + 2305)),
    "cross entropy, trained": Case(
        F.cross_entropy, lambda: (numbers(512, 5000, grad=True), torch.arange(512)), 3, 0, 4 * (3 * LOGITS + 5380)
    ),
    "causal attention written out": Case(
        lambda q, k, v: F.softmax((q @ k.mT).masked_fill(torch.ones(256, 256).tril() == 0, -1e9), -1) @ v,
        lambda: tuple(numbers(8, 256, 64) for _ in "qkv"),
        1,
        2,
        4 * 2 * SCORES,
    ),
    "layer norm of a biased input, trained": Case(
        lambda x, first, weight, bias: F.layer_norm(x + first, (WIDE,), weight, bias),
        lambda: (x(grad=True), *(numbers(WIDE, grad=True) for _ in range(3))),
        5,
        0,
        4 * (8 * MANY + 6 * 32 * WIDE + 9 * WIDE + 6 * ROWS),  # sums of 32 parts of each column, 3 times
    ),
    "padded, and summed over columns": Case(
        lambda x: (F.pad(x.exp(), (0, 8)), x.exp().sum(0)), lambda: (x(),), 3, 0, 4 * (3 * MANY + 16384 + 65 * WIDE)
    ),
    "joined and padded": Case(
        lambda x, y: F.pad(torch.cat([x, y], -1).relu(), (0, 8)), lambda: (x(), x()), 1, 0, 4 * (4 * MANY + 16384)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gpu_program_moves_the_minimum_bytes(name: str) -> None:
    case = CASES[name]
    opened = compiler.open(case.fn, *case.arguments()).on("h200")
    programs = "\n".join(str(graph.stages.last) for graph in opened.graphs)
    assert opened.totals == Totals(case.kernels, case.calls, case.bytes), programs


def small(*shape: int, grad: bool = False) -> Tensor:
    return numbers(*shape, grad=grad)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(0), x.clamp(min=0).sum(0)


SPLIT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "parts that are equal": (lambda x: (F.gelu(x), F.gelu(x).sum(0)), (small(64, 6),)),
    "a last part that is shorter": (halves, (small(61, 6),)),
    "several dimensions": (lambda x: x.sum((0, 2)), (small(6, 3, 14),)),
    "everything": (lambda x: (x.mean(), x.prod(), (x > 9).any(), (x < 9).all()), (small(17, 19),)),
    "whole numbers": (lambda x: (x.sum(), x.amin(), x.argmax()), (torch.arange(97) - 50,)),
    "a variance": (lambda x: torch.var_mean(x, 0), (small(64, 5) + 1000,)),
    "batch norm": (batch_norm, (small(4, 3, 8, 8),)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SPLIT)
def test_split_reduction_equals_the_whole_reduction(name: str, dynamic: bool) -> None:
    fn, arguments = SPLIT[name]
    torch.compiler.reset()
    graph = compiler.open(fn, *arguments, dynamic=dynamic).graph
    ctx = replace(graph.context(Thresholds(split_length=4, split_part=16, programs=2)), processors=16)
    program = run(graph.stages.programs["lowered"], ctx).last
    assert any(decision.verdict == "split" for decision in ctx.decisions), str(program)
    found = interpret(program, list(graph.captured.inputs))
    expected = fn(*arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    torch.testing.assert_close(tuple(found), expected, rtol=1e-5, atol=1e-5)


def test_reduction_that_fills_the_gpu_is_not_split() -> None:
    opened = compiler.open(lambda x: x.sum(-1), numbers(4096, 2048)).on("h200")
    assert opened.totals == Totals(1, 0, 4 * (4096 * 2048 + 4096))


def test_few_columns_are_split_with_a_reason() -> None:
    opened = compiler.open(lambda x: x.sum(0), numbers(4096, 64)).on("h200")
    (decision,) = [found for found in opened.graph.decisions if found.verdict == "split"]
    assert decision.pass_name == "split"
    assert decision.why.startswith("64 results of 4,096 elements each")
    assert decision.numbers["parts"] == 64


def scheduled(fn: Callable[..., Any], *arguments: Tensor) -> tuple[Program, list[Any]]:
    """The program for a GPU of a call, and its arguments."""
    graph = compiler.open(fn, *arguments).graph
    ctx = Context(processors=132)
    return run(graph.stages.programs["lowered"], ctx).last, list(graph.captured.inputs)


def reuses(program: Program) -> dict[str, str]:
    return {buffer.name: buffer.reuses for buffer in program.buffers if buffer.reuses}


def test_pointwise_kernel_reuses_its_last_read_buffer() -> None:
    x, weight = numbers(8, 8), numbers(8, 8)
    program, inputs = scheduled(lambda x, w: torch.relu(x @ w + 1) @ w, x, weight)
    assert reuses(program) == {"relu": "mm"}
    torch.testing.assert_close(interpret(program, inputs)[0], torch.relu(x @ weight + 1) @ weight)


def test_pointwise_kernel_reuses_a_buffer_viewed_differently() -> None:
    x, weight = numbers(8, 8), numbers(8, 8)
    fn = lambda x, w: torch.relu((x @ w).view(2, 4, 8) + 1) @ w  # noqa: E731
    program, inputs = scheduled(fn, x, weight)
    assert reuses(program) == {"relu": "mm"}
    torch.testing.assert_close(interpret(program, inputs)[0], fn(x, weight))


def most_held(program: Program, reused: bool) -> int:
    """The peak number of elements of steps' results, as the launcher allocates and frees them."""
    sizes = {buffer.name: buffer.size.constant or 0 for buffer in program.buffers}
    frees = program.frees if reused else lifetimes(program)
    now, most, mine = 0, 0, set()
    for step, freed in zip(program.steps, frees, strict=True):
        for name in step.writes if isinstance(step, Kernel) else step.targets:
            mine.add(name)
            now += 0 if reused and program.by_name[name].reuses else sizes[name]
        most = max(most, now)
        now -= sum(sizes[name] for name in freed if name in mine)
    return most


def test_reuse_never_raises_peak_memory() -> None:
    def fn(x: Tensor, wide: Tensor, small: Tensor) -> Tensor:
        first = F.softmax(x @ small, -1)  # its memory would be large enough for the last softmax
        return F.softmax((first @ wide).relu() @ wide.t(), -1) @ small

    arguments = (numbers(64, 8), numbers(8, 512), numbers(8, 8))
    program, inputs = scheduled(fn, *arguments)
    assert most_held(program, reused=True) <= 64 * 512 + 64 * 8, str(program)
    assert most_held(program, reused=True) <= most_held(program, reused=False)
    torch.testing.assert_close(interpret(program, inputs)[0], fn(*arguments))


def transposed_sum(x: Tensor) -> Tensor:
    return x.t() + x.sin()


def read_again(x: Tensor) -> Tensor:
    product = x @ x
    positive = product.relu()  # stored while rows are walked for the first time
    return (product - positive.sum(-1, keepdim=True)) @ positive


def test_no_reuse_across_indices_or_sweeps() -> None:
    square = numbers(8, 8)
    for fn in (
        lambda x: transposed_sum(x @ x),  # read at two places
        lambda x: (x @ x).flip(0) @ x,
    ):
        torch.compiler.reset()
        program, inputs = scheduled(fn, square)
        kernels = {target: kernel for kernel in program.kernels for target in kernel.writes}
        for new, old in reuses(program).items():
            assert old not in kernels[new].reads, str(program)
        torch.testing.assert_close(interpret(program, inputs)[0], fn(square))
    program, inputs = scheduled(read_again, square)
    assert reuses(program) == {"sub": "mm"}, str(program)
    torch.testing.assert_close(interpret(program, inputs)[0], read_again(square))


def test_input_and_output_buffers_are_never_reused() -> None:
    program, _ = scheduled(lambda x: (y := x @ x, y.sin(), x.cos()), numbers(8, 8))
    assert reuses(program) == {}


def test_cheap_value_is_recomputed_by_its_reader() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        centered = x - y
        return centered - (centered * centered).mean(0)

    x, y = numbers(4096, 64), numbers(64)
    opened = compiler.open(fn, x, y).on("h200")
    (again,) = [found for found in opened.graph.decisions if found.verdict == "computed again"]
    assert again.subjects[0] == "sub"
    assert again.numbers["bytes"] == 4 * (4096 * 64 - 64)  # not stored, but y is read again
    program, inputs = scheduled(fn, x, y)
    assert "sub" not in {name for kernel in program.kernels for name in kernel.writes}
    torch.testing.assert_close(interpret(program, inputs)[0], fn(x, y))


def test_value_is_recomputed_across_split_dimensions() -> None:
    """Its kernel iterates over pixels as one range, its reader over a part of each row of some rows."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        doubled = x.float() * 2
        total = doubled.flatten(2).sum(2)
        return total, (doubled + total[..., None, None]).sum((0, 2, 3))

    x = numbers(32, 64, 32, 32, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    opened = compiler.open(fn, x).on("h200")
    (again,) = [found for found in opened.graph.decisions if found.verdict == "computed again"]
    assert again.subjects[0] == "mul"
    program, inputs = scheduled(fn, x)
    assert "mul" not in {name for kernel in program.kernels for name in kernel.writes}
    torch.testing.assert_close(tuple(interpret(program, inputs)), fn(x), rtol=1e-4, atol=1e-3)


def test_kernel_without_stores_is_removed() -> None:
    def fn(x: Tensor, row: Tensor) -> Tensor:
        return (x * 2 + row).exp().sum(1)

    x, row = numbers(256, 64), numbers(64)
    graph = compiler.open(fn, x, row).graph
    passes = {name: change for name, change in PASSES.items() if name != "fuse"}
    program = run(graph.stages.programs["lowered"], Context(processors=132), passes).last
    assert [kernel.writes for kernel in program.kernels] == [("sum_1",)]
    torch.testing.assert_close(interpret(program, [x, row])[0], fn(x, row))


def test_split_dimension_reduction_stays_one_kernel() -> None:
    """Three dimensions of the result of `repeat` come from one: a point of the sum does not determine one element."""

    def shuffled(x: Tensor) -> Tensor:
        return (F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2) * 2 * torch.arange(10.0, device=x.device)).sum()

    opened = compiler.open(shuffled, torch.ones(2, 3, 4, 5, requires_grad=True)).on("h200")
    assert [len(graph.stages.last.kernels) for graph in opened.graphs] == [1, 1]
