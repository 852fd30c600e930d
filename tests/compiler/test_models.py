"""Complete explorations of real models: every stage, eager's values, every node linked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from compiler.engine import Exploration
from tests.compiler.models import ResNet
from tests.compiler.test_engine import TRAINING, share_reaching_source, stages

Case = tuple[nn.Module, dict[str, Any]]


def resnet10() -> Case:
    return ResNet(1).train(), {"x": torch.randn(2, 3, 32, 32)}


def encoder() -> Case:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(), {"src": torch.randn(2, 16, 64)}


def bert() -> Case:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=1)).train(), {"input_ids": torch.randint(0, 1000, (1, 64))}


def vit() -> Case:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(num_hidden_layers=1)).train(), {"pixel_values": torch.randn(1, 3, 224, 224)}


def total(value: Any) -> torch.Tensor:
    tensor = value if isinstance(value, torch.Tensor) else value.last_hidden_state
    return tensor.float().pow(2).mean()


@pytest.mark.parametrize("make", [resnet10, encoder, bert, vit])
def test_training_step(make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    model, arguments = make()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    expected = total(model(**arguments))
    advanced = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.load_state_dict(state)
    torch.manual_seed(1)
    with Exploration() as exploration:
        value = total(exploration.compile(model)(**arguments))
        value.backward()
    record = exploration.record
    assert torch.equal(value, expected)
    assert all(torch.equal(buffer, advanced[name]) for name, buffer in model.named_buffers())  # batch norm's statistics
    assert record.problems == ()
    assert stages(record) == TRAINING
    for stage in ("captured", "joint", "forward", "backward", "post_grad"):
        for artifact in record.of_stage(stage):
            assert share_reaching_source(record, artifact.id) >= 0.95, artifact.id
