"""One-element tensors from the user's code, such as `torch.tensor(2.0)`, become numbers in the kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import compiler
from compiler.backend import tcompile
from compiler.backend.torch_glue.constants import with_known_constants
from compiler.torch_api.fx import value_of
from tests.compiler.broken import TORCH

NUMBERS = (
    torch.tensor(2.0),
    torch.tensor([[1.5]], dtype=torch.float64),
    torch.tensor(0.1, dtype=torch.bfloat16),
    torch.tensor(7),
    torch.tensor(200, dtype=torch.uint8),
    torch.tensor(True),
    torch.tensor(float("-inf")),
    torch.tensor(float("nan")),
)


def times(number: Tensor) -> Callable[[Tensor], Tensor]:
    value, dtype, shape = number.item(), number.dtype, number.shape
    return lambda x: x * torch.tensor(value, dtype=dtype).view(shape) + x


@pytest.mark.parametrize("options", [None, {"interpret": True}], ids=["machine code", "interpreted"])
def test_constants_match_eager(options: dict[str, bool] | None) -> None:
    def fn(x: Tensor) -> list[Tensor]:
        return [call(x) for call in calls]

    torch.compiler.reset()
    calls, x = [times(number) for number in NUMBERS], torch.randn(3, 4)
    found = torch.compile(fn, backend=tcompile, options=options, fullgraph=True)(x)
    torch.testing.assert_close(found, fn(x), rtol=0, atol=0, equal_nan=True)


def test_constant_is_inlined_into_its_reader_kernel() -> None:
    program = compiler.open(
        lambda x: x.masked_fill(x > 0, torch.tensor(-3.0)) * torch.tensor(2.5), torch.randn(8)
    ).fused
    assert len(program.steps) == 1
    assert not program.constants
    assert "-3.0" in str(program)
    assert "2.5" in str(program)


@pytest.mark.parametrize("device", ["cpu", "cuda"], ids=["the CPU's", "moved"])
def test_gpu_program_keeps_no_cpu_constant(device: str) -> None:
    def fn(x: Tensor) -> Tensor:
        number = torch.tensor(2.0) if device == "cpu" else torch.tensor(2.0, device=x.device)
        return (x * number).relu()

    program = compiler.open(fn, torch.randn(8)).on("h200").scheduled
    assert {buffer.device.partition(":")[0] for buffer in program.buffers} == {"cuda"}
    assert len(program.steps) == 1


def traced(fn: Callable[[Tensor], object]) -> list[str]:
    """The device of each value of the graph, traced for a GPU with its constants known: "name: device"."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = make_fx(fn)(torch.empty(8, device="cuda"))
    with_known_constants(module)
    module.graph.lint()
    values = {node.name: value_of(node) for node in module.graph.nodes}
    return [f"{name}: {value.device.type}" for name, value in values.items() if isinstance(value, Tensor)]


def test_cpu_constant_is_created_on_the_reader_device() -> None:
    assert traced(lambda x: x * torch.tensor(2.0)) == ["x_1: cuda", "lift_fresh_copy: cuda", "mul: cuda"]


def test_returned_constant_stays_on_its_device() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        number = torch.tensor(2.0)
        return number, x * number

    assert "lift_fresh_copy: cpu" in traced(fn)
    torch.compiler.reset()
    call = torch.compile(fn, backend=tcompile, fullgraph=True)
    first, second = call(torch.ones(8)), call(torch.ones(8))
    first[0].fill_(5)
    assert second[0].item() == 2.0


def test_mutated_constant_is_reset_in_each_call() -> None:
    def fn(x: Tensor) -> Tensor:
        total = torch.tensor(1.0)
        total.add_(x.sum())
        return total * x

    torch.compiler.reset()
    call, x = torch.compile(fn, backend=tcompile, fullgraph=True), torch.ones(4)
    for _ in range(3):
        torch.testing.assert_close(call(x), fn(x))


def test_larger_constant_stays_a_tensor() -> None:
    fn, x = lambda x: x + torch.tensor([1.0, 2.0, 3.0]), torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(fn, backend=tcompile, fullgraph=True)(x), fn(x))


BEYOND: dict[str, Callable[[Tensor], Tensor]] = {
    "full": lambda x: torch.full_like(x, 1e40),
    "fill_": lambda x: x.clone().fill_(1e40),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1e40),
    "clamp": lambda x: x.clamp(-1e40, 1e40),
    "pad": lambda x: functional.pad(x, (1, 1), value=1e40),
    "full of whole numbers": lambda x: torch.full_like(x, 300, dtype=torch.uint8),
    "clamp of whole numbers": lambda x: x.byte().clamp(0, 300),
}


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("options", [None, {"code": "triton"}], ids=["C++", "Triton"])
def test_constant_overflow_raises_as_in_eager(name: str, options: dict[str, str] | None) -> None:
    torch.compiler.reset()
    x = torch.arange(4.0)
    compiled = torch.compile(BEYOND[name], backend=tcompile, fullgraph=True, options=options)
    if name == "clamp of whole numbers" and TORCH >= "2.15":  # it clamps in eager, too
        torch.testing.assert_close(compiled(x), BEYOND[name](x))
        return
    for fn in (BEYOND[name], compiled):
        with pytest.raises(RuntimeError, match=r"value cannot be converted to type .* without overflow"):
            fn(x)


def test_constant_wraps_or_overflows_as_in_eager() -> None:
    def fn(x: Tensor) -> list[Tensor]:
        whole, replaced = x.byte(), (1 / x).nan_to_num(1e40, 1e40)
        filled = whole.masked_fill(x > 1, -1)
        return [x + 1e40, x < 1e40, whole + 300, whole - -1, whole < 300, filled, x.half() * 1e6, replaced]

    for ours, theirs in zip(torch.compile(fn, backend=tcompile)(torch.arange(4.0)), fn(torch.arange(4.0)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
