"""Peak memory of our backend's programs on a GPU; the bytes next to a program are computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

import compiler
from compiler.backend import backend, pipeline
from compiler.backend.backend import interpret_triton
from compiler.backend.ir import Program
from compiler.backend.passes.context import Context
from compiler.backend_record.facts import memory_facts
from compiler.torch_api import graph_capture
from compiler.torch_api.graph_capture import Graphs

ROWS, WIDE = 512, 256
UNIT = 4 * ROWS * WIDE


def numbers(*shape: int) -> Tensor:
    return torch.linspace(-2, 2, torch.Size(shape).numel()).reshape(shape)


def most_held(program: Program, ctx: Context) -> int:
    """The peak bytes of the results of a program's steps, as its call allocates and frees them."""
    bytes_of: dict[str, int] = {}
    most = 0
    for line in memory_facts(program, ctx).lines:
        if line.what == "free":
            bytes_of.pop(line.buffer, None)
        else:
            bytes_of[line.buffer] = bytes_of.pop(line.of, 0) if line.of else line.bytes
        most = max(most, sum(bytes_of.values()))
    return most


def on_gpu(fn: Callable[..., Any], *arguments: Any) -> tuple[Program, Context]:
    """The only program of a call, for an H200."""
    opened = compiler.open(fn, *arguments).on("h200")
    (graph,) = opened.graphs
    return graph.stages.last, graph.context(opened.thresholds)


def convolved(x: Tensor, first: Tensor, second: Tensor, scale: Tensor) -> Tensor:
    return F.conv2d(F.conv2d(x, first, padding=1).mul(scale).relu(), second, padding=1)


def test_kernel_reuses_a_convolution_output() -> None:
    x, first, second, scale = numbers(4, 16, 32, 32), numbers(16, 16, 3, 3), numbers(2, 16, 3, 3), numbers(16, 1, 1)
    program, ctx = on_gpu(convolved, x, first, second, scale)
    pixels = 4 * 4 * 32 * 32
    assert most_held(program, ctx) == (16 + 2) * pixels, str(program)  # the activation, and the second result


def first_rows(x: Tensor, *weights: Tensor) -> Tensor:
    """A growing sum, as in a transformer; only a few elements are read at the end."""
    for weight in weights:
        x = x + (x @ weight).relu()
    return x[:, 0] @ weights[0]


def test_operands_of_a_sum_are_freed_early() -> None:
    x, weights = numbers(4, ROWS // 4, WIDE), [numbers(WIDE, WIDE) / WIDE for _ in range(6)]
    program, ctx = on_gpu(first_rows, x, *weights)
    assert most_held(program, ctx) == 2 * UNIT, str(program)  # the sum, and a product


@pytest.mark.parametrize("width", [40, 3000], ids=["rows that are held", "rows that are walked"])
def test_reduction_reuses_its_last_read_buffer(width: int) -> None:
    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return F.softmax(x @ weight, -1) @ weight.t()

    x, weight = numbers(6, 24), numbers(24, width)
    graph = compiler.open(fn, x, weight).graph
    ctx = Context(processors=132)
    program = pipeline.run(graph.stages.programs["lowered"], ctx).last
    assert "takes over" in str(program), str(program)
    torch.testing.assert_close(interpret_triton(program, ctx)(list(graph.captured.inputs))[0], fn(x, weight))


def rectangles(x: Tensor, wide: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Two results: a small one that needs all of `large`, and one with an intermediate result of the same size."""
    large = x @ wide
    other = (x @ wide.flip(0)).relu()
    return kept @ other.t(), kept @ large.t()


def test_steps_that_free_memory_are_scheduled_first() -> None:
    x, wide, kept = numbers(64, 32), numbers(32, 2048), numbers(8, 2048)
    program, ctx = on_gpu(rectangles, x, wide, kept)
    large, flipped = 4 * 64 * 2048, 4 * 32 * 2048
    assert most_held(program, ctx) == large + flipped, str(program)  # not two large ones


def saved_twice(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The user and the backward share the first result; `tanh` and `gelu` save their input or result."""
    shown = (x @ weight).tanh()
    return shown, F.gelu(shown @ weight.t()).exp().sum(-1)


def test_backward_reuses_saved_tensors_unless_retain_graph(
    gpu_programs: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_inputs_on_gpu", lambda module: module.graph.find_nodes(op="placeholder"))
    x, weight = numbers(8, 6).requires_grad_(), (numbers(6, 10) / 4).requires_grad_()
    torch.compiler.reset()
    results = torch.compile(saved_twice, backend="tcompile")(x, weight)
    _, backward = gpu_programs
    assert backward.overwritten == {"mm_1"}, str(backward)  # gelu's input: neither the inputs nor the user's results
    shown = results[0].clone()
    expected = torch.autograd.grad([one.sum() for one in saved_twice(x, weight)], (x, weight))
    for is_kept in (True, True, False):
        found = torch.autograd.grad([one.sum() for one in results], (x, weight), retain_graph=is_kept)
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(results[0], shown)


class Sine(torch.autograd.Function):
    """A backward that is a boxed call, as AOTAutograd's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Callable[[list[Any]], Any]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.call = call
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.call([*ctx.saved_tensors, gradient]), None


def test_backward_that_keeps_saved_tensors_has_its_own_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings: list[list[int]] = []

    def record(call: Any, inputs: Any, fixed: Any, **facts: Any) -> Any:
        runs: list[int] = []
        recordings.append(runs)
        return lambda args: (runs.append(len(args)), call(args))[1]

    monkeypatch.setattr(graph_capture.trees, "cudagraphify_impl", record)
    monkeypatch.setattr(graph_capture.rules, "get_device_index", lambda _: 0)
    inputs = [torch.ones(3), torch.ones(3)]
    module = make_fx(lambda x, gradient: x.cos() * gradient, tracing_mode="fake")(*inputs)
    for overwrites in (True, False):
        recordings.clear()
        call = Graphs().record_graphs(lambda args: module(*args), module, inputs, "backward", (), overwrites=overwrites)
        x = torch.linspace(-1, 1, 3, requires_grad=True)
        result = Sine.apply(x, call).sum()
        for is_kept in (True, True, False):
            torch.testing.assert_close(torch.autograd.grad(result, x, retain_graph=is_kept), (x.cos(),))
        assert recordings == ([[2], [2, 2]] if overwrites else [[2, 2, 2]])
