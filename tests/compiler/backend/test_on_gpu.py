"""The call of a program on a GPU: its text, and binaries built in parallel and cached on disk. Needs no GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from compiler import open as opened
from compiler.backend.ir import Buffer, Kernel, Loop, Program
from compiler.backend.ir.expr import Load, operation
from compiler.backend.ir.index import Index, Var
from compiler.backend.runtime import build_triton, disk_cache
from compiler.backend.runtime.build_triton import Builds, specify_kernel
from compiler.backend.runtime.launch import Assumed, Launcher
from compiler.backend.triton.emit import TritonCode, canonical_program, emit
from compiler.binary.jobs import Job
from compiler.binary.workers import Crew
from compiler.torch_api.cuda_launch import Loaded

pytest.importorskip("triton")


@pytest.fixture
def _hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Use a GPU that is not here, and an empty cache."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(tmp_path))
    yield
    build_triton.crew().stop()


def scaled(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1)


def program(fn: Callable[[Tensor], Tensor] = scaled, *, dynamic: bool = False) -> tuple[Program, TritonCode]:
    call = opened(fn, torch.randn(64, 128), dynamic=dynamic).on("h100")
    graph = call.graph
    found = graph.stages.last
    return found, emit(found, graph.context(call.thresholds))


def text(fn: Callable[[Tensor], Tensor] = scaled, *, dynamic: bool = False, assumed: Assumed | None = None) -> str:
    found, code = program(fn, dynamic=dynamic)
    return Launcher(found, {function.kernel: function for function in code.functions}, assumed=assumed).text


def test_pointers_are_read_once_and_kernel_launches_once() -> None:
    lines = text().splitlines()
    assert sum(".data_ptr()" in line for line in lines) == 2
    assert sum("launch(" in line for line in lines) == 1
    assert "if current_device() != 0:" in text()


def test_possibly_too_large_two_axis_grid_is_flattened() -> None:
    (line,) = [line for line in text(lambda x: x.t().contiguous() * 2, dynamic=True).splitlines() if "launch(" in line]
    assert ", -(-(s77) // 64) * -(-(s27) // 64), 1, 1, " in line


def test_assumptions_are_checked_before_any_mutation() -> None:
    lines = [line.strip() for line in text(dynamic=True, assumed=Assumed(True, frozenset({"s27"}))).splitlines()]
    check = lines.index("if (at_arg2_1) & 15 or not s77 & 15 or s27 & 15:")
    assert lines[check + 1] == "return again(args, ((at_arg2_1) & 15 == 0, s77 & 15 == 0, s27 & 15 == 0, ))"
    assert check < lines.index("args.clear()")


def test_call_checks_are_read_in_order() -> None:
    found, _ = program(dynamic=True)
    first, second = sorted(Assumed.from_checks(found, (True, True, True), inputs=True).multiples)
    assert {first, second} == {"s27", "s77"}
    assert Assumed.from_checks(found, (False, False, False), inputs=True) == Assumed(False, frozenset())
    assert Assumed.from_checks(found, (True, False), inputs=False).aligned


@pytest.mark.usefixtures("_hopper")
def test_binary_is_compiled_once_then_loaded_from_disk() -> None:
    found, code = program()
    kernels = [specify_kernel(found, function, function.configs[0], Assumed(), 0) for function in code.functions]
    (made,) = Builds.start(kernels).made.values()
    assert made.result(60).error == ""
    build_triton.crew().stop()
    (kept,) = Builds.start(kernels).made.values()
    assert kept.done()
    assert not build_triton.crew().is_awake
    for fact in ("function", "shared_memory", "threads", "spare"):
        assert getattr(kept.result(), fact) == getattr(made.result(), fact)


def layers(x: Tensor, weight: Tensor) -> Tensor:
    for _ in range(12):
        x = torch.layer_norm(x @ weight, (128,)).relu()
    return x


@pytest.mark.usefixtures("_hopper")
def test_kernels_of_identical_layers_compile_once() -> None:
    call = opened(layers, torch.randn(64, 128), torch.randn(128, 128)).on("h100")
    found = call.graph.stages.last
    code = emit(found, call.graph.context(call.thresholds))
    kernels = [specify_kernel(found, function, function.configs[0], Assumed(), 0) for function in code.functions]
    assert len(kernels) == 12
    assert len({kernel.job.name for kernel in kernels}) == len({kernel.job.key() for kernel in kernels}) == 1
    assert "test_on_gpu.py" in code.text
    assert "test_on_gpu.py" not in kernels[0].job.source, "comments are for readers"
    (made,) = Builds.start(kernels).made.values()
    assert made.result(60).error == ""


def dropping(x: Tensor) -> Tensor:
    for _ in range(4):
        x = torch.nn.functional.dropout(x, 0.25).relu() @ x
    return x


@pytest.mark.usefixtures("_hopper")
def test_kernels_with_different_seeds_share_one_binary() -> None:
    call = opened(dropping, torch.randn(128, 128)).on("h100")
    found = call.graph.stages.last
    code = emit(found, call.graph.context(call.thresholds))
    kernels = [specify_kernel(found, function, function.configs[0], Assumed(), 0) for function in code.functions]
    seeds = [kernel.function.buffers.index("random_seeds_cuda_0") for kernel in kernels]
    assert [kernel.starts[place] for kernel, place in zip(kernels, seeds, strict=True)] == [0, 8, 16, 24]
    assert [sum(kernel.starts) for kernel in kernels] == [0, 8, 16, 24]
    assert "tl.load(random_seeds_cuda_0_ptr + 3)" in code.text
    assert len({kernel.job.key() for kernel in kernels}) == 1
    assert kernels[0].job.arguments.count("divisibility") == len(kernels[0].function.buffers) - 1, "a seed may be odd"
    configs = {
        kernel.function.kernel: (kernel.config, Loaded(1, 4, 0, "", 0, starts=kernel.starts)) for kernel in kernels
    }
    lines = Launcher(found, {function.kernel: function for function in code.functions}, loaded=configs).text
    assert [f"at_random_seeds_cuda_0 + {8 * number}, " in lines for number in range(5)] == [False, *[True] * 3, False]


def test_buffer_read_at_several_offsets_gets_base_pointer() -> None:
    x, (f32, sizes) = Var("i0", Index.of(8)), (torch.float32, (Index.of(8),))
    a, b, first = (Load(name, (Index.of(place),), f32) for name, place in (("a", 2), ("b", 0), ("b", 1)))
    every = Load("c", (Index.of(x),), f32)
    values = {"d": operation("add", a, b), "e": operation("mul", operation("mul", first, every), a)}
    loops = tuple(Loop(name, (x,), (Index.of(x),), value) for name, value in values.items())
    buffers = tuple(Buffer(name, f32, sizes, (Index.of(1),)) for name in "abcde")
    kernel = Kernel("f", (x,), (), loops)
    _, starts = canonical_program(kernel, Program("", buffers, ("a", "b", "c"), (kernel,), ()))
    assert starts == {"a": 2}


@pytest.mark.usefixtures("_hopper")
def test_incomplete_cache_file_counts_as_missing() -> None:
    found, code = program()
    kernel = specify_kernel(found, code.functions[0], code.functions[0].configs[0], Assumed(), 0)
    (made,) = Builds.start([kernel]).made.values()
    assert made.result(60).error == ""
    (binary,) = disk_cache.folder().glob("*.cubin")
    binary.write_bytes(b"half")
    (again,) = Builds.start([kernel]).made.values()
    assert again.result(60).error == ""
    assert binary.stat().st_size > 4


@pytest.mark.usefixtures("_hopper")
def test_unaligned_pointers_get_different_code() -> None:
    found, code = program()
    function = code.functions[0]
    jobs = [specify_kernel(found, function, function.configs[0], Assumed(aligned), 0).job for aligned in (True, False)]
    assert jobs[0].arguments.count("divisibility") == 2
    assert jobs[1].arguments.count("divisibility") == 1, "memory of our own is aligned"
    assert jobs[0].key() != jobs[1].key()


def test_triton_error_is_reported_verbatim() -> None:
    source = "import triton\nimport triton.language as tl\n@triton.jit\ndef kernel(p):\n    tl.store(p, wrong)\n"
    arguments = repr(({"p": "*fp32"}, {}, {}))
    crew = Crew(1)
    try:
        output = crew.submit(Job("kernel", "<k>", source, arguments, {}, "cuda", 90, 32, to_run=True)).result(60)
        assert "wrong is not defined" in output.error
    finally:
        crew.stop()


def test_stopped_crew_leaves_no_files_and_can_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = "import triton\nimport triton.language as tl\n@triton.jit\ndef kernel(p):\n    tl.store(p, 1.0)\n"
    job = Job("kernel", "<k>", source, repr(({"p": "*fp32"}, {}, {})), {}, "cuda", 90, 32, to_run=True)
    crew = Crew(1)
    for _ in range(2):
        assert crew.submit(job).result(60).binary
        assert [*tmp_path.iterdir()]
        crew.stop()
        assert not [*tmp_path.iterdir()]


def test_dead_process_is_reported_and_replaced() -> None:
    source = "import os\nos.kill(os.getpid(), 9)\n"
    good = "import triton\nimport triton.language as tl\n@triton.jit\ndef kernel(p):\n    tl.store(p, 1.0)\n"
    arguments = repr(({"p": "*fp32"}, {}, {}))
    crew = Crew(1)
    try:
        dead = crew.submit(Job("kernel", "<k>", source, arguments, {}, "cuda", 90, 32, to_run=True)).result(60)
        assert "SIGKILL" in dead.error
        alive = crew.submit(Job("kernel", "<k>", good, arguments, {}, "cuda", 90, 32, to_run=True)).result(60)
        assert alive.error == ""
        assert alive.binary
    finally:
        crew.stop()
