"""The user's Triton kernels in our backend: direct calls, and operators of torch.library.triton_op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.library import triton_op, wrap_triton

from compiler.backend import tcompile
from compiler.backend.backend import interpret_program
from compiler.backend.ir import Extern
from compiler.backend.lower.graph import lower
from compiler.backend.passes.context import Context
from compiler.torch_api.user_triton import NoGpuError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def sine(x_ptr, out_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.sin(tl.load(x_ptr + at, mask=at < count)), mask=at < count)


def launch(kernel: Any, x: Tensor, out: Tensor) -> None:
    kernel[(triton.cdiv(x.numel(), 4),)](x, out, x.numel(), BLOCK=4)


@triton_op("tcompile_tests::sine", mutates_args={})
def sine_of(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launch(wrap_triton(sine), x, out)
    return out


@triton_op("tcompile_tests::sine_", mutates_args={"x"})
def sine_in_place(x: Tensor) -> None:
    launch(wrap_triton(sine), x, x)


def keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


sine_of.register_kernel("cpu")(torch.sin)
sine_of.register_autograd(lambda ctx, grad: grad * ctx.saved_tensors[0].cos(), setup_context=keep)


@sine_in_place.register_kernel("cpu")
def _(x: Tensor) -> None:
    x.sin_()


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    z = y.view(-1)
    sine_in_place(y)
    return y + z.sum()


def of_input(x: Tensor) -> Tensor:
    sine_in_place(x)
    return x * 2


def called(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launch(sine, x, out)
    return out * 2 + x


def called_in_place(x: Tensor) -> Tensor:
    y = x + 1
    launch(sine, y, y)
    return y * 2


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "new": lambda x: sine_of(x * 2) + 1,
    "in place": in_place,
    "of an input": of_input,
    "alone": sine_of,
}
CALLS = {"called": called, "called in place": called_in_place}


def check(fn: Callable[[Tensor], Tensor], device: str, *, dynamic: bool = False) -> None:
    torch.compiler.reset()
    run = torch.compile(fn, backend=tcompile, dynamic=dynamic)
    for count in (10, 13):
        x, other = (torch.linspace(-1, 1, count, device=device) for _ in range(2))
        torch.testing.assert_close((run(x), x), (fn(other), other))


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_with_triton_kernels_run_on_a_cpu(name: str) -> None:
    check(OPERATORS[name], "cpu")
    check(OPERATORS[name], "cpu", dynamic=True)


def test_operators_with_triton_kernels_have_gradients() -> None:
    x = torch.linspace(-1, 1, 10, requires_grad=True)
    fn = OPERATORS["new"]
    found, expected = (torch.autograd.grad(one(x).sum(), x) for one in (torch.compile(fn, backend=tcompile), fn))
    torch.testing.assert_close(found, expected)


@pytest.mark.needs("gpu")
@pytest.mark.parametrize("name", {**OPERATORS, **CALLS})
def test_triton_kernels_run_on_a_gpu(name: str) -> None:
    fn = {**OPERATORS, **CALLS}[name]
    check(fn, "cuda")
    check(fn, "cuda", dynamic=True)


def test_launch_without_a_gpu_is_a_clear_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    programs: list[Any] = []

    def lowered(module: torch.fx.GraphModule, inputs: Any) -> Any:
        programs.append(lower(module, "inference", Context()))
        return interpret_program(programs[0])

    torch.compiler.reset()
    run = torch.compile(OPERATORS["new"], backend=aot_autograd(fw_compiler=lowered))
    with pytest.raises(NoGpuError, match=r"the Triton kernel sine runs on a GPU.*register_kernel\('cpu'\)"):
        run(torch.ones(10))
    (launch,) = [step for step in programs[0].steps if isinstance(step, Extern) and step.name == "triton.sine"]
    assert launch.targets == (
        "triton_kernel_wrapper_functional_proxy_x_ptr",
        "triton_kernel_wrapper_functional_proxy_out_ptr",
    )
