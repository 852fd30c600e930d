"""A model with two graph breaks that is called with two sizes, so it recompiles."""

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.embed(x))
        h = h / h.max().item()
        if h.mean() > 0.1:
            h = h * 2
        return self.head(h)


torch.manual_seed(0)
model = Classifier()
CALLS = [(torch.randn(8, 16),), (torch.randn(9, 16),)]
