"""Beam search over a small decoder: scores as Python numbers, finished beams, a cache that grows."""

import heapq
import json
import math

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, vocabulary=12, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, token, state):
        state = self.cell(self.embedding(token), state)
        return self.head(state).log_softmax(-1), state


def expand(decoder, beam, width):
    score, tokens, state = beam
    last = torch.tensor([tokens[-1]])
    logits, state = decoder(last, state)
    values, indices = logits[0].topk(width)
    pairs = zip(values.tolist(), indices.tolist())  # breaks: values.tolist() | indices.tolist()
    return [(score + value, [*tokens, index], state) for value, index in pairs]


def search(decoder, width, steps):
    beams = [(0.0, [1], torch.zeros(1, 16))]
    finished = []
    for step in range(steps):
        candidates = []
        for beam in beams:
            candidates += expand(decoder, beam, width)
        beams = heapq.nlargest(width, candidates, key=lambda beam: beam[0])  # breaks before torch 2.15: heapq.nlargest
        for beam in list(beams):
            if beam[1][-1] == 0:
                finished.append(beam)
                beams.remove(beam)
        spread = torch.stack([beam[2] for beam in beams]).std()
        if spread < 1e-6:  # breaks: spread < 1e-6
            break
        print(json.dumps({"step": step, "best": round(beams[0][0], 3)}))  # breaks: json.dumps | print
    score, tokens, state = (finished or beams)[0]
    probability = math.exp(state.sum().item() / 100)  # breaks: state.sum().item()
    return torch.tensor(tokens) * 1, state * probability


def program():
    torch.manual_seed(0)
    return search, [(Decoder(), 2, 2)]


CAUSES = (
    ("requires_grad", "beams = heapq.nlargest(", "beams = heapq.nlargest("),
    ("length", "return [(score + value", "[*tokens, index]"),
    ("number", "pairs = zip(", "values.tolist()"),
    ("number", "pairs = zip(", "indices.tolist()"),
)
