"""Without a build no compiler runs or is needed, and the code is the same as with a build."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor_config
import torch._inductor.cpu_vec_isa as cpu_vec_isa
from torch import nn

from compiler.engine import explore
from compiler.record.options import Options

ROOT = Path(__file__).parents[3]
EXPLORED = """
import os, sys, torch
from compiler.engine import explore
from compiler.record.options import Options
for os.environ["PATH"] in sys.argv[1:]:
    record = explore(torch.nn.Linear(8, 8).train(), (torch.randn(4, 8),), options=Options(target="cpu")).record
    print([artifact.id for artifact in record.of_stage("kernels")], [problem.reason for problem in record.problems])
"""


@pytest.fixture(autouse=True)
def probed() -> Iterator[None]:
    """Probe g++ for the CPU's vector instructions, as for every user."""
    with inductor_config.patch({"cpp.vec_isa_ok": None}):
        yield


def test_cpp_compiler_is_not_required_and_asked_only_for_its_version(tmp_path: Path) -> None:
    """Explore without a compiler, and then with one, in a fresh process with empty caches."""
    calls, compiler, empty = tmp_path / "calls", tmp_path / "g++", tmp_path / "bin"
    empty.mkdir()
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {calls}\necho "g++ 12.2.0"\n')
    compiler.chmod(0o755)
    settings = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    settings.pop("CXX", None)
    settings.pop("TORCHINDUCTOR_VEC_ISA_OK", None)
    command = [sys.executable, "-c", EXPLORED, str(empty), f"{tmp_path}:{os.environ['PATH']}"]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.stdout == 2 * "['kernels[0/0 forward]', 'kernels[0/0 backward]'] []\n", done.stderr
    assert not calls.exists() or set(calls.read_text().split("\n")) <= {"--version", ""}


def test_assumed_cpu_isa_is_reset() -> None:
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    before = cpu_vec_isa.valid_vec_isa_list
    truths = [vars(type(isa)).get("__bool__") for isa in cpu_vec_isa.supported_vec_isa_list]
    explore(torch.relu, (torch.randn(8),), options=Options(target="cpu"))
    assert cpu_vec_isa.valid_vec_isa_list is before
    assert before.cache_info().currsize == 0
    assert [vars(type(isa)).get("__bool__") for isa in cpu_vec_isa.supported_vec_isa_list] == truths


@pytest.mark.needs("g++")
def test_code_matches_a_real_build() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).train(), torch.randn(4, 8)
    generated, built = (
        explore(model, (x,), options=Options(target="cpu", time=time)).record for time in (False, "default")
    )
    assert [a.text for a in generated.of_stage("kernels")] == [a.text for a in built.of_stage("kernels")]
    assert cpu_vec_isa.valid_vec_isa_list.cache_info().currsize == 1
