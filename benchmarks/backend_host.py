"""How much host time does a call of a small compiled graph take?

    python -m benchmarks.backend_host [--device cpu|cuda] [--rounds N] [--seconds S] [--mode MODE] [--out FILE] [NAME …]

Microseconds per call of eager mode, of a TorchDynamo backend that does nothing (the cost of guards and prologue, which
every compiler pays), of Inductor and of our backend. Each runs for a fixed time in each round, in a different order
each time. The ratio is the median of the per-round ratios, so a slow phase of the machine slows both sides. On a GPU
the queue is drained between turns and not within, and a turn is too short to fill it. On a CPU the thread's own time
counts, because others may use the cores too; with a GPU there is also autograd's thread, so wall time counts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

ROUNDS, SECONDS = 31, 0.02
MOST_CALLS = 400
"""The most calls in a turn: GPUs queue about a thousand launches before the host has to wait."""
Call = Callable[[], Any]


def one(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() * y + 1


def five(x: Tensor, y: Tensor) -> Tensor:
    a = (x + y).softmax(-1)
    b = (a * 2).sum(0)
    c = (a + b).softmax(0)
    d = c.sum(1)
    return (c + d).sin()


def mlp(device: str) -> nn.Sequential:
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*layers).to(device)


def own_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function with its own code object, because TorchDynamo keeps its cache entries on the code object."""
    assert isinstance(fn, FunctionType)
    return FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


def nothing(result: Any) -> Callable[..., Any]:
    """A backend that returns this function without compiling anything."""
    return lambda *_: lambda *_: (result,)


def compilers(result: Any, mode: str | None) -> dict[str, Callable[..., Any]]:
    return {
        "eager": lambda fn: fn,
        "nothing": lambda fn: torch.compile(fn, backend=nothing(result)),
        "inductor": lambda fn: torch.compile(fn, mode=mode),
        "tcompile": lambda fn: torch.compile(fn, backend="tcompile", mode=mode),
    }


def inference(fn: Callable[..., Any], args: Sequence[Tensor], mode: str | None) -> dict[str, Call]:
    torch.set_grad_enabled(False)
    result = fn(*args)
    calls = {name: partial(compiled(own_code(fn)), *args) for name, compiled in compilers(result, mode).items()}
    for name, call in calls.items():
        torch.testing.assert_close(call(), result, rtol=1e-3, atol=1e-4, msg=lambda told, name=name: f"{name}: {told}")
    return calls


def training(
    fn: Callable[..., Tensor], args: Sequence[Tensor], leaves: Sequence[Tensor], mode: str | None
) -> dict[str, Call]:
    """Training steps without an optimizer. The result is summed outside the compiled graph."""

    def step(compiled: Callable[..., Tensor]) -> Call:
        def call() -> None:
            for leaf in leaves:
                leaf.grad = None
            compiled(*args).sum().backward()

        return call

    torch.set_grad_enabled(True)
    found = compilers(None, mode)
    del found["nothing"]  # a backend that does nothing has no backward
    steps = {name: step(compiled(own_code(fn))) for name, compiled in found.items()}
    steps["eager"]()
    expected = [leaf.grad for leaf in leaves]
    for name, call in steps.items():
        call()
        gradients = [leaf.grad for leaf in leaves]
        torch.testing.assert_close(
            gradients, expected, rtol=1e-3, atol=1e-3, msg=lambda told, name=name: f"{name}: {told}"
        )
    return steps


def cases(device: str, mode: str | None) -> dict[str, Callable[[], dict[str, Call]]]:
    x, y = (torch.randn(64, 64, device=device) for _ in range(2))
    leaf = x.clone().requires_grad_()
    model = mlp(device)

    def of_model(x: Tensor) -> Tensor:
        found: Tensor = model(x)
        return found

    return {
        "one": lambda: inference(one, (x, y), mode),
        "five": lambda: inference(five, (x, y), mode),
        "mlp": lambda: inference(of_model, (x,), mode),
        "one training": lambda: training(one, (leaf, y), (leaf,), mode),
        "mlp training": lambda: training(of_model, (x,), [*model.parameters()], mode),
    }


def microseconds(calls: dict[str, Call], device: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Time per call in each round."""
    on_gpu = device == "cuda"
    clock = time.perf_counter if on_gpu else time.thread_time
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    counts = {}
    for name, call in calls.items():
        for _ in range(30):
            call()
        wait()
        start = clock()
        for _ in range(30):
            call()
        counts[name] = min(MOST_CALLS, max(10, int(seconds * 30 / (clock() - start))))
    found: dict[str, list[float]] = {name: [] for name in calls}
    order = [*calls]
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            call = calls[name]
            wait()
            start = clock()
            for _ in range(counts[name]):
                call()
            found[name].append((clock() - start) / counts[name] * 1e6)
    return found


def row(name: str, times: dict[str, list[float]]) -> dict[str, Any]:
    ratios = sorted(own / theirs for own, theirs in zip(times["tcompile"], times["inductor"], strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "case": name,
        "microseconds": {who: round(statistics.median(found), 2) for who, found in times.items()},
        "tcompile/inductor": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="one, five, mlp, one training, mlp training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of one turn")
    parser.add_argument("--mode", help="of torch.compile, for Inductor and for ours")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for name, calls in cases(given.device, given.mode).items():
        if name in (given.names or [name]):
            rows.append(row(name, microseconds(calls(), given.device, given.rounds, given.seconds)))
            print(json.dumps(rows[-1]), flush=True)
    if given.out:
        where = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
        facts = {"device": where, "torch": torch.__version__, "mode": given.mode or "default", "rows": rows}
        given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
