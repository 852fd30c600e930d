"""Metric learning: embeddings go through NumPy, hard negatives are sorted in Python, a cache is kept by identity."""

import hashlib
import time

import numpy as np
import torch
from torch import nn


class Index:
    def __init__(self):
        self.cache = {}
        self.queries = 0

    def key(self, vectors):
        return hashlib.md5(str(tuple(vectors.shape)).encode()).hexdigest()  # breaks: hashlib.md5 | hashlib.md5

    def neighbours(self, vectors, count):
        self.queries += 1
        array = vectors.detach().numpy()
        distances = np.linalg.norm(array[:, None] - array[None], axis=-1)
        order = np.argpartition(distances, count, axis=1)  # breaks: np.argpartition
        return torch.from_numpy(order[:, 1:count])


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.index = Index()
        self.margin = 0.2

    def forward(self, x, labels):
        vectors = nn.functional.normalize(self.embed(x), dim=-1)
        name = self.index.key(vectors)
        started = time.perf_counter()  # breaks: time.perf_counter()
        near = self.index.neighbours(vectors, 3)
        same = labels[:, None] == labels[near]
        loss = vectors.sum() * 0
        for row in range(len(near)):
            positives = same[row].nonzero()  # breaks: same[row].nonzero()
            if len(positives) == 0:
                continue
            gap = (vectors[row] - vectors[near[row, 0]]).norm() - self.margin  # breaks: vectors[near[row, 0]]
            if gap > 0:  # breaks: gap > 0
                loss = loss + gap
        self.index.cache[name] = time.perf_counter() - started  # breaks: time.perf_counter()
        print(f"{self.index.queries} queries, loss {loss.item():.3f}")  # breaks: loss.item() | print
        return loss


def program():
    torch.manual_seed(0)
    learner = Learner()
    return learner, [(torch.randn(6, 8), torch.tensor([0, 1, 0, 1, 0, 1]))]


CAUSES = ()
