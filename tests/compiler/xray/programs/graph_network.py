"""A graph network: neighbours are gathered by node, degrees as Python numbers, messages in a dictionary by `id`."""

import os
import sys

import torch
from torch import nn


def degrees(edges, nodes):
    counts = torch.bincount(edges[1], minlength=nodes)  # breaks: torch.bincount
    if (counts == 0).any():  # breaks: (counts == 0).any()
        sys.stdout.write("some nodes have no neighbours\n")  # breaks: sys.stdout.write
    return counts.clamp(min=1)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seen = {}

    def forward(self, x, edges, counts):
        try:
            messages = self.linear(x)[edges[0]]
            self.seen[os.getpid()] = messages.shape  # breaks: os.getpid()
            gathered = torch.zeros_like(x).index_add(0, edges[1], messages)
        finally:
            total = 0
        isolated = torch.nonzero(counts == 1)  # breaks: torch.nonzero(counts == 1)
        x = x.index_fill(0, isolated.flatten(), 0.0)
        return x + gathered / counts[:, None] + total


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(6) for _ in range(2))

    def pool(self, x, graph_of):
        count = graph_of.max().item() + 1  # breaks: graph_of.max().item()
        pooled = [x[graph_of == n].mean(0) for n in range(count)]  # breaks: x[graph_of == n]
        return torch.stack(pooled)

    def forward(self, x, edges, graph_of):
        counts = degrees(edges, x.shape[0])
        for layer in self.layers:
            x = layer(x, edges, counts)
        pooled = self.pool(x, graph_of)
        torch._dynamo.graph_break()  # breaks: torch._dynamo.graph_break()
        return torch.relu(pooled)


def program():
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 0, 4, 3]])
    return Network(), [(torch.randn(6, 6), edges, torch.tensor([0, 0, 0, 1, 1, 1]))]


CAUSES = ()
