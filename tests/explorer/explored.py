"""Records from the real engine, made once for all tests that read them."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import nn

from compiler.engine import Exploration
from compiler.record import Environment, Record


class MLP(nn.Module):
    """The tutorial's MLP: `Linear-Dropout-ReLU` twice, then `Linear`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.ReLU())
        self.deeper = nn.Sequential(nn.Linear(128, 128), nn.Dropout(0.1), nn.ReLU())
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.hidden(x)
        x = self.deeper(x)
        return self.head(x)


def breaks_in_the_middle(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    torch._dynamo.graph_break()
    return y.sin() + 1


@functools.cache
def mlp_record() -> Record:
    """Forward and backward of the MLP in train mode."""
    torch.manual_seed(0)
    with Exploration() as exploration:
        exploration.compile(MLP())(torch.randn(32, 64)).sum().backward()
    return replace(exploration.record, environment=Environment(python="3.11", torch="2.13"))


@functools.cache
def broken_record() -> Record:
    """A function that is captured in two graphs."""
    with Exploration() as exploration:
        exploration.compile(breaks_in_the_middle)(torch.randn(8))
    return exploration.record
