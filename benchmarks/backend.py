"""Our own backend against Inductor and eager mode, on the CPU: cold compilation, and the time of a call.

    python -m benchmarks.backend            each measurement in a fresh process with empty caches; JSON
    python -m benchmarks.backend NAME KIND  one of them, in this process

A cold time covers the first forward and backward; torch is imported before. The bar is a sixth of Inductor's time for
the tutorials' MLP (issue 6, "Speed").
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.fresh import measured

BACKENDS = ("eager", "inductor", "tcompile")
ROUNDS = 30


def mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Three linear layers with ReLU between them: batch 64, width 256."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, (torch.randn(64, 256),)


def norm_gelu() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """LayerNorm and GELU of 4,096 rows of 768."""
    import torch
    from torch import nn

    return nn.Sequential(nn.LayerNorm(768), nn.GELU()), (torch.randn(4096, 768, requires_grad=True),)


def softmax() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A scaled softmax of 4,096 rows of 1,024."""
    import torch

    return lambda x: torch.softmax(x * 0.125, -1), (torch.randn(4096, 1024, requires_grad=True),)


PROGRAMS = {"mlp": mlp, "norm_gelu": norm_gelu, "softmax": softmax}


def measure(name: str, backend: str) -> dict[str, float]:
    """Seconds of the first forward and backward, and the median of later ones."""
    import torch

    torch.manual_seed(0)
    fn, arguments = PROGRAMS[name]()
    start = time.perf_counter()
    call = fn if backend == "eager" else torch.compile(fn, backend=backend)
    call(*arguments).sum().backward()
    cold = time.perf_counter() - start
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call(*arguments).sum().backward()
        rounds.append(time.perf_counter() - start)
    return {"cold": cold, "call": statistics.median(rounds)}


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(measure(*sys.argv[1:])))
        return
    rows = {name: {backend: measured("benchmarks.backend", name, backend) for backend in BACKENDS} for name in PROGRAMS}
    for name, row in rows.items():
        row["cold, of Inductor's"] = {"ratio": row["tcompile"]["cold"] / row["inductor"]["cold"]}
        row["call, of Inductor's"] = {"ratio": row["tcompile"]["call"] / row["inductor"]["call"]}
        print(f"{name}: {json.dumps(row)}", file=sys.stderr)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
