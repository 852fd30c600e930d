"""A step of a trainer in the style of Hugging Face: callbacks, logging, a running loss, gradient clipping."""

import logging
import time
import warnings

import torch
from torch import nn

logger = logging.getLogger("trainer")


class Callback:
    def __init__(self):
        self.events = []

    def on_event(self, name):
        self.events.append((name, time.perf_counter()))  # breaks: time.perf_counter()


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        self.callback = Callback()
        self.total_loss = 0.0
        self.steps = 0
        self.log_every = 1

    def compute_loss(self, inputs, labels):
        logits = self.model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        if torch.isnan(loss):  # breaks: torch.isnan(loss)
            raise ValueError("the loss is not a number")
        return loss, logits

    def log(self, loss, logits):
        right = (logits.argmax(-1) == 0).float().mean()
        accuracy = right.item()  # breaks: right.item()
        logger.info("loss %s accuracy %s", self.total_loss / self.steps, accuracy)  # breaks: logger.info
        if accuracy > 2:
            warnings.warn("more than all are right")

    def forward(self, batches):
        self.callback.on_event("begin")
        loss = None
        for inputs, labels in batches:
            loss, logits = self.compute_loss(inputs, labels)
            self.total_loss += loss.item()  # breaks: loss.item()
            self.steps += 1
            if self.steps % self.log_every == 0:
                self.log(loss, logits)
            scale = 1.0 if self.total_loss < 1e6 else 0.5
            warnings.warn(f"scale {scale}")  # breaks: warnings.warn
            loss = loss * scale
        self.callback.on_event("end")
        return loss


def program():
    torch.manual_seed(0)
    trainer = Trainer()

    def batches(size):
        return [(torch.randn(size, 16), torch.randint(0, 4, (size,))) for _ in range(2)]

    return trainer, [(batches(8),), (batches(6),)]


CAUSES = (
    ("module attribute", "self.steps += 1", "self.steps += 1"),
    ("module attribute", "self.total_loss +=", "self.total_loss +="),
    ("shape", "def forward(self, batches)", "batches"),
    ("length", "self.events.append(", "self.events.append("),
)
