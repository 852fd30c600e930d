"""Convolutions for a GPU: biases in our kernels, weights and saved tensors in channels-last memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler.backend.inspect.inspection import Inspection
from compiler.backend.ir import Extern, Kernel, Program, strided_views
from compiler.backend.ir.reference_interpreter import interpret
from compiler.backend.lower import library_calls
from compiler.backend.passes.context import Context
from compiler.backend.triton.emit import emit
from compiler.torch_api.fx import value_of


@pytest.fixture
def taken_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower for a GPU, on the CPU, where the results can be computed."""
    torch.manual_seed(0)
    monkeypatch.setattr(library_calls, "is_on_gpu", lambda _meta: True)


def calls(program: Program, name: str) -> list[Extern]:
    return [step for step in program.steps if isinstance(step, Extern) and name in step.name]


def made_up(value: Tensor) -> Tensor:
    strides = value.stride()
    if value.dtype == torch.bool:
        return torch.empty_strided(value.shape, strides, dtype=value.dtype).bernoulli_()
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).normal_()


def checked(call: Inspection) -> None:
    """Check that each stage of each graph computes the same as the graph."""
    for graph in call.graphs:
        given = [made_up(value_of(node)) for node in graph.captured.module.graph.find_nodes(op="placeholder")]
        expected = list(graph.captured.module(*given))
        for program in graph.stages.programs.values():
            torch.testing.assert_close(interpret(program, list(given)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("taken_for_a_gpu")
def test_bias_is_added_and_reduced_by_kernels() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    call = compiler.open(lambda x: layer(x).sin(), x)
    (forward,), (backwards,) = (
        calls(call.of(name).graph.stages.last, "convolution") for name in ("forward", "backward")
    )
    assert forward.args[2] is None
    assert backwards.args[-1][2] is False
    assert backwards.outputs[2] is None
    checked(call)


@pytest.mark.usefixtures("taken_for_a_gpu")
def test_bias_rounds_in_low_precision_as_on_gpu() -> None:
    x, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    x, weight, bias = (value.bfloat16().requires_grad_() for value in (x, weight, bias))
    call = compiler.open(functional.conv2d, x, weight, bias)
    (found, *_) = interpret(call.lowered, [x, weight, bias])
    expected = functional.conv2d(x, weight) + bias[:, None, None]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    gradient = torch.randn_like(expected)
    backwards = call.backward.lowered
    given = {tuple(value.shape): value for value in (x, weight, gradient)}
    shapes = [tuple(size.constant for size in backwards.by_name[name].shape) for name in backwards.inputs]
    *_, found = interpret(backwards, [given[shape] for shape in shapes])
    torch.testing.assert_close(found, gradient.float().sum((0, 2, 3)).bfloat16(), rtol=0, atol=0)


@pytest.mark.usefixtures("taken_for_a_gpu")
@pytest.mark.parametrize("transposed", [False, True])
def test_bias_of_1d_convolution_alone_has_a_gradient(transposed: bool) -> None:
    weight, bias = torch.randn(4, 4, 3), torch.randn(4, requires_grad=True)
    convolve = functional.conv_transpose1d if transposed else functional.conv1d
    call = compiler.open(lambda x, bias: convolve(x, weight, bias).sin(), torch.randn(2, 4, 9), bias)
    assert not calls(call.backward.graph.stages.last, "convolution_backward")
    checked(call)


def test_cpu_convolution_library_adds_the_bias() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    (call,) = calls(compiler.open(layer, x).lowered, "convolution")
    assert isinstance(call.args[2], type(next(strided_views(call.args))))


@pytest.mark.usefixtures("taken_for_a_gpu")
def test_bmm_with_a_shared_matrix_becomes_mm() -> None:
    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(x.sin().transpose(0, 2), weight.expand(7, 5, 3)) + 1

    call = compiler.open(fn, torch.randn(5, 4, 7), torch.randn(5, 3))
    (product,) = calls(call.graph.stages.last, "mm")
    assert product.name == "aten.mm.default"
    assert len(call.graph.stages.last.kernels) == 2, "what makes the rows writes them as the product reads them"
    checked(call)


@pytest.mark.usefixtures("taken_for_a_gpu")
def test_transposed_operand_is_written_in_the_matmul_layout() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(x.sin().permute(2, 1, 0), y)

    call = compiler.open(fn, torch.randn(5, 4, 7), torch.randn(7, 5, 3))
    left, right = strided_views(calls(call.graph.stages.last, "bmm")[0].args)
    assert [step.constant for step in left.strides] == [20, 5, 1]
    assert right.buffer in call.graph.stages.last.inputs
    assert len(call.graph.stages.last.kernels) == 1
    checked(call)


@pytest.mark.usefixtures("taken_for_a_gpu")
@pytest.mark.parametrize("fn", [torch.bmm, lambda x, y: torch.bmm(x, y.transpose(1, 2).contiguous().transpose(1, 2))])
def test_library_readable_operands_keep_their_layout(fn: Any) -> None:
    call = compiler.open(fn, torch.randn(7, 4, 5), torch.randn(7, 5, 3))
    assert calls(call.lowered, "bmm")[0].targets == ("bmm",)
    assert not any("left" in name or "right" in name for name in call.lowered.by_name)


class Block(nn.Module):
    """Half a residual block of a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, 64), nn.Conv2d(64, 128, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.conv(functional.silu(self.norm(x))))


def test_saved_tensors_have_the_layout_convolution_reads() -> None:
    """Weights too. So neither the forward nor the backward writes it twice, and no extern call copies it."""
    with torch.autocast("cpu", torch.bfloat16):
        call = compiler.open(Block(), torch.randn(4, 64, 32, 32)).on("h200")
    forward, backwards = (call.of(name).graph.stages.last for name in ("forward", "backward"))
    (step,), (back,) = calls(forward, "convolution"), calls(backwards, "convolution")
    for view in (*strided_views(step.args), *strided_views(back.args)):
        assert view.strides[1].constant == 1, str(view)
    saved = {view.buffer for view in strided_views(forward.outputs)}
    assert {view.buffer for view in strided_views(step.args)} <= saved
    assert {view.buffer for view in list(strided_views(back.args))[1:]} <= {*backwards.inputs}


def test_input_is_saved_without_a_copy() -> None:
    """A copy would need more memory."""
    call = compiler.open(Block(), torch.randn(4, 64, 32, 32)).on("h200")
    forward = call.of("forward").graph.stages.last
    (step,) = calls(forward, "convolution")
    image, weight = strided_views(step.args)
    saved = {view.buffer for view in strided_views(forward.outputs)}
    assert image.buffer in saved
    assert weight.buffer not in saved
    assert any(view.buffer in forward.inputs and len(view.shape) == 4 for view in strided_views(forward.outputs))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.group_norm(x, 8, weight).contiguous(memory_format=torch.channels_last)


def test_group_channels_are_reduced_by_one_thread() -> None:
    """A row of pixels and channels, read along pixels and written along channels: channels are the inner loop."""
    call = compiler.open(norm, torch.randn(12, 64, 32, 32), torch.randn(64)).on("h200")
    (kernel,) = call.graph.stages.last.kernels
    assert [var.size.constant for var in kernel.reduced] == [1024, 8]


def columns(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x + y.transpose(1, 2)
    return z, z.sum(2)


def test_transposed_access_gets_tiles() -> None:
    """Rows without a read in the other direction are not tiled."""
    call = compiler.open(columns, torch.randn(64, 256, 1024), torch.randn(64, 1024, 256)).on("h200")
    ctx = Context(processors=132)
    assert sorted(emit(call.graph.stages.last, ctx).functions[0].configs[0].blocks) == ["RBLOCK", "XBLOCK"]
    call = compiler.open(columns, torch.randn(64, 256, 1024), torch.randn(64, 256, 1024).transpose(1, 2)).on("h200")
    assert isinstance(call.graph.stages.last.steps[0], Kernel)
    assert sorted(emit(call.graph.stages.last, ctx).functions[0].configs[0].blocks) == ["RBLOCK"]
