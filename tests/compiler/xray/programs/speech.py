"""A recogniser of speech: an LSTM over padded sequences, lengths as Python numbers, greedy CTC decoding."""

import logging

import torch
from torch import nn

logger = logging.getLogger("speech")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        hidden, _ = self.lstm(x)  # breaks: self.lstm
        return self.out(hidden).log_softmax(-1)


def trim(x, lengths):
    longest = int(lengths.max())  # breaks: int(lengths.max())
    return x[:, :longest]


def decode(scores, lengths):
    texts = []
    best = scores.argmax(-1)
    for row, length in zip(best, lengths.tolist()):  # breaks: lengths.tolist()
        kept = torch.unique_consecutive(row[:length])  # breaks: torch.unique_consecutive
        texts.append("".join(chr(97 + token) for token in kept.tolist() if token))  # breaks: kept.tolist()
    return texts


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x, lengths):
        if x.isnan().any():  # breaks: x.isnan().any()
            x = torch.nan_to_num(x)
        x = trim(x, lengths) * self.scale
        scores = self.encoder(x)
        texts = decode(scores, lengths)
        logger.debug("decoded %d", len(texts))  # breaks: logger.debug
        energy = x.pow(2).mean().sqrt()
        if energy.item() < 1e-8:  # breaks: energy.item()
            return scores * 0, texts
        return scores / energy, texts


def program():
    torch.manual_seed(0)
    first = torch.randn(2, 7, 6), torch.tensor([7, 5])
    second = torch.randn(3, 9, 6), torch.tensor([9, 6, 3])
    return Recogniser(), [first, second]


CAUSES = (
    ("shape", "def forward(self, x, lengths)", "x"),
    ("shape", "def forward(self, x, lengths)", "lengths"),
    ("number", "longest = ", "int(lengths.max())"),
    ("number", "if energy.item()", "energy.item()"),
)
