"""Whole models, in inference and in training: results match eager's within eager's own error.

`benchmarks/backend_correctness.py` explains the measurement, and runs larger versions in every precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.backend_correctness import STEPS, Row, compiled, measured
from benchmarks.correctness_models import TRIALS
from compiler.backend import tcompile
from tests.compiler.models import MLP


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread; with such small models several threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_right(name: str, kind: str, precision: str) -> None:
    row = measured(
        Row(name, kind, precision, "tcompile"), "cpu", small=True, compile_=compiled("tcompile", None, {}), steps=STEPS
    )
    assert row.is_right, str(row)


@pytest.mark.parametrize("name", TRIALS)
def test_losses_of_20_steps_match_eager(name: str) -> None:
    assert_right(name, "training", "fp32")


@pytest.mark.parametrize("name", ["ResNet", "GNN"])
def test_inference_matches_eager(name: str) -> None:
    assert_right(name, "inference", "fp32")


@pytest.mark.parametrize("name", ["MLP", "LSTM cells"])
def test_mixed_precision_losses_of_20_steps_match_eager(name: str) -> None:
    assert_right(name, "training", "bf16")


def trained(module: nn.Module, call: Callable[..., Any], x: torch.Tensor) -> list[float]:
    torch.manual_seed(1)
    optimizer, losses = torch.optim.SGD(module.parameters(), 0.1), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_dropout_mask_matches_eager_with_eager_random() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    module, x = MLP(), torch.randn(8, 64)
    twin = copy.deepcopy(module)
    expected = trained(module, module, x)
    found = trained(twin, torch.compile(twin, backend=tcompile, options={"random": "eager"}), x)
    assert found == pytest.approx(expected, rel=1e-4)


def test_batch_norm_statistics_match_eager() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(4, 3, 8, 8)
    twin = copy.deepcopy(module)
    assert trained(twin, torch.compile(twin, backend=tcompile), x) == pytest.approx(trained(module, module, x))
    torch.testing.assert_close(dict(twin.named_buffers()), dict(module.named_buffers()))
