"""Graphs whose convolutions read channels-last memory: the same numbers and the same strides for the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from compiler.backend.backend import example_sizes, interpreted
from compiler.backend.context import Context
from compiler.backend.ir import Extern, Program
from compiler.backend.lower.graph import lower
from compiler.backend.lower.table import RULES
from compiler.backend.pipeline import run
from compiler.torch_api.backend import Call, compile_with_autograd
from compiler.torch_api.layout import with_channels_last


def pictures() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 72, 3, padding=1), nn.BatchNorm2d(72), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(72, 80, 3, bias=False), nn.GroupNorm(4, 80), nn.GELU(), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip


def laid_out(programs: list[Program], any_change: bool = True) -> Callable[..., Any]:
    """A backend whose graphs have channels-last convolutions, as they have on a GPU; the interpreter runs them."""

    def compile_graph(module: GraphModule, inputs: Sequence[Any], name: str) -> Call:
        changed = with_channels_last(module, inputs, name, RULES.__contains__, "cpu")
        assert changed > 0 or not any_change
        ctx = Context(sizes=example_sizes(module), graph=name)
        programs.append(run(lower(module, name, ctx), ctx).last)
        return interpreted(programs[-1])

    forward, backward, inference = (partial(compile_graph, name=name) for name in ("forward", "backward", "inference"))
    return lambda module, inputs: compile_with_autograd(module, inputs, forward, backward, inference)


def convolutions(program: Program) -> list[Extern]:
    return [step for step in program.steps if isinstance(step, Extern) and "convolution" in step.name]


def test_training_with_channels_last_convolutions_is_eagers() -> None:
    model, x = pictures(), torch.randn(2, 3, 8, 8, requires_grad=True)
    model(x).sum().backward()
    expected = [x.grad, *(parameter.grad for parameter in model.parameters())]
    x.grad = None
    model.zero_grad()
    programs: list[Program] = []
    torch.compiler.reset()
    torch.compile(model, backend=laid_out(programs))(x).sum().backward()
    found = [x.grad, *(parameter.grad for parameter in model.parameters())]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [gradient.stride() for gradient in found if gradient is not None] == [
        gradient.stride() for gradient in expected if gradient is not None
    ]
    assert [program.name for program in programs] == ["forward", "backward"]


def test_every_convolution_reads_and_makes_channels_last_memory() -> None:
    model, programs = pictures(), list[Program]()
    model.eval()
    with torch.no_grad():
        expected = model[:7](torch.ones(2, 3, 8, 8))
        torch.compiler.reset()
        found = torch.compile(model[:7], backend=laid_out(programs))(torch.ones(2, 3, 8, 8))
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    (program,) = programs
    for call in convolutions(program):
        image, result = call.args[0], program.by_name[call.targets[0]]
        assert image.strides[1].constant == result.strides[1].constant == 1


def test_a_weight_is_saved_as_the_convolution_reads_it_though_nothing_else_changes() -> None:
    """The image and the result are in channels-last memory anyway; the backward is told where the weight lies."""
    model = nn.Conv2d(72, 80, 3, bias=False)
    x = torch.randn(2, 72, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()

    def call(model: Callable[..., Any]) -> list[Any]:
        x.grad = model.weight.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().square().sum().backward()
        return [x.grad, model.weight.grad]

    expected = call(model)
    torch.compiler.reset()
    programs: list[Program] = []
    compiled = torch.compile(model, backend=laid_out(programs, any_change=False))
    found = call(compiled)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    (backwards,) = convolutions(programs[1])
    weight = backwards.args[2]
    assert weight.strides[1].constant == 1
    assert weight.buffer in programs[1].inputs
