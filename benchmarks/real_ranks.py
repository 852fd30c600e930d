"""Ranks on real GPUs with NCCL beside simulated ones: `python -m benchmarks.real_ranks PART --gpu h100 --json FILE`.

    collectives   torch's estimate against the measured time, by kind and size
    step          a compiled training step: peak memory by torch's allocator; communication, exposed or not, by profile
    pays          a training step under bfloat16: eager against compiled, by Inductor and by our backend

Each part runs one process for each GPU of this machine. `--simulate FILE` has its simulated side, which needs no GPU.
The texts of all stages are compared by `benchmarks.rank_fidelity --gpu h100`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives

from benchmarks.rank_fidelity import explore_step, real_group
from benchmarks.rank_models import WIDE, WRAPS
from compiler.distributed.group import simulate_group
from compiler.engine import explore
from compiler.record.options import Options
from compiler.timing.overlap import schedules

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = tuple(1 << power for power in range(10, 30, 2))
CASES = ("gpt2_wide:ddp", "gpt2_wide:fsdp2", "gpt2_wide:fsdp1", "gpt2_wide:simple_fsdp", "gpt2_wide:tp",
         "llama_wide:fsdp2", "llama_wide:simple_fsdp", "llama_wide:tp_sp")  # fmt: skip
WARM, ROUNDS = 4, 12

Step = Callable[[], object]


def call(kind: str, x: Tensor) -> Tensor:
    """A collective in the form in which it is captured, over all ranks; `x` is this rank's part or whole."""
    ranks = dist.group.WORLD
    if kind == "all_reduce":
        return collectives.all_reduce(x, "sum", ranks)
    if kind == "all_gather":
        return collectives.all_gather_tensor(x, 0, ranks)
    if kind == "reduce_scatter":
        return collectives.reduce_scatter_tensor(x, "sum", 0, ranks)
    return collectives.all_to_all_single(x, None, None, ranks)


def inputs(kind: str, size: int) -> int:
    """The number of float32 values that a rank passes in for a message of `size` bytes."""
    return size // 4 // (dist.get_world_size() if kind == "all_gather" else 1)


def milliseconds(step: Step) -> float:
    """Median time of a step on the GPU, in milliseconds."""
    for _ in range(WARM):
        step()
    times = []
    for _ in range(ROUNDS):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def measure_collectives(device: str) -> dict[str, float]:
    found = {}
    for kind in KINDS:
        for size in SIZES:
            x = torch.randn(inputs(kind, size), device=device)
            found[f"{kind} {size}"] = 1000 * milliseconds(lambda kind=kind, x=x: collectives.wait_tensor(call(kind, x)))
    return found


def estimate_collectives(gpu: str) -> dict[str, float]:
    """The same calls by torch's cost model, in microseconds."""
    found, options = {}, Options(target=gpu, stages=("kernels",))
    for kind in KINDS:
        for size in SIZES:
            torch._dynamo.reset()
            x = torch.randn(inputs(kind, size))
            called = explore(lambda x, kind=kind: call(kind, x) + 1, (x,), options=options).record.collectives[0]
            found[f"{kind} {size}"] = 1e6 * (called.seconds or 0.0)
    return found


def trained(case: str, device: str, compile_with: str = "") -> tuple[Step, Any]:
    """A training step with AdamW of a case, on this rank, and its model."""
    torch.manual_seed(0)
    name, wrap = case.split(":")
    kind = replace(WIDE[name], device=device)
    model = WRAPS[wrap](kind.make().to(device), kind, dist.get_world_size())
    x = kind.input().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    called = torch.compile(model, backend=compile_with) if compile_with else model

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled="amp" in case.split(":")[2:]):
            loss = called(x).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model


def free() -> None:
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def measure_steps(device: str) -> dict[str, dict[str, float]]:
    """A compiled training step: bytes at its peak; microseconds of communication, and those with no kernel beside."""
    found = {}
    for case in CASES:
        before = torch.cuda.memory_allocated()
        step, model = trained(case, device, "inductor")
        for _ in range(WARM):
            step()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated() - before
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        spans = [(event.name, event.time_range.start, event.time_range.end) for event in profile.events()]
        sent = union((start, end) for name, start, end in spans if "nccl" in name)
        busy = union((start, end) for name, start, end in spans if "nccl" not in name)
        exposed = length(union([*sent, *busy])) - length(busy)
        found[case] = {"peak": peak, "communication": length(sent), "exposed": exposed}
        del step, model
        free()
    return found


def simulate_steps(gpu: str) -> dict[str, dict[str, float]]:
    found = {}
    for case in CASES:
        record = explore_step(*case.split(":"), dist.get_world_size(), (), gpu)
        sent = sum((each.seconds or 0.0) * each.calls for each in record.collectives)
        found[case] = {
            "peak": max((event.live for event in record.memory if event.side == "rank"), default=0),
            "communication": 1e6 * sent,
            "exposed": 1e6 * sum(half.exposed_seconds for half in schedules(record)),
        }
    return found


def union(spans: Any) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


def measure_pay(device: str) -> dict[str, dict[str, Any]]:
    """Milliseconds and bytes of a training step with AdamW under bfloat16."""
    found: dict[str, dict[str, Any]] = {}
    for case in (f"{name}:{wrap}:amp" for name in WIDE for wrap in ("ddp", "fsdp1", "fsdp2")):
        for backend in ("", "inductor", "tcompile"):
            name = f"{case} {backend or 'eager'}"
            try:
                step, model = trained(case, device, backend)
                step()
                torch.cuda.reset_peak_memory_stats()
                found[f"{case} {backend or 'eager'}"] = {
                    "ms": milliseconds(step),
                    "peak": torch.cuda.max_memory_allocated(),
                }
                del step, model
            except Exception as error:  # noqa: BLE001 a backend that fails is a row of the table
                found[name] = {"error": repr(error)[:300]}
            free()
    return found


MEASURED: dict[str, Callable[[str], dict[str, Any]]] = {
    "collectives": measure_collectives, "step": measure_steps, "pays": measure_pay,
}  # fmt: skip
SIMULATED: dict[str, Callable[[str], dict[str, Any]]] = {
    "collectives": estimate_collectives, "step": simulate_steps,
}  # fmt: skip


def measure_part(part: str) -> list[dict[str, Any]]:
    """What each rank measures, each in a process with a GPU of its own."""
    world = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "benchmarks.real_ranks", part, "--folder", folder, "--world", str(world)]
        workers = [subprocess.Popen([*words, "--rank", str(rank)]) for rank in range(world)]
        codes = [worker.wait() for worker in workers]
        if any(codes):
            raise SystemExit(f"{part}: a rank failed")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]


def simulate_part(part: str, world: int, gpu: str) -> dict[str, Any]:
    """What rank 0 is said to do, without a GPU."""
    with simulate_group(world, 0, node_size=world, target=gpu):
        return SIMULATED[part](gpu)


def rows(measured: dict[str, Any], simulated: dict[str, Any]) -> Iterator[str]:
    """A line for each value, measured and simulated, with the difference."""
    for name, value in measured.items():
        other = simulated.get(name)
        if isinstance(value, dict):
            yield from rows({f"{name} {key}": each for key, each in value.items()},
                            {f"{name} {key}": each for key, each in (other or {}).items()})  # fmt: skip
        elif isinstance(value, float | int) and other:
            yield f"{name:40} {value:16,.1f} {other:16,.1f} {other / value - 1 if value else 0:+8.0%}"
        else:
            yield f"{name:40} {value}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(MEASURED))
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--simulate", type=Path, metavar="FILE", help="write the simulated side, and stop")
    parser.add_argument("--simulated", type=Path, metavar="FILE", help="the simulated side, to print beside")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder:
        with real_group(asked.rank, asked.world, f"{asked.folder}/store", "gpu"):
            found = MEASURED[asked.part]("cuda")
        Path(asked.folder, f"{asked.rank}.json").write_text(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)
    if asked.simulate:
        asked.simulate.write_text(json.dumps(simulate_part(asked.part, asked.world, asked.gpu), indent=1))
        return
    measured = measure_part(asked.part)
    simulated = json.loads(asked.simulated.read_text()) if asked.simulated else {}
    print("\n".join(rows(measured[0], simulated)))
    if asked.json:
        asked.json.write_text(json.dumps({"measured": measured, "simulated": simulated}, indent=1))


if __name__ == "__main__":
    main()
