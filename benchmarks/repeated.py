"""Resident memory of one process over repeated explorations of a 2-layer GPT-2, each discarded before the next.

    python -m benchmarks.repeated                 100 explorations, forward and backward
    python -m benchmarks.repeated --count 20      fewer

Prints the resident memory in MiB after every tenth exploration, and the ratio of the last to the tenth; writes JSON to
benchmarks/results/. Exits with code 1 if the last figure is more than 10 % above the tenth exploration's.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures import Figure, load, write

BAR = 1.10
FIRST = 10


def resident_mib() -> float:
    """Resident set size of this process in MiB, from the kernel."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def explore_one_step(ids: Any, options: dict[str, Any]) -> None:
    """Explore a training step of a fresh model; nothing of it outlives the call."""
    from transformers import GPT2Config, GPT2LMHeadModel

    import tcompile

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=256, n_positions=64))

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()

    run = tcompile.explore(step, **options)
    assert run.record.kernels, run.tables.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--target", help="as for tcompile explore; default: a virtual GPU")
    arguments = parser.parse_args()

    import torch

    load_before = load()
    options = {"target": arguments.target} if arguments.target else {}
    ids = torch.randint(0, 256, (2, 32))
    memory = []
    for number in range(1, arguments.count + 1):
        began = time.perf_counter()
        explore_one_step(ids, options)
        gc.collect()
        memory.append(resident_mib())
        if number % FIRST == 0 or number == 1:
            print(f"{number:4}  {memory[-1]:8.1f} MiB  {time.perf_counter() - began:5.1f} s", flush=True)
    if arguments.count <= FIRST:
        return 0
    name = f"memory after {arguments.count} explorations / after {FIRST}"
    figure = Figure(name, memory[-1] / memory[FIRST - 1], "×", BAR, details={"memory_mib": memory})
    print(figure.line())
    write("repeated", [figure], load_before, load())
    return int(not figure.met)


if __name__ == "__main__":
    sys.exit(main())
