"""Ranks on real GPUs with NCCL beside simulated ones: `python -m benchmarks.real_ranks PART --gpu h100 --json FILE`.

    collectives   torch's estimate against the measured time, by kind and size
    step          a compiled training step: peak memory by torch's allocator; communication, exposed or not, by profile;
                  the bytes of its collectives by NCCL's own log
    pays          a training step under bfloat16: eager against compiled, by Inductor and by our backend
    passes        what Inductor's passes on communication gain; the simulated side has what the advice claims of them

Each part runs one process for each GPU of this machine. `--simulate FILE` has its simulated side, which needs no GPU.
The texts of all stages are compared by `benchmarks.rank_fidelity --gpu h100`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.distributed.tensor import DTensor

from benchmarks.rank_fidelity import count_recorded, explore_step, real_group
from benchmarks.rank_models import WIDE, WRAPS
from compiler.advise import advise
from compiler.advise.communication import PASSES
from compiler.backend import tcompile
from compiler.distributed.group import simulate_group
from compiler.engine import Exploration, explore
from compiler.record import Record
from compiler.record.options import Options
from compiler.timing.overlap import schedules
from compiler.torch_api.settings import known_options

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = tuple(1 << power for power in range(10, 30, 2))
CASES = ("gpt2_wide:ddp", "gpt2_wide:fsdp2", "gpt2_wide:fsdp1", "gpt2_wide:simple_fsdp", "gpt2_wide:tp",
         "llama_wide:fsdp2", "llama_wide:simple_fsdp", "llama_wide:tp_sp")  # fmt: skip
PASSES_OF = {
    "gpt2_wide:simple_fsdp:amp": ("bucketing", "overlap scheduling", "reordering"),
    "llama_wide:simple_fsdp:amp": ("bucketing", "overlap scheduling", "reordering"),
    "gpt2_wide:tp_sp:amp": ("async TP",),
    "llama_wide:tp_sp:amp": ("async TP",),
}
"""Passes to try on each case."""
SEQUENCES = 32
"""Sequences of a case with passes: a step is then bound by the GPU, and not by launches."""
WARM, ROUNDS = 4, 12
CALLS, CYCLES = 20, 30_000_000
NCCL_CALL = re.compile(
    r"NCCL INFO (AllReduce|AllGather|ReduceScatter|Broadcast): .*? count (\d+) datatype (\d+) .*?\[nranks=(\d+)\]"
)
"""A call in the log that NCCL writes with `NCCL_DEBUG_SUBSYS=COLL`: kind, values, type, ranks."""
NCCL_KINDS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast",
}  # fmt: skip
NCCL_SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of a value by NCCL's number of its type (`ncclDataType_t`)."""

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


def milliseconds(step: Step, *, ahead: bool = False) -> float:
    """Median time of a step on the GPU, in milliseconds. With `ahead`, the GPU first waits while it is launched."""
    for _ in range(WARM):
        step()
    times = []
    for _ in range(ROUNDS):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if ahead:
            torch.cuda._sleep(CYCLES)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def measure_collectives(kind: str, device: str) -> dict[str, float]:
    """Microseconds of a call on the GPU: of many that wait there, so that no time of Python counts."""
    found = {}
    for size in SIZES:
        x = torch.randn(inputs(kind, size), device=device)

        def call_many(x: Tensor = x) -> None:
            for _ in range(CALLS):
                collectives.wait_tensor(call(kind, x))

        found[f"{kind} {size}"] = 1000 * milliseconds(call_many, ahead=True) / CALLS
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


def make_model(case: str, device: str, sequences: int) -> tuple[Any, Tensor]:
    """The wrapped model of a case, and its input of so many sequences."""
    torch.manual_seed(0)
    name, wrap, *_ = case.split(":")
    kind = replace(WIDE[name], device=device)
    x = kind.input()
    model = WRAPS[wrap](kind.make().to(device), kind, dist.get_world_size())
    return model, x.repeat(sequences // len(x), 1).to(device)


def training_steps(
    case: str, device: str, compile_with: str = "", *, sequences: int = 4, options: Mapping[str, object] | None = None
) -> tuple[Step, Step]:
    """Of a case on this rank: a forward and a backward, and a whole training step with AdamW."""
    model, x = make_model(case, device, sequences)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)  # it takes no mixture of tensors and DTensors
    backend: Any = tcompile if compile_with == "tcompile" else compile_with
    called = torch.compile(model, backend=backend, options=dict(options or {}) or None) if compile_with else model
    if options == PASSES["async TP"]:
        share_memory(model)

    def differentiate() -> None:
        with torch.autocast(device, torch.bfloat16, enabled="amp" in case.split(":")[2:]):
            loss = called(x)
        loss.backward()

    def step() -> None:
        differentiate()
        optimizer.step()
        optimizer.zero_grad()

    return differentiate, step


def pass_options(name: str) -> dict[str, object]:
    """Those options of a pass that this version of torch has; {} for no pass."""
    return known_options(PASSES.get(name, {}))


def share_memory(model: torch.nn.Module) -> None:
    """Enable symmetric memory, which async TP needs, for the groups of the model's parameters."""
    for name in {each.device_mesh.get_group().group_name for each in model.parameters() if isinstance(each, DTensor)}:
        symmetric_memory.enable_symm_mem_for_group(name)


def count_nccl(log: str) -> dict[str, int]:
    """By kind, the bytes that a rank passes in, and the number of its calls, in NCCL's log."""
    found: dict[str, int] = {}
    for called, values, type_number, ranks in NCCL_CALL.findall(log):
        kind, parts = NCCL_KINDS[called], int(ranks) if called == "ReduceScatter" else 1  # counts a part of its input
        found[f"{kind} bytes"] = found.get(f"{kind} bytes", 0) + int(values) * NCCL_SIZES[int(type_number)] * parts
        found[f"{kind} calls"] = found.get(f"{kind} calls", 0) + 1
    return found


def measure_step(case: str, device: str) -> dict[str, dict[str, float]]:
    """A compiled training step: bytes at its peak and of its collectives; microseconds of communication, and exposed.

    NCCL writes its log to the file that `NCCL_DEBUG_FILE` names.
    """
    differentiate, step = training_steps(case, device, "inductor")
    for _ in range(WARM):
        step()
    torch.cuda.reset_peak_memory_stats()
    differentiate()
    peak = torch.cuda.max_memory_allocated()
    log = Path(os.environ["NCCL_DEBUG_FILE"])
    before = len(log.read_text())
    step()
    torch.cuda.synchronize()
    counted = count_nccl(log.read_text()[before:])
    return {case: {"peak": peak, **profile_communication(differentiate), **counted}}


def profile_communication(differentiate: Step) -> dict[str, float]:
    """Microseconds of communication on the GPU in a call, and those with no kernel beside it."""
    dist.barrier()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        differentiate()
        torch.cuda.synchronize()
    spans = [(event.name, event.time_range.start, event.time_range.end) for event in profile.events()]
    sent = union((start, end) for name, start, end in spans if "nccl" in name)
    busy = union((start, end) for name, start, end in spans if "nccl" not in name)
    exposed = length(union([*sent, *busy])) - length(busy)
    return {"communication": length(sent), "exposed": exposed}


def measure_passes(case: str, device: str) -> dict[str, dict[str, Any]]:
    """A forward and a backward with each pass on its own: milliseconds, and microseconds of communication."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("", *PASSES_OF[case]):
        row = f"{case} {name or 'as it is'}"
        try:
            differentiate, _ = training_steps(case, device, "inductor", sequences=SEQUENCES, options=pass_options(name))
            found[row] = {"ms": milliseconds(differentiate), **profile_communication(differentiate)}
            del differentiate
        except Exception as error:  # noqa: BLE001 a pass that fails is a row of the table
            found[row] = {"error": repr(error)[:300]}
        forget_models()
    return found


def forget_models() -> None:
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def simulate_passes(gpu: str) -> dict[str, dict[str, float]]:
    """Milliseconds of the simulated step with each pass, and what the advice claims to gain without one."""
    found = {}
    for case, names in PASSES_OF.items():
        for name in ("", *names):
            record = explore_with_options(case, pass_options(name), gpu)
            row = {"ms": 1e3 * sum(half.seconds for half in schedules(record)),
                   "exposed": 1e6 * sum(half.exposed_seconds for half in schedules(record))}  # fmt: skip
            if not name:
                row |= {f"{told.rule} ms": 1e3 * told.gain.seconds for told in advise(record) if told.gain}
            found[f"{case} {name or 'as it is'}"] = row
    return found


def explore_with_options(case: str, options: Mapping[str, object], gpu: str) -> Record:
    """Explore a forward and a backward of a case under bfloat16."""
    model, x = make_model(case, "cpu", SEQUENCES)
    with Exploration(Options(target=gpu, options=dict(options))) as exploration:
        with torch.autocast("cuda", torch.bfloat16):
            loss = exploration.compile(model)(x)
        loss.backward()
    torch._dynamo.reset()
    return exploration.record


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
        for kind, (calls, size) in count_recorded(record).items():
            found[case] |= {f"{kind} bytes": size, f"{kind} calls": calls}
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


def measure_pay(case: str, device: str) -> dict[str, dict[str, Any]]:
    """Milliseconds and bytes of a training step with AdamW under bfloat16."""
    found: dict[str, dict[str, Any]] = {}
    for backend in ("", "inductor", "tcompile"):
        name = f"{case} {backend or 'eager'}"
        before = torch.cuda.memory_allocated()
        try:
            differentiate, step = training_steps(case, device, backend)
            step()
            torch.cuda.reset_peak_memory_stats()
            found[name] = {"ms": milliseconds(step), "peak": torch.cuda.max_memory_allocated(), "left over": before}
            del differentiate, step
        except Exception as error:  # noqa: BLE001 a backend that fails is a row of the table
            found[name] = {"error": repr(error)[:300]}
        forget_models()
    return found


MEASURED: dict[str, tuple[Callable[[str, str], dict[str, Any]], tuple[str, ...]]] = {
    "collectives": (measure_collectives, KINDS),
    "step": (measure_step, CASES),
    "pays": (measure_pay, tuple(f"{name}:{wrap}:amp" for name in WIDE for wrap in ("ddp", "fsdp1", "fsdp2"))),
    "passes": (measure_passes, tuple(PASSES_OF)),
}
SIMULATED: dict[str, Callable[[str], dict[str, Any]]] = {
    "collectives": estimate_collectives, "step": simulate_steps, "passes": simulate_passes,
}  # fmt: skip


def measure_part(part: str, only: str) -> Iterator[list[dict[str, Any]]]:
    """What each rank measured so far, after each case with `only` in its name; a case has a process for each GPU."""
    world = torch.cuda.device_count()
    found: list[dict[str, Any]] = [{} for _ in range(world)]
    for case in filter(lambda case: only in case, MEASURED[part][1]):
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "benchmarks.real_ranks", part, "--folder", folder, "--world", str(world)]
            workers = [subprocess.Popen([*words, "--case", case, "--rank", str(rank)]) for rank in range(world)]
            codes = [worker.wait() for worker in workers]
            if any(codes):
                print(f"{case}: a rank failed", flush=True)
                continue
            for rank, own in enumerate(found):
                own.update(json.loads(Path(folder, f"{rank}.json").read_text()))
        yield found


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
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--simulate", type=Path, metavar="FILE", help="write the simulated side, and stop")
    parser.add_argument("--simulated", type=Path, metavar="FILE", help="the simulated side, to print beside")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder:
        log = f"{asked.folder}/nccl.{asked.rank}"
        os.environ |= (
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL", "NCCL_DEBUG_FILE": log} if asked.part == "step" else {}
        )
        with real_group(asked.rank, asked.world, f"{asked.folder}/store", "gpu"):
            found = MEASURED[asked.part][0](asked.case, "cuda")
        Path(asked.folder, f"{asked.rank}.json").write_text(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)
    if asked.simulate:
        asked.simulate.write_text(json.dumps(simulate_part(asked.part, asked.world, asked.gpu), indent=1))
        return
    simulated = json.loads(asked.simulated.read_text()) if asked.simulated else {}
    printed = 0
    for measured in measure_part(asked.part, asked.only):
        listed = list(rows(measured[0], simulated))
        print("\n".join(listed[printed:]), flush=True)
        printed = len(listed)
        if asked.json:
            asked.json.write_text(json.dumps({"measured": measured, "simulated": simulated}, indent=1))


if __name__ == "__main__":
    main()
