"""One case of the suite in a separate process: `python -m benchmarks.suite_case MODEL CASE CANDIDATES SHARE LOOP`.

SHARE is "1/2" for the second of two GPUs: the process uses that half of the cores. With LOOP "loop" the engine's clock
is compared with a plain loop. If the variable TCOMPILE_SUITE_GPU names a file, processes that share a GPU use it as a
lock: while one times, no other uses the GPU; they compile side by side. Prints a JSON object: the case with its
candidates, and the machine.
"""

from __future__ import annotations

import copy
import fcntl
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.event_loop import looped
from benchmarks.fresh import keep_to
from benchmarks.suite_models import WORKLOADS, WithLoss
from compiler.calls.call import Call, Surroundings
from compiler.process.environment import environment
from compiler.record.options import Options
from compiler.timing.candidate_times import IN_TURNS, Plan, Progress, measure
from compiler.timing.rounds import clock_for

ROUNDS = 9
TURNS, TURN_CALLS = 7, 20


def main(arguments: Sequence[str]) -> None:
    model, case, candidates, share, loop = arguments
    keep_to(share)
    with tempfile.NamedTemporaryFile() as own, Shared(Path(os.environ.get("TCOMPILE_SUITE_GPU", own.name))) as gpu:
        call, training = prepared(model, case)
        plan = Plan(candidates, backward=training, optimizer="AdamW" if training else None, rounds=ROUNDS)
        found = measure(call, Options(), plan, gpu.when_timed)
        independent = list(_agreement(call, training)) if loop else []
    done = {
        "model": model,
        "about": WORKLOADS[model].about,
        "case": case,
        "candidates": [asdict(candidate) for candidate in found.candidates],
        "measurement": asdict(found.measurement),
        "independent": independent,
    }
    print(json.dumps({"case": done, "machine": _machine()}))


class Shared:
    """A GPU that several processes compile for, and one at a time measures on: a lock on a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Shared:
        self.file = self.path.open("a")
        fcntl.flock(self.file, fcntl.LOCK_SH)
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def when_timed(self, progress: Progress) -> None:
        """Hold the lock from the first round on, and for the measurements after the rounds."""
        if progress.candidate == IN_TURNS and not progress.done:
            fcntl.flock(self.file, fcntl.LOCK_UN)
            fcntl.flock(self.file, fcntl.LOCK_EX)


def prepared(model: str, case: str) -> tuple[Call, bool]:
    """The call of a case, on the GPU if there is one, and whether it is training."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, precision = case.split()
    step = WORKLOADS[model].build().to(device)
    training = kind == "training"
    module = WithLoss(step.model, step.loss).train(training)
    autocast = ((device, torch.bfloat16),) if precision == "AMP" else ()
    surroundings = Surroundings(grad=training, inference=False, autocast=autocast)
    return Call(module, module, (), step.arguments, surroundings), training


def _agreement(call: Call, training: bool) -> Iterator[dict[str, Any]]:
    """Ratio of the medians of the engine's clock and a plain loop of CUDA events, on the same eager step.

    The two alternate, because the speed of a shared host varies by more than the difference measured here.
    """
    if not torch.cuda.is_available():
        return
    with torch.set_grad_enabled(training):
        step = _step(copy.deepcopy(call.fn), call, training)
        clock = clock_for(torch.device("cuda"), flush=True)
        pairs = [(clock.seconds(step, TURN_CALLS), looped(step, TURN_CALLS).alone) for _ in range(TURNS)]
    engine, plain = (statistics.median(times) for times in zip(*pairs, strict=True))
    yield {"name": "eager", "engine": engine, "seconds": plain, "ratio": plain / engine}


def _step(module: Any, call: Call, training: bool) -> Callable[[], None]:
    """One call as a user writes it."""
    optimizer = torch.optim.AdamW(module.parameters()) if training else None
    autocast = bool(call.surroundings.autocast)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = module(**call.kwargs)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def _machine() -> dict[str, Any]:
    return asdict(environment()) | {"date": date.today().isoformat()}


if __name__ == "__main__":
    main(sys.argv[1:])
