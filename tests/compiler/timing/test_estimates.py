"""Estimates for a GPU that is not here, from bytes, operations and launches; never mixed with measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from compiler.binary import compile_record
from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Record
from compiler.targets import target
from compiler.timing.estimates import LAUNCH_SECONDS, Estimate, estimate


class Same(nn.Module):
    """Four layers, each with the same kernel after the matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)).softmax(-1)
        return x


@pytest.fixture(scope="module")
def record() -> Record:
    with torch.no_grad():
        return explore(Same(), (torch.randn(128, 64),), options=parse_options(target="h100")).record


@pytest.fixture(scope="module")
def found(record: Record) -> Estimate:
    made = estimate(record)
    assert made is not None
    return made


def test_bytes_and_launches_are_per_call(found: Estimate) -> None:
    products = [each for each in found.kernels if each.name == "extern_kernels.mm"]
    assert [each.bytes for each in products] == [4 * (128 * 64 + 64 * 64 + 128 * 64)] * 4
    assert [each.flops for each in products] == [2 * 128 * 64 * 64] * 4
    (fused,) = (each for each in found.kernels if each not in products)
    assert (fused.launches, fused.bytes) == (4, 4 * 4 * (2 * 128 * 64 + 64))
    assert (found.launches, found.bytes) == (8, sum(each.bytes for each in found.kernels))


def test_minimum_time_is_bytes_at_peak_bandwidth(found: Estimate) -> None:
    h100 = target("h100")
    for each in found.kernels:
        assert each.bound == "memory"
        assert each.seconds == pytest.approx(each.bytes / h100.memory_bandwidth)
    assert found.kernel_seconds == pytest.approx(sum(each.seconds for each in found.kernels))


def test_launch_cost_is_stated_and_bounds_small_calls(found: Estimate) -> None:
    assert found.launch_seconds == 8 * LAUNCH_SECONDS
    assert (found.seconds, found.bound) == (found.launch_seconds, "launches")
    assert "5 µs" in found.launch_source
    assert "measured on" in found.launch_source


def test_compiled_kernels_give_the_same_estimate(record: Record, found: Estimate) -> None:
    again = estimate(compile_record(record))
    assert again is not None
    assert (again.bytes, again.flops) == (found.bytes, found.flops)
    assert again.kernel_seconds == pytest.approx(found.kernel_seconds)
    assert [each.is_compiled for each in again.kernels].count(True) == 1


def test_local_device_code_has_no_estimate(record: Record) -> None:
    assert estimate(record.with_fields(target="cpu")) is None
    assert estimate(record.with_fields(kernels=())) is None


def test_a_kernel_of_unknown_size_is_named(record: Record) -> None:
    first, *rest = record.kernels
    made = estimate(record.with_fields(kernels=(replace(first, bytes=0), *rest), binaries=()))
    assert made is not None
    assert made.unknown == (first.name,)


def test_estimate_adds_no_candidate(record: Record) -> None:
    assert record.candidates == ()
    assert record.measurement is None
