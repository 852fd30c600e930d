"""Make the small logs and the profile of notebook 11: `python make.py` runs four programs and keeps what they logged.

What is kept is thinned (events that no view reads are left out) and anonymous: paths of this machine, its name and its
user are replaced, and the sums of payloads are made again.
"""

from __future__ import annotations

import getpass
import gzip
import hashlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
EVENT = re.compile(rb"^V\d{4} [^\n]*\n(?:\t[^\n]*\n?)*", re.MULTILINE)
SUM = re.compile(rb'"has_payload": "[0-9a-f]{32}"')
LEFT_OUT = re.compile(
    rb'"describe_(?:tensor|storage|source)"|"name": "(?:fx_graph_runnable|before_\w+_graph|torch\._functorch\.config|'
    rb'\w*(?:compiled_f|wrapper|prologue|epilogue|bytecode|BYTECODE|fw_metadata)\w*)"'
)
STEPS = re.compile(rb'"name": "(?:pass\.|compile_file|GraphLowering|Scheduler|PyCodeCache|TritonBundler|gc")')
WARM_UP = """
import torch

class Warming(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.step = 0

    def forward(self, x):
        return torch.relu(self.linear(x)) * min(1.0, self.step / 100)

model = Warming()
compiled = torch.compile(model, backend="aot_eager")
for number in range(12):
    model.step = number  # the learning rate warms up with the steps
    compiled(torch.randn(4, 16))
"""
RANKS = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def loss_of(x, w):
    return torch.tanh(x @ w).pow(2).mean()

def train(rank, world):
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=world)
    w = torch.randn(8, 8, requires_grad=True)
    compiled = torch.compile(loss_of, dynamic=False)
    for number in range(4):
        rows = 5 if rank == 2 and number == 3 else 16  # the last batch of one rank is smaller
        loss = compiled(torch.randn(rows, 8), w)
        loss.backward()
        dist.all_reduce(w.grad)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (3,), nprocs=3)
"""
SERVE = """
import os, torch, torch._inductor.config as config
if os.environ.get("EPILOGUE"):
    config.epilogue_fusion = False

@torch.compile
def answer(x, w):
    return torch.softmax(x @ w, -1)

with torch.no_grad():
    answer(torch.randn(8, 16), torch.randn(16, 16))
"""
TRAIN = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, record_function

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = torch.nn.Linear(256, 512), torch.nn.Linear(512, 32)

    def forward(self, x):
        hidden = torch.relu(self.encode(x))
        if hidden.mean() > 0:
            hidden = hidden * 2
        return self.decode(hidden).softmax(-1)

net = Net()
compiled = torch.compile(net)

def step(rows):
    with record_function("step"):
        compiled(torch.randn(rows, 256)).pow(2).sum().backward()

step(64)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for rows in (64, 64, 64, 48, 64, 64):
        step(rows)
profiler.export_chrome_trace(sys.argv[1])
"""


JOBS = {
    "storm": ("warm_up", WARM_UP, (), {}),
    "ranks": ("ranks", RANKS, ("store",), {}),
    "cold": ("serve", SERVE, (), {}),
    "warm": ("serve", SERVE, (), {}),
    "again": ("serve", SERVE, (), {"EPILOGUE": "1"}),
    "train": ("train", TRAIN, ("trace.json",), {}),
}
"""Program, code, files that it is given, and environment variables, by log. Logs of one program share a cache."""
COMPARED = ("cold", "warm", "again")
"""Logs in which the parts of cache keys are kept."""
LARGE = 2_000
"""Minimum characters of a text in an event, such as all settings as JSON, that is left out."""


def main() -> None:
    """Make the named logs, by default all."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in sys.argv[1:] or JOBS:
            program, code, files, environment = JOBS[name]
            run(folder, program, code, name, *(str(folder / file) for file in files), **environment)
            keep(folder, name)
        if (folder / "trace.json").exists():
            keep_profile(folder)


def run(folder: Path, program: str, code: str, log: str, *arguments: str, **environment: str) -> None:
    """Run a program with its own log; programs of one name share a cache."""
    script = folder / f"{program}.py"
    script.write_text(code.lstrip())
    places = {"TORCH_TRACE": str(folder / log), "TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache_{program}")}
    command = [sys.executable, str(script), *arguments]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | places | environment)


def keep(folder: Path, name: str) -> None:
    """Write `NAME.tar.gz` with the logs of a run."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted((folder / name).glob("*.log")):
            rank = re.search(r"_rank_(\d+)", path.name)
            member = tarfile.TarInfo(f"trace_rank_{rank[1]}.log" if rank else f"{name}.log")
            events = EVENT.findall(anonymous(path.read_bytes(), folder))
            data = b"".join(kept_event(event, name in COMPARED) for event in events)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (HERE / f"{name}.tar.gz").write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def kept_event(event: bytes, compared: bool) -> bytes:
    """An event without large texts; nothing if no view needs it."""
    head, _, payload = event.partition(b"\n")
    is_phase = b'"chromium_event"' in head
    if LEFT_OUT.search(head) or (is_phase and STEPS.search(payload)):
        return b""
    text = payload.removesuffix(b"\n").removeprefix(b"\t").replace(b"\n\t", b"\n")
    if b'"fx_graph_cache_' in head and not compared:
        text = json.dumps({key: value for key, value in json.loads(text).items() if key != "components"}).encode()
    if is_phase:
        text = json.dumps(without_large(json.loads(text))).encode()
    if b"compilation_metrics" in head:
        start = head.index(b"{")
        head = head[:start] + json.dumps(without_large(json.loads(head[start:]))).encode()
    head = SUM.sub(f'"has_payload": "{hashlib.md5(text).hexdigest()}"'.encode(), head) + b"\n"
    return head + (b"\t" + text.replace(b"\n", b"\n\t") + b"\n" if payload else b"")


def without_large(fields: dict) -> dict:
    return {
        key: without_large(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if isinstance(value, dict) or len(str(value)) <= LARGE
    }


def keep_profile(folder: Path) -> None:
    """Write `train.json.gz`, without the operators that ran while something was compiled."""
    trace = json.loads(anonymous((folder / "trace.json").read_bytes(), folder))
    events = trace["traceEvents"]
    compiling = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] in ("dynamo", "entire_backward_compile")]

    def is_kept(event: dict) -> bool:
        inside = any(begin < event.get("ts", 0) < end for begin, end in compiling)
        return not inside or "compile_id=" in event["name"] or "Torch-Compiled" in event["name"]

    trace["traceEvents"] = list(filter(is_kept, events))
    data = json.dumps({**trace, "traceName": "train.json", "host_name": "host"}, separators=(",", ":"))
    (HERE / "train.json.gz").write_bytes(gzip.compress(data.encode(), 9, mtime=0))


def anonymous(data: bytes, folder: Path) -> bytes:
    """The data without paths, names and users of this machine."""
    replaced = {
        str(folder): "/project",
        sysconfig.get_paths()["purelib"]: "/venv/site-packages",
        sysconfig.get_paths()["stdlib"]: "/usr/lib/python3",
        sys.prefix: "/venv",
        sys.base_prefix: "/usr",
        str(Path.home()): "/people/user",
        f"torchinductor_{getpass.getuser()}": "torchinductor_user",
        socket.gethostname(): "host",
        tempfile.gettempdir() + "/": "/scratch/",
    }
    for old, new in replaced.items():
        if len(old) > 3:
            data = data.replace(old.encode(), new.encode())
    return re.sub(rb"[\w/]*" + folder.name.encode(), b"/project", data)  # torch shortens paths from their start


if __name__ == "__main__":
    main()
