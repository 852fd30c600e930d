"""How fast ranks are simulated: `python -m benchmarks.ranks --speed` prints JSON.

Each measurement runs in a process of its own. The bounds: a simulated rank takes at most 1.3 times as long as the same
model in one process, cut where `fully_shard` cuts it; 1,024 ranks at most 1.2 times as long as 8; three ranks of GPT-2
at most 2 times as long as one; two layers of Llama 70B on 512 ranks at most 60 s and 4 GiB. Ratios are of CPU seconds.
Weights are fake, except in the cases "in memory".
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks import simulated_models


def one_process() -> None:
    simulated_models.gpt_step(12, cuts=True)


def sharded_step() -> None:
    simulated_models.gpt_step(12, shards=True)


def llama_step() -> None:
    simulated_models.llama_step()


def llama_fsdp_step() -> None:
    simulated_models.llama_step(tensor=False)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2 cut, one process": (one_process, {"ranks": 1, "fake": True}),
    "gpt2 fsdp2, rank 3 of 8": (sharded_step, {"ranks": 8, "rank": 3, "fake": True}),
    "gpt2 fsdp2, rank 3 of 1024": (sharded_step, {"ranks": 1024, "rank": 3, "fake": True}),
    "gpt2 fsdp2, three ranks of 8": (sharded_step, {"ranks": 8, "rank": "first,3,last", "fake": True}),
    "gpt2 cut, one process, in memory": (one_process, {"ranks": 1}),
    "gpt2 fsdp2, rank 3 of 8, in memory": (sharded_step, {"ranks": 8, "rank": 3}),
    "gpt2 fsdp2, three ranks of 8, in memory": (sharded_step, {"ranks": 8, "rank": "first,3,last"}),
    "llama 70b fsdp2 + tp, rank 77 of 512": (llama_step, {"ranks": 512, "rank": 77, "fake": True}),
    "llama 70b fsdp2, rank 77 of 512": (llama_fsdp_step, {"ranks": 512, "rank": 77, "fake": True}),
}
"""What to explore, and how: a function that makes a model and makes a step with it."""
RATIOS = {
    "one rank / one process": ("gpt2 fsdp2, rank 3 of 8", "gpt2 cut, one process", 1.3),
    "1024 ranks / 8 ranks": ("gpt2 fsdp2, rank 3 of 1024", "gpt2 fsdp2, rank 3 of 8", 1.2),
    "three ranks / one rank": ("gpt2 fsdp2, three ranks of 8", "gpt2 fsdp2, rank 3 of 8", 2.0),
    "one rank / one process, in memory": (
        "gpt2 fsdp2, rank 3 of 8, in memory",
        "gpt2 cut, one process, in memory",
        1.3,
    ),
    "three ranks / one rank, in memory": (
        "gpt2 fsdp2, three ranks of 8, in memory",
        "gpt2 fsdp2, rank 3 of 8, in memory",
        2.0,
    ),
}
"""Two cases, and how many times as long the first may take."""


def measure(name: str) -> dict[str, Any]:
    """Explore a case in this process; seconds without imports, and the peak of the process's memory."""
    import torch

    import tcompile

    torch.set_num_threads(1)
    step, options = CASES[name]
    tcompile.explore(torch.nn.Linear(2, 2), torch.ones(2, 2), target="h100")  # imports, and what torch does once
    start, start_of_cpu = time.perf_counter(), time.process_time()
    run = tcompile.explore(step, target="h100", **options)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_of_cpu
    ranks = run.ranks
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "graphs": len(run.record.of_stage("captured")),
        "kernels": len(run.record.kernels),
        "collectives": len(run.record.collectives),
        "ranks": str(ranks).splitlines(),
        "problems": [problem.reason for problem in run.record.problems],
    }


def speed(names: list[str]) -> dict[str, Any]:
    """Measure the cases in fresh processes, and compare."""
    results = {name: _in_process(name) for name in names or CASES}
    compared = {
        title: {"ratio": round(results[one]["cpu_seconds"] / results[other]["cpu_seconds"], 2), "bound": bound}
        for title, (one, other, bound) in RATIOS.items()
        if "seconds" in results.get(one, {}) and "seconds" in results.get(other, {})
    }
    return {"cases": results, "compared": compared}


def _in_process(name: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.rank_speed", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
