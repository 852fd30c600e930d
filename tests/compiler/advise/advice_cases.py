"""Calls that each match one rule of the adviser."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def transposed(x: Tensor, w: Tensor) -> Tensor:
    """A copy that only changes its input's layout, then a matmul that accepts the original layout."""
    return x.t().contiguous() @ w


class Cast(nn.Module):
    """A matrix stored in float32 and multiplied in bfloat16: it is cast in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2048, 2048))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(torch.bfloat16)


class Blocks(nn.Module):
    """Six equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)) for _ in range(6)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class TwoLists(nn.Module):
    """An encoder of five blocks, whose first block differs, and a decoder of four equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Tanh())
        self.encoder = nn.ModuleList([first, *(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))])
        self.decoder = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.encoder, *self.decoder):
            x = block(x)
        return x.softmax(-1)


class ListsInAList(nn.Module):
    """Six pairs of layers; the pairs themselves are never called."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [nn.ModuleList([nn.Linear(16, 16), nn.LayerNorm(16)]) for _ in range(6)]
        self.pairs = nn.ModuleList(pairs)

    def forward(self, x: Tensor) -> Tensor:
        for first, second in self.pairs:
            x = second(first(x))
        return x


def printing(x: Tensor) -> Tensor:
    y = x.sin()
    print("between")  # noqa: T201
    return (y.cos() * 2).exp()


def writing(x: Tensor) -> Tensor:
    x.add_(1)
    return x.sin().sum()


def norms(x: Tensor) -> Tensor:
    """A sequence of reductions, each over few elements."""
    for _ in range(4):
        x = x / (x.sum() + 1)
    return x


def products(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w) @ w
