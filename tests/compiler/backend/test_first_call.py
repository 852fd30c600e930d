"""Unnecessary work that a first call skips, unless somebody reads what it makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIRST_STEP = """
import sys, torch
import torch._dynamo.funcname_cache as funcname_cache
printed = []
printer = torch.fx.GraphModule.print_readable
torch.fx.GraphModule.print_readable = lambda *args, **kwargs: printed.append(1) or printer(*args, **kwargs)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
def step(backend):
    compiled = torch.compile(lambda x: torch.sigmoid(model(x)) * model(x).exp() + model(x).exp(), backend=backend)
    compiled(torch.randn(8, 4)).sum().backward()
    print("torch.distributed.tensor.experimental._func_map" in sys.modules, bool(funcname_cache.cache))
step("tcompile")
lowering = ("lowering", "ir", "pattern_matcher", "scheduler")
print([name for name in lowering if f"torch._inductor.{name}" in sys.modules], len(printed))
step("eager")
"""

LOGGED = """
import torch
torch._logging._init_logs()  # the variable is new to this process
torch.compile(lambda x: x.sin().exp(), backend="tcompile")(torch.ones(8, requires_grad=True)).sum().backward()
"""


def test_first_call_needs_no_import_skips_unread_work_and_prints_nothing(tmp_path: Path) -> None:
    """Sharded tensors and function names, which torch's own backend has it import and read; Inductor's lowerings."""
    done = subprocess.run([sys.executable, "-c", FIRST_STEP], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False", "[] 0", "True True"]


def test_torch_logs_prints_graphs(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LOGS", "aot_graphs,aot_joint_graph")
    said = subprocess.run([python, "-c", LOGGED], capture_output=True, text=True, check=True).stderr
    assert "Forward graph" in said
    assert "Joint graph" in said
