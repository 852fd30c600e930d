"""A mixture of experts: tokens are sent to the two best experts, with counts, capacity and a load that is logged."""

import torch
from torch import nn


class Router(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.history = []

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        counts = torch.bincount(chosen.flatten(), minlength=4)  # breaks: torch.bincount
        self.history.append(counts.tolist())  # breaks: counts.tolist()
        if counts.max() > x.shape[0]:  # breaks: counts.max() > x.shape[0]
            weights = weights / 2
        return weights, chosen


class Mixture(nn.Module):
    def __init__(self, width=8, experts=4):
        super().__init__()
        self.router = Router(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x):
        weights, chosen = self.router(x)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == n)  # breaks: torch.where(chosen == n)
            if rows.numel() == 0:
                print("expert", n, "is idle")  # breaks: print
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slots][:, None])
        used = torch.unique(chosen)  # breaks: torch.unique
        return out, used.numel()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Mixture() for _ in range(2))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        load = 0
        for layer in self.layers:
            out, used = layer(self.norm(x))
            x = x + out
            load += used
        balance = load / 8
        if float(x.abs().max()) > 1e4:  # breaks: float(x.abs().max())
            raise OverflowError(balance)
        return x * balance


def program():
    torch.manual_seed(3)
    model = Model()
    for layer in model.layers:
        layer.router.gate.bias.data[3] -= 9.0
    return model, [(torch.randn(6, 8),), (torch.randn(9, 8),)]


CAUSES = (
    ("number", "self.history.append(", "counts.tolist()"),
    ("identity", "self.history.append(", "self.history.append("),
    ("length", "self.history.append(", "self.history.append("),
    ("shape", "def forward(self, x)", "x"),
)
