"""Compiled functions in forked processes, and in processes that compile at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compiler.backend.runtime import build_cpp

pytestmark = pytest.mark.skipif(not build_cpp.compiler(), reason="needs a C++ compiler")

FORKED = """
import os, signal, sys, torch
from compiler.backend import tcompile
torch.set_num_threads(2)
x = torch.ones(1 << 20)
run = torch.compile(lambda x: x.sin() * 2, backend=tcompile)
before = run(x)
if (child := os.fork()) == 0:
    signal.alarm(60)
    os._exit(0 if torch.equal(run(x)[:9], before[:9]) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

BUILDING = """
import os, signal, sys
from pathlib import Path
from compiler.backend.cpp.emit import Code, Function
from compiler.backend.runtime.build_cpp import Build
made = Build(Code('extern "C" int one(int threads) { return 1; }', (Function("one", "one", (), (), True),)))
if (child := os.fork()) == 0:
    signal.alarm(60)
    Path(sys.argv[1]).touch()
    os._exit(made.functions()["one"](1) != 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or made.functions()["one"](1) != 1)
"""

COMPILING = """
import torch
from compiler.backend import tcompile
torch.manual_seed(0)
x, w = torch.randn(4, 16), torch.randn(16, 16, requires_grad=True)
def f(x, w):
    return torch.softmax(x @ w, -1).sin().sum()
for one in (torch.compile(f, backend=tcompile), f):
    y = one(x, w)
    print(round(y.item(), 4), round(torch.autograd.grad(y, w)[0].square().sum().item(), 6))
"""


def test_forked_processes_run_compiled_functions(python: Path) -> None:
    done = subprocess.run([python, "-c", FORKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Call torch.set_num_threads(1) first, or start the process by spawn") == 1


def test_forked_processes_build_what_the_parent_has_begun(tmp_path: Path) -> None:
    """The compiler waits for a file that the child creates: the child has none of the parent's threads."""
    file, program = tmp_path / "go on", tmp_path / "c++"
    program.write_text(
        f'#!/bin/sh\nuntil [ -e "{file}" ]; do sleep 0.01; done\nexec "{build_cpp.compiler()[0]}" "$@"\n'
    )
    program.chmod(0o755)
    command = [sys.executable, "-c", BUILDING, str(file)]
    environment = {**os.environ, "CXX": str(program)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_concurrent_processes_compile_correctly(python: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [python, "-c", COMPILING]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = [process.communicate()[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len({line for lines in found for line in lines}) == 1, found
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tcompile")] == []
