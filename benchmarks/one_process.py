"""Measure in one fresh process: `python -m benchmarks.one_process explore gpt2`; prints a JSON object.

`explore` records one training step, `compile` runs it under plain torch.compile. Both start from the same state: torch
is imported and the model is built, but torch.compile's modules are not imported. The time ends with the backward.
`binaries` explores for a GPU that need not be here, then compiles its Triton kernels: `seconds` covers the second part.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.models import MODELS, Step


@dataclass(frozen=True)
class Start:
    """The start of a measurement: on the clock, and in CPU seconds."""

    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Start:
        return cls(time.perf_counter(), cpu_seconds())

    def seconds(self) -> float:
        return time.perf_counter() - self.clock

    def spent(self) -> dict[str, float]:
        return {"seconds": self.seconds(), "cpu_seconds": cpu_seconds() - self.cpu, "peak_mib": peak_mib()}


def cpu_seconds() -> float:
    """CPU seconds of this process and of its child processes, g++ included."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(sum(used[:4]) for used in times)


def peak_mib() -> float:
    """Peak resident memory of this process in MiB. (`ru_maxrss` counts what the parent had before exec, too.)"""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def explore(step: Step, asked: argparse.Namespace) -> dict[str, Any]:
    """Explore the step; `events` has the time of each artifact. The record is written to `asked.keep`."""
    result, record = explored(step, asked.target)
    if asked.keep:
        asked.keep.write_text(record.to_json(), encoding="utf-8")
    return result


def explored(step: Step, target: str) -> tuple[dict[str, Any], Any]:
    start = Start.now()
    from compiler.engine import Event, Exploration
    from compiler.record.options import Options

    heard: list[dict[str, Any]] = []

    def hear(event: Event) -> None:
        if event.artifact is not None:
            size = len(event.artifact.entities)
            heard.append({"artifact": event.artifact.id, "entities": size, "at": start.seconds()})

    target = target or next(step.model.parameters()).device.type
    with Exploration(Options(target=target), listener=hear) as exploration:
        step.run(exploration.compile(step.model))
        wait_for_gpu(step)
    record = exploration.record
    problems = [item.reason for item in record.problems if item.stage != "timing"]  # a busy machine's call takes long
    return {**start.spent(), "events": heard, "problems": problems}, record


def binaries(step: Step, asked: argparse.Namespace) -> dict[str, Any]:
    """Compile the kernels of an exploration; also counts the kernels and the different ones."""
    first, record = explored(step, asked.target)
    start = Start.now()
    from compiler.binary import compile_record

    done = compile_record(record)
    result = {**start.spent(), "explored_seconds": first["seconds"]}
    return result | {
        "kernels": sum(kernel.language == "triton" for kernel in done.kernels),
        "binaries": len(done.binaries),
        "problems": [item.reason for item in done.problems],
    }


def compile_step(step: Step, _asked: argparse.Namespace) -> dict[str, Any]:
    """The first call under plain torch.compile."""
    import torch

    start = Start.now()
    step.run(torch.compile(step.model))
    wait_for_gpu(step)
    return start.spent()


def wait_for_gpu(step: Step) -> None:
    import torch

    if next(step.model.parameters()).is_cuda:
        torch.cuda.synchronize()


MEASURES: dict[str, Callable[[Step, argparse.Namespace], dict[str, Any]]] = {
    "explore": explore,
    "compile": compile_step,
    "binaries": binaries,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--target", default="", help="what to write code for; else the device")
    parser.add_argument("--keep", type=Path, help="where to write the record")
    asked = parser.parse_args()
    with redirect_stdout(sys.stderr):
        import torch

        torch.manual_seed(0)
        step = MODELS[asked.model]().to(asked.device)
        before = peak_mib()
        result = MEASURES[asked.what](step, asked)
    print(json.dumps({**result, "peak_mib_before": before}))


if __name__ == "__main__":
    main()
