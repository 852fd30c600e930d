"""Complete explorations of real models: every stage, eager's values, every node linked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from compiler.engine import Exploration
from tests.compiler.models import Block
from tests.compiler.test_engine import TRAINING, share_reaching_source
from tests.compiler.virtual_gpu.test_virtual import assert_written_for_the_gpu

Case = tuple[nn.Module, dict[str, Any]]


def resnet() -> Case:
    stem = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    return nn.Sequential(*stem, Block(8, 16, 2), *head).train(), {"input": torch.randn(2, 3, 32, 32)}


def encoder() -> Case:
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).train(), {"src": torch.randn(2, 16, 64)}


@pytest.mark.parametrize("make", [resnet, encoder])
def test_training_step(make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    model, arguments = make()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    expected = model(**arguments)
    advanced = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.load_state_dict(state)
    torch.manual_seed(1)
    with Exploration() as exploration:
        value = exploration.compile(model)(**arguments)
        value.pow(2).mean().backward()
    record = exploration.record
    assert torch.equal(value, expected)
    assert all(torch.equal(buffer, advanced[name]) for name, buffer in model.named_buffers())  # batch norm's statistics
    assert_written_for_the_gpu(record, TRAINING)
    for stage in ("captured", "joint", "forward", "backward", "post_grad"):
        for artifact in record.of_stage(stage):
            assert share_reaching_source(record, artifact.id) >= 0.95, artifact.id
