"""Unnecessary work that a first call skips."""

from __future__ import annotations

import os
import subprocess
import sys

FIRST_STEP = """
import sys, torch
printed = []
printer = torch.fx.GraphModule.print_readable
torch.fx.GraphModule.print_readable = lambda *args, **kwargs: printed.append(1) or printer(*args, **kwargs)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
compiled = torch.compile(lambda x: torch.sigmoid(model(x)) * model(x).exp() + model(x).exp(), backend="tcompile")
compiled(torch.randn(8, 4)).sum().backward()
lowering = ("lowering", "ir", "pattern_matcher", "scheduler")
print([name for name in lowering if f"torch._inductor.{name}" in sys.modules], len(printed))
"""


def first_step(**variables: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), done.stderr


def test_first_call_skips_inductor_lowerings_and_prints_nothing() -> None:
    assert first_step()[0] == "[] 0"


def test_torch_logs_prints_graphs() -> None:
    _, said = first_step(TORCH_LOGS="aot_graphs,aot_joint_graph")
    assert "Forward graph" in said
    assert "Joint graph" in said
