"""The user's Triton kernels, explored without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.utils._triton as triton_probes
from torch import Tensor
from torch.library import triton_op, wrap_triton

import compiler
from compiler import recorder
from compiler.engine import Exploration, explore
from compiler.record.options import Options
from compiler.timing.estimates import estimate
from compiler.torch_api.settings import known_options
from compiler.torch_api.user_triton import NoGpuError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


@triton.jit
def twice(x):  # type: ignore[no-untyped-def]
    return x * 2


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    added = tl.load(x_ptr + at, mask=inside) + twice(tl.load(y_ptr + at, mask=inside))
    tl.store(out_ptr + at, added, mask=inside)


def launch(kernel: Any, x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), BLOCK=64, num_warps=4)
    return out


@triton_op("tcompile_tests::add_twice", mutates_args={})
def add_twice(x: Tensor, y: Tensor) -> Tensor:
    return launch(wrap_triton(add_kernel), x, y)


def called(x: Tensor, y: Tensor) -> Tensor:
    return launch(add_kernel, x.relu(), y).sin() + 1


def as_operator(x: Tensor, y: Tensor) -> Tensor:
    return add_twice(x.relu(), y).sin() + 1


@triton.jit
def opaque_kernel(out_ptr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    tl.store(out_ptr, tl.full((), 1, KIND))


def with_a_type(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    opaque_kernel[(1,)](out, KIND=tl.float32)
    return out + x


@pytest.mark.parametrize("fn", [called, as_operator])
def test_user_kernels_are_captured_without_a_gpu(
    fn: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LONG_SECONDS", math.inf)  # on a busy machine the call takes long
    x, y = torch.linspace(-1, 1, 100), torch.linspace(1, 3, 100)
    before = triton.JITFunction.run, triton.runtime.driver._active
    found = explore(fn, (x, y), options=Options(stages=("inference", "post_grad", "kernels", "ptx")))
    torch.testing.assert_close(found.value, (x.relu() + 2 * y).sin() + 1)
    assert not found.record.breaks
    assert "triton_kernel_wrapper" in next(a.text for a in found.record.artifacts if a.stage == "inference")
    assert [problem.reason for problem in found.record.problems] == [
        "there is no GPU here, so the values that the Triton kernel add_kernel computes are those of Triton's "
        "interpreter on the CPU"
    ]
    assert (triton.JITFunction.run, triton.runtime.driver._active) == before
    assert not triton_probes.has_triton()
    (kernel,) = [kernel for kernel in found.record.kernels if kernel.category == "user"]
    assert (kernel.name, kernel.language, kernel.calls, kernel.bytes) == ("add_kernel_0", "triton", 1, 1200)
    artifacts = {artifact.id: artifact for artifact in found.record.artifacts}
    first, last = kernel.lines
    source = artifacts[kernel.artifact].text.split("\n")[first - 1 : last]
    assert "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)" in source
    (line,) = [entity for entity in artifacts[kernel.artifact].entities if entity.label.startswith("added = ")]
    origins = {entity.id: entity for artifact in found.record.artifacts for entity in artifact.entities}
    call, own = (origins[origin] for origin in line.origins)
    assert str(call.attrs["file"]).endswith("test_user_triton_kernels.py")
    assert own.label == "added = tl.load(x_ptr + at, mask=inside) + twice(tl.load(y_ptr + at, mask=inside))"
    (told,) = [decision for decision in found.record.decisions if decision.pass_name == "user's Triton kernel"]
    assert told.verdict == "in place"
    assert "add_kernel writes out_ptr, in place in empty; what reads it (sin) is not fused with it" in told.why
    assert ".entry add_kernel(" in artifacts["ptx[0/0 inference add_kernel_0]"].text


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["count"])
@triton.jit
def tuned_kernel(x_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, twice(tl.load(x_ptr + at, mask=at < count)), mask=at < count)


@torch.compiler.disable
def tuned_in_place(x: Tensor) -> Tensor:
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
    return x


def captured_and_not(x: Tensor) -> Tensor:
    y = x.clone()
    tuned_kernel[(triton.cdiv(100, 64),)](y, 100)
    return tuned_in_place(y + 1)


def rows_changed(x: Tensor) -> Tensor:
    y = x * 2
    for row in (y[0], y[1]):
        tuned_kernel[(2,)](row, 100)
    return y


@pytest.mark.parametrize(
    ("backend", "name", "calls"), [("inductor", "tuned_kernel_0", 2), ("tcompile", "triton.tuned_kernel", 1)]
)
def test_bytes_are_those_of_one_call_with_a_row(backend: str, name: str, calls: int) -> None:
    record = explore(rows_changed, (torch.ones(4, 100),), options=Options(backend=backend, target="h100")).record
    found = [(kernel.calls, kernel.bytes) for kernel in record.kernels if kernel.name == name]
    assert found == [(calls, 2 * 400)] * (2 // calls)
    entities = [each for artifact in record.of_stage("kernels") for each in artifact.entities]
    assert [each.attrs["bytes"] for each in entities if each.label == name and "bytes" in each.attrs] == [2 * 400] * 2
    whole = estimate(record)
    assert whole is not None
    assert whole.bytes == sum(kernel.calls * kernel.bytes for kernel in record.kernels)


def test_tensor_that_is_given_twice_is_read_once() -> None:
    x = torch.ones(100)
    record = explore(lambda x: launch(add_kernel, x, x).sin(), (x,), options=Options(target="h100")).record
    assert [kernel.bytes for kernel in record.kernels if kernel.category == "user"] == [2 * 400]


def test_launches_outside_of_graphs_have_values() -> None:
    x = torch.linspace(-1, 1, 100)
    found = explore(captured_and_not, (x,), options=Options(stages=("captured",)))
    torch.testing.assert_close(found.value, (2 * x + 1) * 2)
    assert len(found.record.breaks) == 1


def test_failed_launches_say_there_is_no_gpu() -> None:
    reason = r"the Triton kernel opaque_kernel runs on a GPU, there is none here.*run it on a machine with a GPU"
    with Exploration(Options()) as exploration, pytest.raises(NoGpuError, match=reason):
        exploration.compile(with_a_type)(torch.ones(3))
    assert [a for a in exploration.record.artifacts if a.stage == "kernels"]
    assert "there is none here" in exploration.record.problems[0].reason


@triton.jit
def wrong_kernel(out_ptr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, undefined_name)  # noqa: F821


def with_an_error(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrong_kernel[(1,)](out)
    return out + x


def test_error_in_a_kernel_names_the_users_line() -> None:
    line = wrong_kernel.fn.__code__.co_firstlineno + 2
    with Exploration(Options()) as exploration, pytest.raises(NoGpuError, match=f"{__file__}:{line}: NameError"):
        exploration.compile(with_an_error)(torch.ones(3))


def test_our_backend_opens_a_user_kernel_without_a_gpu() -> None:
    with pytest.warns(UserWarning, match="are those of Triton's interpreter on the CPU"):
        opened = compiler.open(called, torch.linspace(-1, 1, 100), torch.linspace(1, 3, 100))
    names = [call.name for call in opened.scheduled.calls]
    assert [name for name in names if name.startswith("triton.")]


helpers = ModuleType("my_helpers")


@triton.jit
def kernel_with_a_module(out_ptr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, helpers.double(1))


def test_module_that_a_kernel_calls_is_named() -> None:
    def with_a_module(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel_with_a_module[(1,)](out)
        return out + x

    advice = "import by name what it calls, with `from my_helpers import …`"
    with Exploration(Options()) as exploration, pytest.raises(NoGpuError, match=advice):
        exploration.compile(with_a_module)(torch.ones(3))


def test_epilogue_is_fused_into_a_user_kernel_if_asked() -> None:
    name = "epilogue_fusion_user_defined_triton_kernel"
    if not known_options({name: True}):
        pytest.skip("this torch has no such setting")
    x, y = torch.linspace(-1, 1, 100), torch.linspace(1, 3, 100)
    record = explore(called, (x, y), options=Options(options={name: True}, stages=("kernels", "ptx"))).record
    [kernel] = [each for each in record.kernels if each.category == "user"]
    assert "sin(" in record[kernel.artifact].text.partition("def add_kernel")[2].partition("tl.store")[0]
    assert [each.attrs["kernel"] for each in record.of_stage("ptx") if each.attrs["kernel"] == kernel.id]
    told = next(each.why for each in record.decisions if each.pass_name == "user's Triton kernel")
    assert "may be fused with it" in told


def test_user_kernels_are_checked_against_eager() -> None:
    x, y = torch.linspace(-1, 1, 100), torch.linspace(1, 3, 100)
    found = explore(called, (x, y), options=Options(stages=("kernels",), check="kernels"))
    verdicts = {check.subject.rpartition(".")[2]: check.verdict for check in found.record.checks}
    assert verdicts["add_kernel_0"] in ("equal", "close")  # it is compared after the following sine


def test_cpu_builds_say_why_they_fail() -> None:
    x, y = torch.linspace(-1, 1, 100), torch.linspace(1, 3, 100)
    found = explore(called, (x, y), options=Options(stages=("kernels",), check=True))
    assert "Triton can't compile the kernel add_kernel for the CPU" in found.record.problems[0].reason


def test_check_does_not_take_eager_for_compiled_code() -> None:
    checks = explore(called, (torch.randn(100), torch.randn(100)), options=Options(check=True)).record.checks
    assert (checks[0].subject, checks[0].verdict) == ("the call", "not comparable")
    assert "eager mode ran in its place" in checks[0].words
    assert "output" not in [check.subject for check in checks]
