"""Simulated ranks against real ones: `python -m benchmarks.rank_fidelity [MODEL:WRAP…] [--ranks 2 4]`.

Each real rank is a process with gloo on the CPU. It explores a training step, and counts the collectives of an eager
step at c10d's operators. Each rank is also simulated, in a process of its own. Texts of all stages must be equal, and
bytes by kind of collective must equal what was counted. Prints a table, and JSON with `--json FILE`.

`--gpu h100` compares NCCL on GPUs of this kind with ranks that are simulated without one, kernel by kernel. Other texts
are compared without the names of devices.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import product, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.rank_models import MODELS, WIDE, WRAPS, cases
from benchmarks.same_kernels import compared
from compiler.distributed.group import simulate_group
from compiler.engine import Exploration
from compiler.record import Record
from compiler.record.distributed_facts import GPUS_A_NODE
from compiler.record.options import Options
from compiler.targets.destination import DEFAULT_TARGET
from compiler.torch_api.patching import set_environment

SECONDS = 1800
_KINDS = ("reduce_scatter", "all_gather", "allgather", "all_reduce", "allreduce", "all_to_all", "alltoall")
_NAMES = {"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all"}
_LATER = ("timing", "source")
_OF_BUILDS = ("autograd", "kernels")
"""Stages that differ with NCCL: the autograd graph of compiled functions; kernels, which are compared one by one."""

Stages = Callable[[str], tuple[str, ...]]
"""The stages to record of a case; () for all."""
Bytes = dict[str, list[int]]
"""By kind of collective: how many, and the bytes of their inputs."""


class CountCollectives(TorchDispatchMode):
    """Counts the collectives of eager code at their operators, also those that C++ calls."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Bytes = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = function.namespace, function._schema.name.partition("::")[2]
        kind = next((part for part in _KINDS if part in name), "")
        if namespace in ("c10d", "_c10d_functional") and kind:
            count = self.counts.setdefault(_NAMES.get(kind, kind), [0, 0])
            count[0] += 1
            count[1] += sum(tensor.nbytes for tensor in _inputs(function, args))
        return function(*args, **(kwargs or {}))


def _inputs(function: Any, args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that a rank passes in: `input…` where there are outputs too, else the first argument."""
    names = [argument.name for argument in function._schema.arguments]
    index = next((place for place, name in enumerate(names) if name.startswith("input")), 0)
    return [leaf for leaf in tree_leaves(args[index]) if isinstance(leaf, torch.Tensor)]


def count_recorded(record: Record) -> Bytes:
    """The collectives of a record, by kind."""
    counts: Bytes = {}
    for found in record.collectives:
        count = counts.setdefault(found.kind, [0, 0])
        count[0] += found.calls
        count[1] += found.calls * found.input_bytes
    return counts


def texts(record: Record) -> dict[str, str]:
    """The texts of all stages that torch.compile went through."""
    return {artifact.id: artifact.text for artifact in record.artifacts if artifact.stage not in _LATER}


def make(model: str, wrap: str, world: int, gpu: str) -> tuple[Any, torch.Tensor]:
    """A model spread over the ranks, and its input."""
    torch.manual_seed(0)
    kind = replace((MODELS | WIDE)[model], device="cuda" if gpu else "cpu")
    return WRAPS[wrap](kind.make().to(kind.device), kind, world), kind.input().to(kind.device)


def explore_step(model: str, wrap: str, world: int, stages: tuple[str, ...], gpu: str) -> Record:
    """Explore a forward and a backward."""
    fn, x = make(model, wrap, world, gpu)
    with Exploration(
        Options(stages=stages, target=gpu if gpu and not torch.cuda.is_available() else "")
    ) as exploration:
        exploration.compile(fn)(x).sum().backward()
    torch._dynamo.reset()
    return exploration.record


def result_of(model: str, wrap: str, world: int, stages: tuple[str, ...], gpu: str = "") -> dict[str, Any]:
    """What one rank has for one case: texts, generated codes with their graphs and halves, collectives, problems."""
    record = explore_step(model, wrap, world, stages, gpu)
    problems = [problem.reason for problem in record.problems]
    written = record.of_stage("kernels")
    graphs = list(dict.fromkeys(each.graph for each in written))
    codes = [(graphs.index(each.graph), each.half, each.text) for each in written]
    return {"texts": texts(record), "codes": codes, "bytes": count_recorded(record), "problems": problems}


def count_eager(model: str, wrap: str, world: int, gpu: str = "") -> Bytes:
    """The collectives of a real, eager step."""
    fn, x = make(model, wrap, world, gpu)
    with CountCollectives() as counter:
        fn(x).sum().backward()
    return counter.counts


@contextmanager
def real_group(rank: int, world: int, store: str, gpu: str) -> Iterator[None]:
    """A process group of `world` processes, with gloo, or with NCCL and a GPU for each."""
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def run_real(rank: int, world: int, folder: Path, names: Sequence[str], stages: Stages, gpu: str) -> None:
    """One rank with gloo or NCCL: explored and eager; the results are in files of the folder."""
    with real_group(rank, world, str(folder / "store"), gpu):
        found = {name: result_of(*name.split(":"), world, stages(name), gpu) for name in names}
        eager = {name: count_eager(*name.split(":"), world, gpu) for name in names}
    (folder / f"{rank}.real").write_text(json.dumps(found))
    (folder / f"{rank}.eager").write_text(json.dumps(eager))


def run_simulated(rank: int, world: int, folder: Path, names: Sequence[str], stages: Stages, gpu: str) -> None:
    """One rank, simulated without a GPU; the results are in a file of the folder."""
    with simulate_group(world, rank, node_size=world if gpu else GPUS_A_NODE, target=gpu or DEFAULT_TARGET):
        found = {name: result_of(*name.split(":"), world, stages(name), gpu) for name in names}
    (folder / f"{rank}.fake").write_text(json.dumps(found))


def fork_ranks(world: int, folder: Path, names: Sequence[str], stages: Stages, gpu: str) -> None:
    """Run all ranks, real and simulated, in forks of this process. Raises SystemExit if one fails.

    All start from one state: which of two equal mesh arguments torch names in a graph depends on earlier compilations.
    """
    torch.set_num_threads(1)
    children = []
    for run, rank in product((run_real, run_simulated), range(world)):
        if (child := os.fork()) == 0:
            code = 1
            try:
                run(rank, world, folder, names, stages, gpu)
                code = 0
            except BaseException:  # noqa: BLE001  the process of a rank ends here in any case
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        raise SystemExit(1)


def spawn_ranks(world: int, folder: Path, names: Sequence[str], stages: Stages, gpu: str) -> None:
    """Run all ranks in new processes, as a fork can't use a GPU; those that are simulated see none."""
    children = []
    for run, rank in product((run_real, run_simulated), range(world)):
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if run is run_simulated else {}
        with set_environment(**hidden):
            child = get_context("spawn").Process(target=run, args=(rank, world, folder, names, stages, gpu))
            child.start()
        children.append(child)
    for child in children:
        child.join()
    if any(child.exitcode for child in children):
        raise SystemExit(1)


def stages_of(stages: Sequence[str], whole: Sequence[str], name: str) -> tuple[str, ...]:
    return () if name in whole else tuple(stages)


def run_ranks(
    world: int, names: Sequence[str], stages: Sequence[str] = (), whole: Sequence[str] = (), gpu: str = ""
) -> dict[int, Any]:
    """Run all ranks, each in a process; the results by rank. Raises CalledProcessError if one fails.

    `stages` are recorded, or all; cases in `whole` record all stages in any case.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "benchmarks.rank_fidelity", *names, "--stages", *stages, "--whole", *whole]
        words += ["--gpu", gpu] if gpu else []
        environment = os.environ | {
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        subprocess.run([*words, "--child", str(world), folder], env=environment, timeout=SECONDS, check=True)
        return {rank: _results(Path(folder), rank, names) for rank in range(world)}


def _results(folder: Path, rank: int, names: Sequence[str]) -> dict[str, Any]:
    parts = {part: json.loads((folder / f"{rank}.{part}").read_text()) for part in ("real", "fake", "eager")}
    return {name: {part: found[name] for part, found in parts.items()} for name in names}


def first_difference(real_text: str, fake_text: str) -> tuple[str, str]:
    """The first lines that differ."""
    lines = zip_longest(real_text.splitlines(), fake_text.splitlines(), fillvalue="")
    return next(((one, other) for one, other in lines if one != other), ("", ""))


_INDEX = re.compile(r"\b(cuda:|index=)\d+")
_DEVICE = re.compile(r"\bcuda:\d+|\b(?:cuda|cpu)\b")


def compare(found: dict[str, Any], gpu: str = "") -> dict[str, Any]:
    """Compare one rank's real and simulated results of one case."""
    kernels: dict[str, Any] = {}
    one, other = found["real"]["texts"], found["fake"]["texts"]
    if gpu:
        one, other = ({name: _DEVICE.sub("device", text) for name, text in side.items()
                       if not name.startswith(_OF_BUILDS)} for side in (one, other))  # fmt: skip
        codes = [[(*each, _INDEX.sub(r"\g<1>0", text)) for *each, text in found[side]["codes"]]
                 for side in ("real", "fake")]  # fmt: skip
        kernels = asdict(compared(*codes))
    differing = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return {
        "stages": len(one),
        "differing": differing,
        "firsts": {name: first_difference(one.get(name, ""), other.get(name, "")) for name in differing},
        "first": first_difference(one.get(differing[0], ""), other.get(differing[0], "")) if differing else (),
        "bytes": found["fake"]["bytes"],
        "as_real": found["fake"]["bytes"] == found["real"]["bytes"],
        "as_counted": found["fake"]["bytes"] == found["eager"],
        "counted": found["eager"],
        "problems": found["fake"]["problems"],
        "kernels": kernels,
    }


def table(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A line for each case and rank."""
    for name, each in results.items():
        one = next(iter(each["differing"]), "")
        equal = f"{len(each['differing'])} differ: {one}: {each['first']}" if one else "equal"
        sent = ", ".join(f"{count} {kind} {size:,} B" for kind, (count, size) in sorted(each["bytes"].items()))
        words = "as counted" if each["as_counted"] else f"counted {each['counted']}"
        kernels = f"kernels {each['kernels']['equal']} of {each['kernels']['total']}, " if each["kernels"] else ""
        yield f"{name:28} {each['stages']:3} stages {equal:8} {kernels}{sent or 'no collectives'} ({words})"


def main(words: Sequence[str] | None = None) -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="MODEL:WRAP; all without")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--stages", nargs="*", default=[], help="stages to record; all without")
    parser.add_argument("--whole", nargs="*", default=[], help="cases of which all stages are recorded with --stages")
    parser.add_argument("--gpu", default="", help="the kind of GPU that is here, for NCCL; gloo without")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    names = args.names or [":".join(case) for case in cases()]
    if args.child:
        world, folder = args.child
        run = spawn_ranks if args.gpu else fork_ranks
        run(int(world), Path(folder), names, partial(stages_of, args.stages, args.whole), args.gpu)
        return
    results = {}
    for world in args.ranks:
        for rank, found in run_ranks(world, names, args.stages, args.whole, args.gpu).items():
            results |= {f"{name} {rank}/{world}": compare(found[name], args.gpu) for name in names}
    print("\n".join(table(results)))
    verdicts = Counter((not each["differing"], each["as_counted"]) for each in results.values())
    print(f"{len(results)} ranks: {sum(n for (equal, _), n in verdicts.items() if equal)} with equal texts, "
          f"{sum(n for (_, exact), n in verdicts.items() if exact)} with the bytes that were counted")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
