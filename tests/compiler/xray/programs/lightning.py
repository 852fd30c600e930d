"""A training step in the style of Lightning: logged metrics, mixup by chance, early stopping, a profiler of its own."""

import contextlib
import copy
import random
import time

import torch
from torch import nn


class Profiler:
    def __init__(self):
        self.seconds = {}

    @contextlib.contextmanager
    def section(self, name):
        start = time.monotonic()  # breaks: time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start  # breaks: time.monotonic()


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Dropout(0.0), nn.Linear(20, 3))
        self.profiler = Profiler()
        self.metrics = {}
        self.best = float("inf")
        self.saved = None

    def log(self, name, value):
        self.metrics.setdefault(name, []).append(float(value))  # breaks: float(value)

    def mixup(self, x, y):
        weight = random.betavariate(2.0, 2.0)  # breaks: random.betavariate
        order = torch.randperm(x.shape[0])
        return weight * x + (1 - weight) * x[order], y

    def training_step(self, x, y):
        x, y = self.mixup(x, y)
        with self.profiler.section("forward"):
            logits = self.body(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log("loss", loss)
        accuracy = (logits.argmax(-1) == y).float().mean()
        self.log("accuracy", accuracy)
        return loss, accuracy

    def forward(self, x, y):
        loss, accuracy = self.training_step(x, y)
        if loss < self.best:  # breaks: loss < self.best
            self.best = loss.item()  # breaks: loss.item()
            self.saved = copy.deepcopy(accuracy)  # breaks: copy.deepcopy(accuracy)
        return loss * 2


def program():
    torch.manual_seed(0)
    data = torch.randn(8, 10), torch.randint(0, 3, (8,))
    return Module(), [data]


CAUSES = (
    ("requires_grad", "accuracy = ", "accuracy = "),
    ("string", 'self.log("accuracy"', '"accuracy"'),
    ("length", "self.metrics.setdefault(", "self.metrics.setdefault("),
)
