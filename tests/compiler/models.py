"""Real models for the tests: the tutorials' MLP, a ResNet-18 written by hand, an encoder, small transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear-Dropout-ReLU twice, then Linear: the model of the tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 20)
        self.second = nn.Linear(20, 10)
        self.last = nn.Linear(10, 1)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.dropout(self.first(x)))
        x = torch.relu(self.dropout(self.second(x)))
        return self.last(x)


class Block(nn.Module):
    """A basic residual block (He et al., 2015, https://arxiv.org/abs/1512.03385)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)] if changes else []
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """A ResNet for 10 classes: ResNet-10 with one block in each stage, ResNet-18 with two."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(
            *(Block(outputs if number else inputs, outputs, 1 if number else stride)
              for inputs, outputs, stride in stages for number in range(blocks))
        )  # fmt: skip
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.stem(x))
        return self.head(y.mean((2, 3)))


def gpt2(layers: int = 2) -> tuple[nn.Module, dict[str, Any]]:
    """GPT-2 small with random weights, in train mode, and the arguments of a training step at sequence 128."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, loss_type="ForCausalLM")).train()
    ids = torch.randint(0, 50257, (1, 128))
    return model, {"input_ids": ids, "labels": ids}
