"""How long is the first call in a fresh process? The suite's models, with Inductor and with our backend.

    python -m benchmarks.suite_cold [--models A,B] [--gpus N] [--at-once N] [--seconds S] [--add] [--out FILE]
    python -m benchmarks.suite_cold MODEL CASE BACKEND      one of them, in this process

The backend that runs AOTAutograd's graphs as they are (`aot_eager_decomp_partition`) is timed too: TorchDynamo and
AOTAutograd are a floor below every compiler's first call.

A user waits this long after starting Python: torch is imported, the model is on the device and has run in eager mode,
so the GPU's libraries are loaded; nothing has been compiled, and every cache is empty. The first call, and in training
its backward, are timed until the device is done. `benchmarks.suite` times first calls too, in a process where both
compilers have compiled something before. Both compilers of a case run one after the other on the same cores, in
the opposite order in every other case.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import RESULTS
from benchmarks.fresh import ProcessError, keep_to, measured
from benchmarks.suite import CASES, Suite
from benchmarks.suite_models import WORKLOADS, WithLoss
from benchmarks.suite_table import table

BACKENDS = ("inductor", "tcompile")
FLOOR = "aot_eager_decomp_partition"
SHARE = "TCOMPILE_COLD_SHARE"


def first_call(model: str, case: str, backend: str) -> float:
    """Seconds of the first call of a case, in this process."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    kind, precision = case.split()
    step = WORKLOADS[model].build().to(device)
    module = WithLoss(step.model, step.loss).train(kind == "training")

    def call(fn: Any) -> None:
        with torch.set_grad_enabled(kind == "training"):
            with torch.autocast(device, torch.bfloat16, enabled=precision == "AMP"):
                loss = fn(**step.arguments)
            if kind == "training":
                loss.backward()
        wait()

    call(module)
    module.zero_grad()
    began = time.perf_counter()
    call(torch.compile(module, backend=backend))
    return time.perf_counter() - began


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[3] in (*BACKENDS, FLOOR):
        print(json.dumps({"seconds": first_call(*sys.argv[1:])}))
        return
    chosen = _parser(list(WORKLOADS)).parse_args()
    suite = Suite.of(chosen.out, chosen.add)
    wanted = [(model, case) for model in chosen.models for case in CASES if not suite.has(model, case)]
    until, slots = time.monotonic() + chosen.seconds, _slots(chosen.gpus, chosen.at_once)

    def keep(number: int) -> None:
        model, case = wanted[number]
        if time.monotonic() > until:
            return
        slot = slots.get()
        try:
            row = _timed(model, case, slot, number % 2 == 1)
        except ProcessError as error:
            print(f"{model}, {case}: {error}", flush=True)
            return
        finally:
            slots.put(slot)
        suite.add(row)
        print(f"{model}, {case}: {row['candidates']}", flush=True)

    with ThreadPoolExecutor(slots.qsize()) as workers:
        list(workers.map(keep, range(len(wanted))))
    print(summary(suite.found["cases"]))


def _timed(model: str, case: str, slot: tuple[str, str], turned: bool) -> dict[str, Any]:
    """The seconds of both compilers, and of the floor, on a slot's cores and GPU."""
    gpu, share = slot
    candidates = []
    for backend in (*(reversed(BACKENDS) if turned else BACKENDS), FLOOR):
        with tempfile.TemporaryDirectory() as folder:
            own = {"CUDA_VISIBLE_DEVICES": gpu, "TCOMPILE_CACHE_DIR": folder, SHARE: share}
            done = measured("benchmarks.suite_cold", model, case, backend, environment=own)
        candidates.append({"name": backend, "compile_seconds": done["seconds"]})
    return {"model": model, "case": case, "candidates": candidates}


def _slots(gpus: int, at_once: int) -> queue.SimpleQueue[tuple[str, str]]:
    """The slots for parallel cases, each with a GPU and a share of the cores."""
    of = gpus * at_once
    slots: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for number in range(of):
        slots.put((str(number // at_once), f"{number}/{of}"))
    return slots


def summary(cases: Sequence[Mapping[str, Any]]) -> str:
    """Tables of Inductor's seconds ÷ ours, of both, and of the floor's share of ours, with a row per model."""

    def seconds(case: Mapping[str, Any], name: str) -> float:
        return next(one["compile_seconds"] for one in case["candidates"] if one["name"] == name)

    def ratio(case: Mapping[str, Any], over: str, under: str) -> float:
        return seconds(case, over) / seconds(case, under)

    tables = [
        table(
            "First call in a fresh process, inductor ÷ tcompile",
            cases,
            partial(ratio, over=BACKENDS[0], under=BACKENDS[1]),
        ),
        table("TorchDynamo and AOTAutograd alone ÷ tcompile", cases, partial(ratio, over=FLOOR, under=BACKENDS[1])),
    ]
    tables += [table(f"Seconds, {name}", cases, partial(seconds, name=name)) for name in (*BACKENDS, FLOOR)]
    return "\n\n".join(tables)


def _parser(models: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite_cold", description=__doc__)
    parser.add_argument("--models", type=lambda text: text.split(","), default=models, help=", ".join(models))
    parser.add_argument("--gpus", type=int, default=1, help="so many GPUs take cases side by side")
    parser.add_argument("--at-once", type=int, default=1, help="so many cases of a GPU side by side, each on own cores")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no case is begun after so long")
    parser.add_argument("--add", action="store_true", help="keep the cases that are in the file already")
    parser.add_argument("--out", type=Path, default=RESULTS / "suite_cold.json")
    return parser


if __name__ == "__main__":
    keep_to(os.environ.get(SHARE, "0/1"))
    main()
