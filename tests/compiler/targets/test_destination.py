"""The target of the generated code: the tensors' GPU, the named target, or an H100 that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler.engine import Exploration, explore
from compiler.record.options import Options
from compiler.targets.destination import DEFAULT_TARGET, destination

ROOT = Path(__file__).parents[3]
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
WITHOUT_TRITON = """
import json, sys
sys.modules["triton"] = None  # what `import triton` finds where there is no wheel for the platform
import torch
from compiler.engine import Exploration
from compiler.option_checks import parse_options
model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.randn(4, 8)
def found(asked):
    with Exploration(parse_options(target=asked)) as exploration:
        exploration.compile(model)(x).sum().backward()
    record = exploration.record
    return {
        "stages": list(dict.fromkeys(artifact.stage for artifact in record.artifacts)),
        "languages": sorted({kernel.language for kernel in record.kernels}),
        "problems": [(problem.stage, problem.reason) for problem in record.problems],
        "target": record.target,
    }
print(json.dumps({asked: found(asked) for asked in sys.argv[1:]}))
"""
ASKED = ("", "mi300x")


@pytest.mark.parametrize(
    ("options", "device", "name"),
    [
        (Options(), CPU, DEFAULT_TARGET),
        (Options(mode="max-autotune"), CPU, DEFAULT_TARGET),
        (Options(target="cpu"), CPU, "cpu"),
        (Options(target="a100"), CPU, "a100"),
        (Options(target="a100"), CUDA, "a100"),
        (Options(), CUDA, "cuda"),
        (Options(time=True), CPU, "cpu"),
        (Options(check=True), CPU, "cpu"),
        (Options(backend="aot_eager"), CPU, "cpu"),
    ],
)
def test_options_and_devices_decide_the_target(options: Options, device: torch.device, name: str) -> None:
    found = destination(options, [CPU, device])
    assert found.name == name
    assert (found.gpu is not None) == (name in ("h100", "a100"))
    assert found.problem is None


def test_default_target_is_h100() -> None:
    record = explore(torch.softmax, (torch.randn(8, 16), -1)).record
    assert record.target == "h100"
    assert {kernel.language for kernel in record.kernels} == {"triton"}
    assert "cc=90" in record["kernels"].text


def test_cpu_target_emits_cpp() -> None:
    record = explore(torch.softmax, (torch.randn(8, 16), -1), options=Options(target="cpu")).record
    assert record.target == "cpu"
    assert {kernel.language for kernel in record.kernels} == {"cpp"}


def test_user_torch_compile_has_the_same_target() -> None:
    with Exploration() as exploration:
        torch.compile(torch.sigmoid)(torch.randn(8))
    assert exploration.record.target == "h100"
    assert {kernel.language for kernel in exploration.record.kernels} == {"triton"}


@pytest.fixture(scope="module")
def without_triton(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of explorations for each target in a process without Triton."""
    script = tmp_path_factory.mktemp("without") / "explored.py"
    script.write_text(WITHOUT_TRITON)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *ASKED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("asked", ASKED)
def test_missing_triton_is_one_problem_other_stages_remain(
    asked: str, without_triton: dict[str, dict[str, Any]]
) -> None:
    found = without_triton[asked]
    wanted = (
        "source",
        "bytecode",
        "captured",
        "joint",
        "forward",
        "backward",
        "post_grad",
        "ir",
        "fused_ir",
        "kernels",
    )
    assert set(wanted) <= set(found["stages"])
    assert found["languages"] == ["aten", "cpp"]
    assert found["target"] == "cpu"
    ((stage, reason),) = found["problems"]
    assert stage == "ttir"
    assert reason.startswith("Triton is not installed here")
