"""Formats that a GPU lacks or is slow in, and stages that need the GPU: reported in plain words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Record

pytest.importorskip("triton", reason="Triton has no wheel for this platform")


def product(x: Tensor) -> Tensor:
    return x @ x


def scaled_product(x: Tensor) -> Tensor:
    narrow, scale = x.to(torch.float8_e4m3fn), torch.tensor(1.0)
    return torch._scaled_mm(narrow, narrow.t(), scale, scale, out_dtype=torch.float16)


def through_float8(x: Tensor) -> Tensor:
    return (x * 2).to(torch.float8_e4m3fn).float() + 1


def explored(fn: Callable[..., Any], x: Tensor, name: str) -> Record:
    return explore(fn, (x,), options=parse_options(target=name)).record


def notes(record: Record) -> dict[str, str]:
    return {decision.verdict: decision.why for decision in record.decisions if decision.pass_name == "formats"}


@pytest.mark.parametrize("name", ["a100", "t4"])
def test_float8_matmul_needs_float8_tensor_cores(name: str) -> None:
    record = explored(scaled_product, torch.randn(32, 32).half(), name)
    (problem,) = record.problems
    assert "has no float8 tensor cores: torch._scaled_mm raises an error there" in problem.reason
    assert "compute capability 8.9 or later" in problem.reason
    assert record.kernels == ()


@pytest.mark.parametrize("name", ["h100", "l4", "b200"])
def test_float8_matmul_compiles_with_float8_tensor_cores(name: str) -> None:
    record = explored(scaled_product, torch.randn(32, 32).half(), name)
    assert record.problems == ()
    assert "float8" not in notes(record)
    assert any("_scaled_mm" in kernel.name for kernel in record.kernels)


def test_stored_only_float8_is_noted() -> None:
    assert "float8 is only stored there" in notes(explored(through_float8, torch.randn(8, 8), "a100"))["float8"]
    assert "float8" not in notes(explored(through_float8, torch.randn(8, 8), "h100"))


@pytest.mark.parametrize(("name", "part"), [("rtx4090", "1/64"), ("l4", "1/64"), ("t4", "1/32")])
def test_slow_float64_on_a_graphics_gpu_is_noted(name: str, part: str) -> None:
    why = notes(explored(product, torch.randn(8, 8).double(), name))["float64"]
    assert f"computes float64 at {part} of the rate of float32" in why


@pytest.mark.parametrize("name", ["h100", "a100", "mi300x"])
def test_fast_float64_is_not_noted(name: str) -> None:
    assert "float64" not in notes(explored(product, torch.randn(8, 8).double(), name))


def test_float32_matmuls_without_tf32_are_noted() -> None:
    found = notes(explored(product, torch.randn(8, 8), "h100"))["float32"]
    assert "torch.set_float32_matmul_precision('high')" in found
    assert notes(explored(product, torch.randn(8, 8).half(), "h100")) == {}
    assert notes(explored(product, torch.randn(8, 8), "t4")) == {}  # it has no TF32


def test_allowed_tf32_is_not_noted() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert notes(explored(product, torch.randn(8, 8), "h100")) == {}
    finally:
        torch.set_float32_matmul_precision(before)


def test_time_and_check_are_allowed_for_absent_gpus() -> None:
    """They run on the CPU then, and say so."""
    options = parse_options(target="h100", time=True, check=True)
    assert (options.target, options.check) == ("h100", True)
