"""Share of the measured time that is matched to kernels and to lines of Python, on real models in training.

    python -m benchmarks.matched_time [--json FOLDER] [mlp resnet gpt2]

It runs on the GPU if there is one, else on the CPU with code for it. With `--json` the records are kept in a folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compiler.engine import Exploration
from compiler.record import Record
from compiler.record.options import Options
from compiler.timing.profile import kernel_and_line_times
from tests.compiler.models import MLP, ResNet, gpt2

Call = tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]
UNMATCHED_SHOWN = 5


def mlp(device: str) -> Call:
    return MLP().to(device), (torch.randn(4096, 64, device=device),), {}


def resnet(device: str) -> Call:
    images = (64, 224) if device == "cuda" else (2, 64)
    return ResNet(2).to(device), (torch.randn(images[0], 3, images[1], images[1], device=device),), {}


def gpt(device: str) -> Call:
    model, inputs = gpt2()
    moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    return model.to(device), (), moved


MODELS: dict[str, Callable[[str], Call]] = {"mlp": mlp, "resnet": resnet, "gpt2": gpt}


def profiled(call: Call, device: str) -> Record:
    model, args, kwargs = call
    with Exploration(Options(target="" if device == "cuda" else "cpu"), build=True) as exploration:
        exploration.compile(model)(*args, **kwargs)
        assert exploration.call is not None
        record = exploration.record
        found = kernel_and_line_times(exploration.call, record, exploration.files())
    problems = (*record.problems, *found.problems)
    return record.with_fields(kernel_times=found.kernel_times, line_times=found.line_times, problems=problems)


def matched(record: Record) -> Iterator[str]:
    """A line for each side: its time, the shares matched to lines and kernels, and the unmatched share."""
    for side in ("eager", "compiled"):
        times = [time for time in record.kernel_times if time.side == side]
        whole = sum(time.seconds for time in times)
        on_lines = sum(time.seconds for time in record.line_times if time.side == side and time.line)
        on_kernels = sum(time.seconds for time in times if time.kernel)
        kernels = f", {100 * on_kernels / whole:.1f} % in kernels" if side == "compiled" else ""
        yield f"  {side:<8} {1e3 * whole:8.3f} ms, {100 * on_lines / whole:.1f} % on lines{kernels}"
        left = sorted((time for time in times if not time.lines), key=lambda time: -time.seconds)
        yield from (f"    {1e6 * time.seconds:.1f} µs {time.half}: {time.name}" for time in left[:UNMATCHED_SHOWN])
    yield from (f"  {problem.stage}: {problem.reason}" for problem in record.problems)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], default=list(MODELS))
    parser.add_argument("--json", type=Path, help="a folder for the records")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in asked.models:
        record = profiled(MODELS[name](device), device)
        print(f"{name}, training, {record.environment.gpu or 'CPU'}", *matched(record), sep="\n", flush=True)
        if asked.json is not None:
            (asked.json / f"{name}.json").write_text(record.to_json(), encoding="utf-8")
        torch.compiler.reset()


if __name__ == "__main__":
    main()
