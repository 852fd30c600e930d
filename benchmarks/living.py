"""How fast a living graph follows a dragged number: a tape of about 200 operations run again, as data for the canvas.

python -m benchmarks.living
"""

from __future__ import annotations

import json
import time
from statistics import median

import torch
from torch import nn

import explorer

ROUNDS = 20


def main() -> None:
    net = nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(8, 8), nn.Tanh())])
    x = torch.randn(8, 8)
    chain = explorer.chain_rule(lambda: net(x).sum())
    evaluate = chain.compiler.evaluate
    assert evaluate is not None, "the graph can't be evaluated again"
    times, size = [], 0
    for number in range(ROUNDS):
        start = time.perf_counter()
        data = evaluate({"sources": {"0": {"cells": {"0": float(number)}}}})
        size = len(json.dumps(data))
        times.append(1e3 * (time.perf_counter() - start))
    nodes = len(data["values"])
    print(f"{nodes} nodes: median {median(times):.0f} ms, worst {max(times):.0f} ms, {size / 1024:.0f} KiB an answer")


if __name__ == "__main__":
    main()
