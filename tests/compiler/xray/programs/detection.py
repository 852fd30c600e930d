"""A detection head: boxes above a threshold, class by class, with non-maximum suppression in Python."""

import logging

import torch
from torch import nn

log = logging.getLogger(__name__)


def iou(box, others):
    low = torch.maximum(box[:2], others[:, :2])
    high = torch.minimum(box[2:], others[:, 2:])
    overlap = (high - low).clamp(min=0).prod(-1)
    area = (box[2:] - box[:2]).prod()
    return overlap / (area + (others[:, 2:] - others[:, :2]).prod(-1) - overlap + 1e-6)


def suppress(boxes, scores, limit):
    order = scores.argsort(descending=True).tolist()  # breaks: scores.argsort(descending=True).tolist()
    kept = []
    while order:
        best = order.pop(0)
        kept.append(best)
        if not order:
            break
        near = iou(boxes[best], boxes[order]) > limit
        order = [index for index, is_near in zip(order, near.tolist()) if not is_near]  # breaks: near.tolist()
    return kept


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(8, 16)
        self.classes = nn.Linear(16, 3)
        self.boxes = nn.Linear(16, 4)
        self.threshold = 0.3

    def forward(self, x, names):
        hidden = torch.relu(self.features(x))
        scores = self.classes(hidden).softmax(-1)
        corners = self.boxes(hidden).sigmoid()
        boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:]], -1)
        found = {}
        for n, name in enumerate(names):
            mask = scores[:, n] > self.threshold
            if not mask.any():  # breaks: mask.any()
                log.warning("no %s", name)  # breaks: log.warning
                continue
            chosen = boxes[mask]  # breaks: boxes[mask]
            own = torch.masked_select(scores[:, n], mask)  # breaks: torch.masked_select
            kept = suppress(chosen, own, 0.5)
            found[name] = (chosen[kept] * 2, own[kept])
        best = scores.max()
        log.info("best %.2f", best.item())  # breaks: best.item() | log.info
        return found, best


def program():
    torch.manual_seed(0)
    head = Head()
    head.classes.bias.data[2] -= 9.0
    names = ["cat", "dog", "bird"]
    return head, [(torch.randn(12, 8), names), (torch.randn(7, 8), names)]


CAUSES = (
    ("shape", "order = [index for index", "order = [index"),
    ("shape", "own = torch.masked_select", "own = torch.masked_select"),
    ("shape", "def forward(self, x, names)", "x"),
)
