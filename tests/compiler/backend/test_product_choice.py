"""A matmul and the kernel after it as one Triton kernel or as two steps: the choice with mode="max-autotune"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.backend import tcompile
from compiler.backend.cpp.emit import Code
from compiler.backend.inspect.inspection import Inspection
from compiler.backend.ir import BackendError, Extern, Kernel, MatmulKernel, Program
from compiler.backend.passes.context import Context
from compiler.backend.passes.matmuls import split_fused_matmul, with_alternatives
from compiler.backend.passes.verify import verify
from compiler.backend.runtime import tune
from compiler.backend.runtime.build_triton import Wanted, specify_kernel
from compiler.backend.runtime.launch import Assumed, Launcher
from compiler.backend.runtime.on_gpu import OnGpu
from compiler.backend.triton.emit import emit
from compiler.torch_api.cuda_launch import Loaded
from tests.compiler.backend.test_triton_products import LINEAR, gelu, numbers, stages

pytest.importorskip("triton")


def alternatives(call: Inspection) -> tuple[Program, Context, list[Wanted]]:
    """All kernels of a call, in all configurations."""
    program, ctx = call.graph.stages.last, call.graph.context(call.thresholds)
    code = emit(with_alternatives(replace(program, steps=program.kernels, frees=()), ctx), ctx)
    kernels = [(function, config) for function in code.functions for config in function.configs]
    return program, ctx, [specify_kernel(program, function, config, Assumed(), 0) for function, config in kernels]


def test_kernels_of_identical_layers_are_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(12)]
    model = torch.nn.Sequential(*layers).bfloat16()
    program, _, kernels = alternatives(stages(model, numbers(128, 64, dtype=torch.bfloat16)))
    assert [type(step) for step in program.steps] == [MatmulKernel] * 12
    configs = {function: {repr(kernel.config) for kernel in kernels if kernel.function.name.startswith(function)}
               for function in ("kernel_addmm", "kernel_after")}  # fmt: skip
    assert len({kernel.job.key() for kernel in kernels}) == sum(map(len, configs.values()))


LOADED = Loaded(1, 4, 0, "OO", 0)


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _=None: "a GPU that is not here")
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("apart_takes", [0.5e-5, 2e-5])
def test_faster_choice_is_kept_on_disk(monkeypatch: pytest.MonkeyPatch, apart_takes: float) -> None:
    program, ctx, kernels = alternatives(stages(gelu, *LINEAR))
    [product] = program.kernels
    assert isinstance(product, MatmulKernel)
    own = [(kernel, LOADED) for kernel in kernels if kernel.function.kernel == product.name]
    [*_, rest] = [(kernel, LOADED) for kernel in kernels if kernel.function.kernel == f"after_{product.name}"]
    times = iter([1e-5 if number == 1 else 3e-5 for number in range(len(own))])
    monkeypatch.setattr(tune, "_seconds", lambda *_: next(times))
    monkeypatch.setattr(tune, "_seconds_of_parts", lambda *_: apart_takes)
    for _ in range(2):  # the second time nothing is measured
        chosen = tune.fastest_matmul(program, product, own, rest, ctx, 0)
        assert chosen is (own[1] if apart_takes > 1e-5 else None)
        said = ctx.decisions[-1]
        assert said.verdict == ("tuned" if chosen else "refused")
        assert said.subjects == (product.made, product.targets[-1])
        assert "10.0 µs" in said.why
        assert f"{1e6 * apart_takes:.1f} µs" in said.why


@pytest.mark.usefixtures("_gpu")
def test_other_sizes_are_timed_again() -> None:
    """The code is the same for 512 rows and for 1024, because no mask contains the number of rows."""
    keys, jobs = set(), set()
    for rows in (512, 1024):
        _, ctx, [kernel, *_] = alternatives(stages(gelu, numbers(rows, 32, dtype=torch.bfloat16), *LINEAR[1:]))
        keys.add(tune._key([(kernel, LOADED)], ctx, 0))
        jobs.add(kernel.job.source)
    assert len(jobs) == 1
    assert len(keys) == 2


@pytest.mark.usefixtures("_gpu")
def test_both_choices_are_timed_at_real_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matmul is PyTorch's, and its result is the input of the kernel after it."""
    program, ctx, kernels = alternatives(stages(gelu, *LINEAR))
    [product] = program.kernels
    assert isinstance(product, MatmulKernel)
    launched: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tune, "launch", lambda: lambda *given: launched.append(given))
    monkeypatch.setattr(tune, "raw_stream", lambda: lambda _: 7)
    monkeypatch.setattr(tune, "_memory", partial(on_cpu, tune._memory))
    monkeypatch.setattr(tune, "_measure", lambda run, _device: run() or 1.0)
    kernel = next(kernel for kernel in kernels if kernel.function.kernel == product.name)
    assert tune._seconds(program, kernel, LOADED, ctx, 0) == 1.0
    blocks = kernel.config.blocks
    grid = (-(-64 // blocks["MBLOCK"]), -(-48 // blocks["NBLOCK"]), 1)
    assert launched[-1][1:4] == grid
    assert len(launched[-1][7]) == len(kernel.function.buffers) == 4
    rest = next(kernel for kernel in kernels if kernel.function.kernel == f"after_{product.name}")
    assert tune._seconds_of_parts(program, product, (rest, LOADED), ctx, 0) == 1.0
    assert len(launched[-1][7]) == 2


def on_cpu(memory: Callable[..., Tensor], program: Program, name: str, ctx: Context, _device: int) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "zeros", lambda size, dtype, device: torch.ones(size, dtype=dtype))  # noqa: ARG005
        return memory(program, name, ctx, 0)


def test_split_matmul_is_extern_call_then_kernel() -> None:
    call = stages(lambda *args: gelu(*args).view(8, 8, 48) + 1, *LINEAR)
    program, ctx = call.graph.stages.last, call.graph.context(call.thresholds)
    [product] = program.kernels
    split = split_fused_matmul(program, {product.name}, ctx)
    verify(split)
    first, second = split.steps
    assert isinstance(first, Extern)
    assert isinstance(second, Kernel)
    assert not isinstance(second, MatmulKernel)
    assert len(second.ranges) == 1, "it walks memory as any kernel does"
    assert split.by_name[second.writes[0]].reuses == first.targets[0], "memory is planned anew"
    assert not ctx.decisions
    assert split_fused_matmul(program, (), ctx) is program


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("faster", [True, False])
def test_call_launches_the_chosen_kernel(monkeypatch: pytest.MonkeyPatch, *, faster: bool) -> None:
    """`OnGpu` with a fake GPU: one kernel with the matmul, or PyTorch's matmul and the kernel after it."""
    call = stages(gelu, *LINEAR)
    program, ctx = call.graph.stages.last, call.graph.context(call.thresholds)
    code = emit(with_alternatives(replace(program, steps=program.kernels, frees=()), ctx), ctx)
    texts: list[str] = []
    monkeypatch.setattr("compiler.backend.runtime.on_gpu.Builds", NoBuilds)
    monkeypatch.setattr("compiler.backend.runtime.on_gpu._driver", dict)
    monkeypatch.setattr(Launcher, "compile", lambda self, _names: texts.append(self.text))
    monkeypatch.setattr(tune, "fastest", lambda _program, candidates, *_: candidates[0])
    monkeypatch.setattr(tune, "_seconds", lambda *_: 1e-5)
    monkeypatch.setattr(tune, "_seconds_of_parts", lambda *_: 2e-5 if faster else 0.5e-5)
    there = OnGpu(program, code, Code("", ()), ctx, 0, tuned=True)
    there.build(there.expected, *there.begun[there.expected])
    [text] = texts
    assert text.count("launch(kernel_") == 1
    assert ("call_aten_addmm_default(" in text) is not faster
    assert ("launch(kernel_after_" in text) is not faster
    assert [said for said in ("shared memory", "not take it") for found in ctx.decisions if said in found.why] == [
        "shared memory",
        "not take it",
    ]


class NoBuilds:
    """A builder of empty binaries; the first two configurations of a matmul fail."""

    def __init__(self) -> None:
        self.errors: list[Exception] = [BackendError("Triton did not take it"), torch.OutOfMemoryError("shared memory")]

    @staticmethod
    def start(_kernels: Iterator[Wanted]) -> NoBuilds:
        return NoBuilds()

    def load(self, _kernel: Wanted, _device: int) -> Loaded:
        if self.errors:
            raise self.errors.pop()
        return LOADED


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_gpu_times_both_choices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str) -> None:
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(tmp_path))
    said: list[str] = []
    real = tune.fastest_matmul

    def heard(program: Program, product: MatmulKernel, own: Any, rest: Any, ctx: Context, device: int) -> Any:
        chosen = real(program, product, own, rest, ctx, device)
        said.append(ctx.decisions[-1].why)
        return chosen

    monkeypatch.setattr(tune, "fastest_matmul", heard)
    given = [numbers(*shape, dtype=torch.bfloat16).cuda() for shape in ((512, 768), (3072, 768), (3072,))]
    torch._dynamo.reset()
    with torch.no_grad():
        call = torch.compile(gelu, backend=partial(tcompile, mode=mode))
        for _ in range(3):
            torch.testing.assert_close(call(*given), gelu(*given), rtol=0.02, atol=0.02)
    [why] = said
    assert why.count("µs") == 2
    assert "aten.addmm" in why
