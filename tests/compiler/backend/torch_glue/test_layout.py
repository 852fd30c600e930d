"""Graphs with the layouts that libraries prefer: the same numbers and the same strides for the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torch.nn import functional

from compiler.backend.backend import LAYOUTS, example_sizes, interpret_program
from compiler.backend.ir import Extern, Program
from compiler.backend.lower import library_calls
from compiler.backend.lower.graph import lower
from compiler.backend.passes.context import Context
from compiler.backend.pipeline import run
from compiler.backend.torch_glue.compiling import compile_with_autograd
from compiler.backend.torch_glue.layout import with_layouts
from compiler.torch_api.aot import Call


def pictures() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 72, 3, padding=1), nn.BatchNorm2d(72), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(72, 80, 3, bias=False), nn.GroupNorm(4, 80), nn.GELU(), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip


def laid_out(programs: list[Program], any_change: bool = True) -> Callable[..., Any]:
    """A backend whose graphs have a GPU's layouts; the interpreter runs them."""

    def compile_graph(module: GraphModule, inputs: Sequence[Any], name: str) -> Call:
        changed = with_layouts(module, inputs, name, LAYOUTS, "cpu")
        assert changed > 0 or not any_change
        ctx = Context(sizes=example_sizes(module), graph=name)
        programs.append(run(lower(module, name, ctx), ctx).last)
        return interpret_program(programs[-1])

    forward, backward, inference = (partial(compile_graph, name=name) for name in ("forward", "backward", "inference"))
    return lambda module, inputs: compile_with_autograd(module, inputs, forward, backward, inference)


def convolutions(program: Program) -> list[Extern]:
    return [step for step in program.steps if isinstance(step, Extern) and "convolution" in step.name]


def test_channels_last_convolution_training_matches_eager() -> None:
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


def test_every_convolution_uses_channels_last() -> None:
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


def test_saved_weight_has_the_layout_convolution_reads() -> None:
    """The image and the result are in channels-last memory anyway; the backward gets the weight's strides."""
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


class Head(nn.Module):
    """Logits of a vocabulary with a size that is slow in libraries: returns the loss, and optionally the logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scores = nn.Linear(24, 1003)

    def forward(self, x: torch.Tensor, target: torch.Tensor, both: bool = False) -> tuple[torch.Tensor, ...]:
        found = self.scores(x)
        loss = functional.cross_entropy(found.view(-1, 1003).float(), target)
        return (loss, found) if both else (loss,)


@pytest.fixture
def _padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad matmuls as on a GPU, on the CPU."""
    monkeypatch.setattr(library_calls, "_unit", lambda meta: 8 if meta.dtype == torch.bfloat16 else 1)
    monkeypatch.setattr(library_calls, "_pays", lambda *_: True)


def trained(model: Callable[..., Any], x: torch.Tensor, *given: Any) -> list[Any]:
    """The results of a step under autocast, and the gradient of the input."""
    x.grad = None
    with torch.autocast("cpu", torch.bfloat16):
        found = model(x, *given)
    found[0].backward()
    return [*found, x.grad]


@pytest.mark.usefixtures("_padded")
@pytest.mark.parametrize("both", [False, True])
def test_padded_matmul_rows_are_saved_without_a_copy(both: bool) -> None:
    model, programs = Head(), list[Program]()
    x, target = torch.randn(2, 16, 24, requires_grad=True), torch.randint(0, 1003, (32,))
    expected = trained(model, x, target, both)
    torch.compiler.reset()
    found = trained(torch.compile(model, backend=laid_out(programs)), x, target, both)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert [value.stride() for value in found] == [value.stride() for value in expected]
    forward, backward = programs
    rows = [view for view in forward.outputs if view.buffer == "addmm_padded"]
    assert [[stride.constant for stride in view.strides][-2:] for view in rows] == [[1008, 1]]
    inputs = [backward.by_name[name].strides for name in backward.inputs]
    assert [[stride.constant for stride in strides][-2:] for strides in inputs].count([1008, 1]) == 1
    written = [forward.by_name[name].shape for kernel in forward.kernels for name in kernel.writes]
    assert [[size.constant for size in shape] for shape in written].count([2, 16, 1003]) == both, (
        "a copy for the caller"
    )


@pytest.mark.usefixtures("_padded")
def test_inference_matmul_has_the_strides_of_eager() -> None:
    model, x, programs = Head().scores.bfloat16(), torch.randn(2, 16, 24, dtype=torch.bfloat16), list[Program]()
    with torch.no_grad():
        expected = model(x).exp(), model(x)
        torch.compiler.reset()
        found = torch.compile(lambda x: (model(x).exp(), model(x)), backend=laid_out(programs))(x)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert [value.stride() for value in found] == [value.stride() for value in expected]


@pytest.mark.usefixtures("_padded")
@pytest.mark.parametrize("both", [False, True])
def test_padded_rows_are_saved_with_symbolic_row_count(both: bool) -> None:
    model, programs = Head(), list[Program]()
    torch.compiler.reset()
    compiled = torch.compile(model, backend=laid_out(programs), dynamic=True)
    for rows in (16, 24):
        x, target = torch.randn(2, rows, 24, requires_grad=True), torch.randint(0, 1003, (2 * rows,))
        expected, found = trained(model, x, target, both), trained(compiled, x, target, both)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
        assert [value.stride() for value in found] == [value.stride() for value in expected]
    forward, _ = programs
    assert "addmm_padded" in forward.returned
