"""An exploration and a log of TORCH_TRACE of the same program agree: graphs, kernels, breaks, recompilations.

All programs run in one fresh process, first under torch.compile with TORCH_TRACE, then explored. No C++ is built, so
that this takes seconds; kernels do nothing, and no program branches on what they compute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from compiler.logs.events import Log
from compiler.logs.records import record_of
from compiler.record import Record

PROGRAMS = """
import sys
from pathlib import Path

import torch
import torch._inductor.config as config
from torch._inductor.async_compile import AsyncCompile

config.cpp.simdlen = 1  # otherwise g++ is asked what the processor can do
config.fx_graph_cache = False
AsyncCompile.cpp_pybinding = lambda self, *args, **kwargs: lambda *args: None

class Linears(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.second(torch.relu(self.first(x))).softmax(-1)

class Convolution(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))

class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.scale = 1.0
    def forward(self, x):
        self.seen.add_(1)
        return x * self.scale + self.seen

class Scheduled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0
    def forward(self, x):
        self.step += 1
        return x * self.step

def inner(x):
    torch._dynamo.graph_break()
    return x * 2

def breaks_below(x):
    return inner(x.exp()) + 1

def two_breaks(x):
    x = x + 1
    print("one")
    x = x * 2
    print("two")
    return x - 3

def normalize(x, w):
    return torch.nn.functional.layer_norm(x @ w, (x.shape[-1],)).tanh()

def pieces(x):
    first, second = torch.chunk(x, 2)
    return first @ first.T, (second.cumsum(0), torch.sort(second)[0])

def rounded(x, bits):
    return (x * 2**bits).round() / 2**bits

r = torch.randn
PROGRAMS = {
    "linears": (Linears, [(r(4, 8),)]),
    "convolution": (Convolution, [(r(2, 3, 8, 8),)]),
    "buffer": (Counts, [(r(4),)]),
    "nested_break": (lambda: breaks_below, [(r(8),)]),
    "two_breaks": (lambda: two_breaks, [(r(8, requires_grad=True),)]),
    "sizes": (lambda: normalize, [(r(4, 16), r(16, 16)), (r(6, 16), r(16, 16)), (r(7, 16), r(16, 16))]),
    "dtypes": (lambda: rounded, [(r(4), 2), (r(4).double(), 2)]),
    "numbers": (lambda: rounded, [(r(4), 2), (r(4), 3), (r(4), 4)]),
    "schedule": (Scheduled, [(r(4),), (r(4),), (r(4),)]),
    "several_results": (lambda: pieces, [(r(4, 4),)]),
}

def ran(make, calls):
    torch._dynamo.reset()
    compiled = torch.compile(make())
    for args in calls:
        results = compiled(*args)
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.sum().backward()

ends = []
for name, (make, calls) in PROGRAMS.items():
    ran(make, calls)
    log, = Path(sys.argv[1]).glob("*.log")
    ends.append(f"{name} {log.stat().st_size}")
Path(sys.argv[1], "ends.txt").write_text("\\n".join(ends))

import tcompile

for name, (make, calls) in PROGRAMS.items():
    torch._dynamo.reset()
    tcompile.explore(make(), calls=calls, target="cpu").save(f"{sys.argv[1]}/{name}.json")
"""
NAMES = re.findall(r'^    "(\w+)": \(', PROGRAMS, re.MULTILINE)
GRAPHS = ("captured", "pre_grad", "joint", "forward", "backward", "inference", "post_grad")

Pair = tuple[Record, Record]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """By program: the record of its exploration, and that of its log."""
    folder = tmp_path_factory.mktemp("agree")
    script = folder / "programs.py"
    script.write_text(PROGRAMS)
    places = {"TORCH_TRACE": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(script), str(folder)]
    subprocess.run(command, check=True, env=os.environ | places, cwd=Path(__file__).parents[3], timeout=300)
    (path,) = folder.glob("*.log")
    return {
        name: (Record.load(folder / f"{name}.json"), record_of(log))
        for name, log in logs_of_programs(path.read_bytes(), (folder / "ends.txt").read_text()).items()
    }


def logs_of_programs(text: bytes, ends: str) -> dict[str, Log]:
    """The part of a log that belongs to each program, with the strings that were interned before it."""
    found, start = {}, 0
    for line in ends.splitlines():
        name, end = line.split()
        strings = re.findall(rb'^V\d{4}[^\n]*\] \{"str"[^\n]*\n', text[:start], re.MULTILINE)
        found[name] = Log((f"{name}.log",), (b"".join(strings) + text[start : int(end)],))
        start = int(end)
    return found


def graphs(record: Record) -> dict[str, list[str]]:
    """The operations of each graph, in order."""
    return {
        artifact.id: [entity.attrs["target"] for entity in artifact.entities if entity.kind == "call"]
        for stage in GRAPHS
        for artifact in record.of_stage(stage)
    }


def kernels(record: Record) -> dict[str, list[str]]:
    """The calls of each half of a graph, in order."""
    return {
        artifact.id: [entity.label for entity in artifact.entities if entity.kind in ("call", "extern")]
        for artifact in record.of_stage("kernels")
    }


def breaks(record: Record) -> list[tuple[str, int, str]]:
    return sorted((found.frame, found.line, found.reason.partition("\n")[0]) for found in record.breaks)


def recompilations(record: Record) -> Counter[str]:
    return Counter(found.frame for found in record.recompiles)


@pytest.mark.parametrize("name", NAMES)
def test_record_and_log_agree(name: str, pairs: dict[str, Pair]) -> None:
    explored, logged = pairs[name]
    assert kernels(explored)
    assert graphs(logged) == graphs(explored)
    assert kernels(logged) == kernels(explored)
    assert breaks(logged) == breaks(explored)
    assert recompilations(logged) == recompilations(explored)
    assert logged.origin == "log"
