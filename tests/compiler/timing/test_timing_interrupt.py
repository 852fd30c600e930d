"""Ctrl-C while candidates are compiled and timed, in a separate process: finished results stay, nothing hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

TIMED = """
import json, sys, torch
from compiler.calls.call import Call
from compiler.timing.candidate_times import Plan, measure
from compiler.record.options import Options

torch.set_num_threads(1)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)).softmax(-1)
        return x

model = Model()
tell = lambda progress: print(progress, file=sys.stderr, flush=True)
found = measure(Call(model, model, (torch.randn(4, 8),)), Options(), Plan("ASKED", rounds=ROUNDS), tell)
print(json.dumps({
    "names": [candidate.name for candidate in found.candidates],
    "rounds": [len(candidate.rounds) for candidate in found.candidates],
    "interrupted": found.measurement.interrupted,
    "gradients": [parameter.grad is not None for parameter in model.parameters()],
}))
"""


def interrupted(python: Path, tmp_path: Path, asked: str, when: str, *, rounds: int) -> dict[str, object]:
    """The output of a process that gets one SIGINT shortly after it prints `when`."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(
        [python, "-c", TIMED.replace("ROUNDS", str(rounds)).replace("ASKED", asked)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if when in line:
            threading.Timer(0.5, os.killpg, (process.pid, signal.SIGINT)).start()
            break
    output, _errors = process.communicate(timeout=120)
    told: dict[str, object] = json.loads(output.splitlines()[-1])
    assert list(tmp_path.glob("tcompile-time-*")) == []
    return told


@pytest.mark.needs("g++")
def test_interrupt_while_inductor_compiles(tmp_path: Path) -> None:
    told = interrupted(Path(sys.executable), tmp_path, "aot_eager,default", "inductor: compiling", rounds=3)
    assert told["names"] == ["eager", "aot_eager"]
    assert told["interrupted"] is True
    assert told["gradients"] == [False] * 4


def test_interrupt_while_candidates_are_timed(python: Path, tmp_path: Path) -> None:
    told = interrupted(python, tmp_path, "aot_eager", "all in turns: rounds (4", rounds=100_000)
    assert told["names"] == ["eager", "aot_eager"]
    assert told["interrupted"] is True
    assert isinstance(told["rounds"], list)
    assert all(4 <= rounds < 100_000 for rounds in told["rounds"])
