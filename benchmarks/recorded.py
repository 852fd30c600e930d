"""The cost of recording a compile: `python -m benchmarks.recorded resnet18 capture`; prints a JSON object.

One process compiles the same function again and again, with all caches reset before each time: plainly, recorded, and
recorded with the stepper, in interleaved rounds with a rotating order. `capture` compiles with a backend that runs the
captured graph as it is. `compile` compiles with Inductor for the CPU and reuses g++'s objects from a discarded first
round (so a real compile takes at least as long, and recording's share of it is at most as big). `cpu_seconds` are
those of this process: other work on the machine adds little to them.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch

from benchmarks.models import MODELS
from compiler.engine import Exploration
from compiler.option_checks import parse_options

THROWN_AWAY = 1
COUNTED = ("cpu_seconds", "seconds")
Call = Callable[..., Any]


def breaking(times: int) -> tuple[Call, dict[str, Any]]:
    """A function with `count` graph breaks, and a few operations before and after each."""
    part = ["x = torch.relu(x @ w) + x.mean()", "x = x * torch.sigmoid(x)"]
    lines = [line for number in range(times) for line in (*part, f"print({number})")]
    text = "\n    ".join(["def function(x, w):", *lines, *part, "return x"])
    names: dict[str, Any] = {"torch": torch}
    exec(compile(text, f"<{times} breaks>", "exec"), names)
    return names["function"], {"x": torch.randn(8, 64), "w": torch.randn(64, 64)}


def resnet18() -> tuple[Call, dict[str, Any]]:
    return MODELS["resnet18"]().model.eval(), {"x": torch.randn(1, 3, 32, 32)}


CASES: dict[str, Callable[[], tuple[Call, dict[str, Any]]]] = {
    "5 breaks": lambda: breaking(5),
    "30 breaks": lambda: breaking(30),
    "resnet18": resnet18,
}


def captured_only(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Call:
    """A backend that does nothing: the captured graph runs as it is."""
    return module.forward


def plain(call: Call, arguments: dict[str, Any], backend: Any) -> None:
    torch.compile(call, backend=backend)(**arguments)


def recorded(call: Call, arguments: dict[str, Any], backend: Any, *, step: bool = False) -> None:
    """Record the user's own torch.compile, built and run with the user's settings."""
    stages = () if backend == "inductor" else ("bytecode", "captured")
    asked = parse_options(backend=backend, stages=stages, step=step, time=backend == "inductor", target="cpu")
    with Exploration(asked) as exploration:
        plain(call, arguments, backend)
    assert exploration.record["captured"].entities


def stepped(call: Call, arguments: dict[str, Any], backend: Any) -> None:
    recorded(call, arguments, backend, step=True)


WAYS: dict[str, Call] = {"plain": plain, "recorded": recorded, "stepped": stepped}


def spent(way: Call, *given: Any) -> tuple[float, float]:
    """CPU seconds and seconds of one cold compile."""
    torch._dynamo.reset()
    gc.collect()
    cpu, clock = time.process_time(), time.perf_counter()
    with redirect_stdout(StringIO()):
        way(*given)
    return time.process_time() - cpu, time.perf_counter() - clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("what", choices=("capture", "compile"))
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    torch._inductor.config.compile_threads = 1
    call, arguments = CASES[asked.case]()
    backend = captured_only if asked.what == "capture" else "inductor"
    names = list(WAYS) if asked.what == "capture" else ["plain", "recorded"]
    found: dict[str, dict[str, list[float]]] = {name: {unit: [] for unit in COUNTED} for name in names}
    for number in range(THROWN_AWAY + asked.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            measured = spent(WAYS[name], call, arguments, backend)
            if number >= THROWN_AWAY:
                for unit, value in zip(COUNTED, measured, strict=True):
                    found[name][unit].append(value)
    print(json.dumps(found), file=sys.stdout)


if __name__ == "__main__":
    main()
