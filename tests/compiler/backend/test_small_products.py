"""Small matmuls, which are our own Triton kernels in every mode: which ones, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from compiler import open as opened
from compiler.backend import pipeline, tcompile
from compiler.backend.inspect.inspection import Inspection
from compiler.backend.ir import Extern, MatmulKernel, Program
from compiler.backend.passes.context import Context
from compiler.backend.passes.matmuls import fuse_small_calls

pytest.importorskip("triton")


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def steps(call: Inspection) -> list[str]:
    return [type(step).__name__ for step in call.graph.stages.last.steps]


def layers(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """Two layers; no kernel reads the second one's result."""
    return functional.linear(x, w, b).relu() @ v


SMALL = tuple(numbers(*shape) for shape in ((5, 40), (24, 40), (24,), (24, 3)))


def test_small_matmuls_are_kernels_by_default() -> None:
    call = opened(layers, *SMALL).on("h100")
    assert steps(call) == ["MatmulKernel", "MatmulKernel"]
    decided = [item.why for item in call.graph.decisions if item.pass_name == "matmuls"]
    assert any("is a kernel of its own: no kernel reads it" in why for why in decided)
    assert any(why.endswith("are one kernel") for why in decided)


LARGE: Mapping[str, tuple[Tensor, ...]] = {
    "many multiplications": tuple(numbers(*shape) for shape in ((64, 128), (128, 128), (128,), (128, 128))),
    "a long sum": tuple(numbers(*shape) for shape in ((4, 512), (4, 512), (4,), (4, 2048))),
    "of float64": tuple(value.double() for value in SMALL),
}


@pytest.mark.parametrize("name", LARGE)
def test_other_matmuls_are_extern(name: str) -> None:
    call = opened(layers, *LARGE[name]).on("h100")
    found = [step.name for step in call.graph.stages.last.steps if isinstance(step, Extern)]
    assert "aten.mm.default" in found or "aten.addmm.default" in found
    assert "MatmulKernel" in steps(call.with_thresholds(own_matmul=2**30)) or name != "many multiplications"


def test_threshold_disables_small_matmuls() -> None:
    assert "MatmulKernel" not in steps(opened(layers, *SMALL).on("h100").with_thresholds(own_matmul=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_small_matmuls_match_eager(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    made: list[MatmulKernel] = []

    def kept(program: Program, ctx: Context) -> Program:
        changed = fuse_small_calls(program, ctx)
        made.extend(step for step in changed.steps if isinstance(step, MatmulKernel))
        return changed

    monkeypatch.setattr(pipeline, "passes_for_tuning", lambda passes: {**passes, "matmuls": kept})
    in_triton: Any = partial(tcompile, mode="max-autotune", options={"code": "triton"})  # in Triton's interpreter
    args = [value.to(dtype).requires_grad_() for value in SMALL]
    torch._dynamo.reset()
    results = []
    for call in (layers, torch.compile(layers, backend=in_triton)):
        found = call(*args)
        results.append((found, *torch.autograd.grad(found.square().sum(), args)))
    torch.testing.assert_close(results[1], results[0], rtol=0.05 if dtype == torch.bfloat16 else 1e-4, atol=1e-3)
    assert len(made) == 6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_small_matmuls_on_gpu_use_our_kernels(dtype: torch.dtype) -> None:
    args = [value.to("cuda", dtype).requires_grad_() for value in SMALL]
    torch._dynamo.reset()
    exact = layers(*(value.double() for value in args))
    found, own = torch.compile(layers, backend="tcompile")(*args), layers(*args)
    assert (found - exact).abs().max() <= 4 * (own - exact).abs().max() + 1e-5 * exact.abs().max()
    grads, owns = (torch.autograd.grad(value.square().sum(), args) for value in (found, own))
    torch.testing.assert_close(grads, owns, rtol=0.05 if dtype == torch.bfloat16 else 1e-4, atol=1e-2)
