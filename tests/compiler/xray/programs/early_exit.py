"""A transformer that stops early: confidence by layer, a cache, a lock, seeds that are saved and restored."""

import pickle
import threading
import uuid

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.Linear(width, width)
        self.exit = nn.Linear(width, 3)

    def forward(self, x):
        return torch.tanh(self.attention(x)) + x


class Model(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(4))
        self.lock = threading.Lock()
        self.requests = {}
        self.exits = [0] * 4

    def request(self, x):
        name = uuid.uuid4().hex  # breaks: uuid.uuid4()
        self.requests[name] = x.shape
        return name

    def confident(self, logits, number):
        confidence = logits.softmax(-1).max(-1).values.min()
        if confidence > 0.9 - 0.2 * number:  # breaks: confidence > 0.9 - 0.2 * number
            self.exits[number] += 1
            return True
        return False

    def forward(self, x):
        state = torch.get_rng_state()  # breaks: torch.get_rng_state()
        self.request(x)
        noise = torch.rand_like(x)
        torch.set_rng_state(state)  # breaks: torch.set_rng_state(state)
        x = x + 0.01 * noise
        logits = x[..., :3]
        for number, layer in enumerate(self.layers):
            x = layer(x)
            logits = layer.exit(x)
            if self.confident(logits, number):
                break
        with self.lock:  # breaks: self.lock
            stored = pickle.dumps(self.exits)  # breaks: pickle.dumps
        if torch.equal(logits, logits * 2):  # breaks: torch.equal
            return logits
        return logits + len(stored) * 0


def program():
    torch.manual_seed(0)
    return Model(), [(torch.randn(4, 8),), (torch.randn(2, 8),)]


CAUSES = (
    ("requires_grad", "x = layer(x)", "x = layer(x)"),
    ("number", "for number, layer in", "for number, layer in"),
    ("shape", "def forward(self, x)", "x"),
    ("module attribute", "self.exits[number] += 1", "self.exits[number] += 1"),
    ("length", "self.requests[name] =", "self.requests[name] ="),
)
