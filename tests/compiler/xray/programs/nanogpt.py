"""A training loop in the style of nanoGPT: warm-up of the learning rate, timing, printed losses, evaluation."""

import math
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class GPT(nn.Module):
    def __init__(self, vocabulary=32, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, targets):
        assert tokens.max() < 32, "a token is out of the vocabulary"
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x)
            print("block", number, x.std().item())  # breaks: x.std().item() | print
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def learning_rate(step):
    return 1e-3 * min(1.0, (step + 1) / 3) * 0.5 * (1.0 + math.cos(step / 10))


def estimate_loss(model, batches):
    losses = torch.zeros(len(batches))
    for n, (tokens, targets) in enumerate(batches):
        losses[n] = model(tokens, targets).item()  # breaks: model(tokens, targets).item()
    return losses.mean()


def train(model, weights, batches):
    start = time.time()  # breaks: time.time()
    best = float("inf")
    for step, (tokens, targets) in enumerate(batches):
        rate = learning_rate(step)
        loss = model(tokens, targets)
        grads = torch.autograd.grad(loss, weights)  # breaks: torch.autograd.grad
        norm = torch.stack([g.norm() for g in grads]).norm()
        if norm > 1.0:  # breaks: norm > 1.0
            rate = rate / 2
        with torch.no_grad():
            for weight, g in zip(weights, grads):
                weight -= rate * g
        elapsed = time.time() - start  # breaks: time.time()
        print(f"step {step}: loss {loss.item():.4f}, {elapsed * 1e3 > 0}")  # breaks: loss.item() | print
        best = min(best, float(loss))  # breaks: float(loss)
    return estimate_loss(model, batches) + best


def program():
    torch.manual_seed(0)
    model = GPT()
    weights = list(model.parameters())

    def batches(length):
        return [(torch.randint(0, 32, (2, length)), torch.randint(0, 32, (2, length))) for _ in range(2)]

    return train, [(model, weights, batches(8))]


CAUSES = (("module attribute", "self.calls += 1", "self.calls += 1"),)
