"""Kernels that can't be compiled, compilers that crash, users who interrupt: messages, and no leftovers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from compiler.binary import CompilationInterrupted, compile_incrementally, compile_record, worker
from compiler.binary import workers as processes
from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Environment
from compiler.targets import target
from tests.compiler.hand_written import many, pointwise, record_of, transpose, workers

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize(("gpu", "stage"), [("t4", "sass"), ("mi300x", "amdgcn")])
def test_excess_shared_memory_is_detected_before_launch(gpu: str, stage: str) -> None:
    import triton

    if gpu == "mi300x" and triton.__version__.startswith("3.6."):
        pytest.skip("Triton 3.6 transposes this block for AMD in 16448 bytes")
    record = compile_record(record_of(transpose(), gpu=gpu))
    (problem,) = record.problems
    assert problem.stage == stage
    title = target(gpu).title
    assert problem.reason == (
        f"triton_tem_0: a block with 131072 bytes of shared memory does not fit on {title}: 65536 are the most"
    )
    assert "can't be launched" in problem.hint
    (binary,) = record.binaries
    assert (binary.shared_memory, binary.occupancy) == (131072, None)
    assert record[stage].text


def test_larger_gpu_has_enough_shared_memory() -> None:
    record = compile_record(record_of(transpose()))
    assert not record.problems
    assert record.binaries[0].limiter == "shared memory"


def test_ptxas_error_is_reported_and_earlier_stages_stay() -> None:
    unknown = "tmp1 = tl.inline_asm_elementwise('frobnicate.f32 $0, $1;', '=f,f', [tmp0], tl.float32, True, 1)"
    record = compile_record(record_of(pointwise(body=unknown), pointwise("triton_poi_1"), gpu="t4"))
    (problem,) = record.problems
    assert problem.stage == "sass"
    assert re.match(r"triton_poi_0: ptxas line \d+; error\s+: ", problem.reason)
    assert "frobnicate" in problem.reason
    assert [artifact.title for artifact in record.of_stage("sass")] == ["triton_poi_1"]
    line = re.search(r"line (\d+)", problem.reason)
    assert line
    assert "frobnicate" in record["ptx[0/0 inference triton_poi_0]"].text.split("\n")[int(line[1]) - 1]


@pytest.mark.parametrize("name", ["t4", "a100"])
def test_unsupported_gpu_dtype_is_reported(name: str) -> None:
    record = compile_record(record_of(pointwise(body="tmp1 = tmp0.to(tl.float8e4nv).to(tl.float32)"), gpu=name))
    (problem,) = record.problems
    assert problem.stage == "ttir"
    assert "line 23, `tmp1 = tmp0.to(tl.float8e4nv).to(tl.float32)`: " in problem.reason
    assert "type fp8e4nv not supported in this architecture" in problem.reason
    assert "has no instructions for this 8-bit format" in problem.hint


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("tmp1 = = tmp0", "SyntaxError: invalid syntax (triton_poi_0.py, line 23)"),
        ("tmp1 = tl.loaf(tmp0)", "line 23, `tmp1 = tl.loaf(tmp0)`"),
        ("tmp1 = tl.sum(tmp9, 0)", "line 23, `tmp1 = tl.sum(tmp9, 0)`: NameError('tmp9 is not defined')"),
        ("tmp1 = tl.dot(tmp0, tmp0)", "line 23"),
    ],
)
def test_source_errors_are_reported_with_their_line(body: str, said: str) -> None:
    record = compile_record(record_of(pointwise(body=body)))
    (problem,) = record.problems
    assert (problem.stage, problem.graph) == ("ttir", "0/0")
    assert said in problem.reason


def test_compiler_crash_affects_one_kernel() -> None:
    crash = "import os, sys\nif 'compiler.engine' not in sys.modules:\n    os.kill(os.getpid(), 11)\n"
    name, source = pointwise("triton_poi_1")
    broken = (name, source.replace("triton_helpers.set_driver_to_gpu()\n", crash))
    record = compile_record(record_of(pointwise("triton_poi_0"), broken, pointwise("triton_poi_2")), workers=1)
    assert [artifact.title for artifact in record.of_stage("sass")] == ["triton_poi_0", "triton_poi_2"]
    (problem,) = record.problems
    assert "triton_poi_1" in problem.reason
    assert "the compiler's process died of SIGSEGV" in problem.reason


def test_worker_that_fails_to_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "HELPERS", "not.there.at.all")
    (problem,) = compile_record(record_of(pointwise())).problems
    assert "the compiler's process ended with status 1" in problem.reason
    assert "ModuleNotFoundError: No module named 'not" in problem.reason


def test_machine_that_cannot_start_processes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    (problem,) = compile_record(record_of(pointwise())).problems
    assert "no process could be started to compile kernels in" in problem.reason
    assert "/no/python" in problem.reason


def test_worker_can_import_the_whole_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "whole" / "inner" / "runtime"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent, inner.parents[1]):
        (folder / "__init__.py").touch()
    (inner.parents[1] / "__init__.py").write_text("value = 3\n")
    (inner / "helpers.py").write_text("import whole\nvalue = whole.value\n")
    monkeypatch.syspath_prepend(tmp_path)
    worker._import_helpers("whole.inner.runtime.helpers")
    assert sys.modules["whole.inner.runtime.helpers"].value == 3
    for name in [name for name in sys.modules if name.partition(".")[0] == "whole"]:
        del sys.modules[name]


def test_interrupt_keeps_finished_kernels_and_no_process() -> None:
    record = many(30)
    seen: list[int] = []

    def interrupt(done: int, _total: int) -> None:
        seen.append(len(workers()))
        if done == 3:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(CompilationInterrupted) as caught:
        compile_record(record, workers=2, listener=interrupt)
    done = caught.value.record
    assert 3 <= len(done.binaries) < 30
    assert len(done.of_stage("sass")) == len(done.binaries)
    assert any(seen)
    assert not workers()
    rest = [kernel.id for kernel in record.kernels[:3]]
    assert len(compile_record(done, kernels=rest).binaries) >= 3


def test_closing_early_stops_the_workers() -> None:
    steps = compile_incrementally(many(20), workers=2)
    first = next(steps)
    assert len(first.binaries) == 1
    assert workers()
    steps.close()
    assert not workers()


def test_worker_exits_with_its_parent() -> None:
    """If the user's process is killed, its workers see the end of their input."""
    code = (
        "import os, psutil, signal\n"
        "from compiler.binary import compile_incrementally\n"
        "from tests.compiler.hand_written import many\n"
        "steps = compile_incrementally(many(30), workers=2)\n"
        "next(steps)\n"
        "print(*[child.pid for child in psutil.Process().children()], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = str(Path(__file__).parents[3])
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TMPDIR": folder, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
        pids = [int(pid) for pid in ran.stdout.split()]
        assert len(pids) == 2, ran.stderr
        deadline = time.monotonic() + 30
        while any(map(_runs, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("gpu", "properties", "expected"),
    [
        ("NVIDIA H200", "multi_processor_count=132, cc=90", "h200"),
        ("NVIDIA A10G", "multi_processor_count=58, cc=89", "l4"),
        ("", "multi_processor_count=108, cc=80", "a100"),
        ("", "multi_processor_count=66, cc=75", "t4"),
    ],
)
def test_record_of_a_former_gpu_compiles(gpu: str, properties: str, expected: str) -> None:
    name, source = pointwise()
    record = record_of((name, source.replace("multi_processor_count=132, cc=90", properties)), gpu="cuda")
    (binary,) = compile_record(record.with_fields(environment=Environment(gpu=gpu))).binaries
    assert binary.target == expected


def test_unknown_gpu_is_reported() -> None:
    name, source = pointwise()
    record = record_of((name, source.replace("cc=90", "cc=61")), gpu="cuda")
    (problem,) = compile_record(record.with_fields(environment=Environment(gpu="NVIDIA Titan X"))).problems
    assert "NVIDIA Titan X, which is not in the table of GPUs" in problem.reason
    assert "h100" in problem.hint


def test_cpp_kernels_are_not_compiled_by_triton() -> None:
    record = compile_record(
        explore(lambda x: torch.relu(x) + 1, (torch.randn(8),), options=parse_options(target="cpu")).record,
        stages=("ptx",),
    )
    (problem,) = record.problems
    assert problem.stage == "ptx"
    assert "C++" in problem.reason
    assert "--target" in problem.hint


def test_amd_has_no_sass() -> None:
    record = compile_record(record_of(pointwise(), gpu="mi300x"), stages=["sass", "amdgcn"])
    assert [problem.reason for problem in record.problems] == ["there is no SASS for AMD Instinct MI300X 192 GB"]
    assert record.of_stage("amdgcn")


def test_missing_triton_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.binary import compiling

    monkeypatch.setattr(compiling, "has_triton", lambda: False)
    (problem,) = compile_record(record_of(pointwise())).problems
    assert problem.reason == "Triton is not installed, so kernels stay source code"


def test_record_without_sources_is_reported() -> None:
    record = record_of(pointwise())
    (problem,) = compile_record(record.with_fields(artifacts=())).problems
    assert "the source of triton_poi_0 is not in this record" in problem.reason


def test_missing_kernel_is_reported() -> None:
    (problem,) = compile_record(record_of(pointwise()), kernels=["triton_poi_7"]).problems
    assert problem.reason == "this record has no Triton kernel 'triton_poi_7'; it has: triton_poi_0"
