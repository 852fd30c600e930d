"""Fused matmul kernels in Triton: their results, when a matmul is fused with its readers, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from compiler import open as opened
from compiler.backend import pipeline, tcompile
from compiler.backend.inspect.inspection import Inspection
from compiler.backend.ir import MatmulKernel, Program
from compiler.backend.ir.reference_interpreter import interpret
from compiler.backend.passes.context import Context
from compiler.backend.passes.verify import BrokenProgramError, verify
from compiler.backend.runtime import tune
from compiler.backend.runtime.build_triton import specify_kernel
from compiler.backend.runtime.launch import Assumed
from compiler.backend.triton.emit import emit
from compiler.binary.workers import outputs
from compiler.engine import explore
from compiler.option_checks import parse_options

pytest.importorskip("triton")

TUNED: Any = partial(tcompile, mode="max-autotune", options={"code": "triton"})
"""Make fused matmuls, and run them in Triton's interpreter."""


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[MatmulKernel]:
    """The matmuls that are fused with kernels."""
    found: list[MatmulKernel] = []

    def kept(program: Program, ctx: Context) -> Program:
        changed = pipeline.fuse_matmuls(program, ctx)
        found.extend(step for step in changed.steps if isinstance(step, MatmulKernel))
        return changed

    monkeypatch.setattr(pipeline, "passes_for_tuning", lambda passes: {**passes, "matmuls": kept})
    return found


def check(function: Callable[..., Any], *args: Tensor, dynamic: bool | None = None) -> None:
    torch._dynamo.reset()
    expected, found = function(*args), torch.compile(function, backend=TUNED, dynamic=dynamic)(*args)
    torch.testing.assert_close(found, expected)


def gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


SIZES = ((2, 2, 2), (16, 16, 16), (5, 70, 130), (130, 33, 3), (64, 128, 64), (127, 1, 90), (1, 20, 30), (30, 20, 1))


LOW = [(sizes, torch.bfloat16) for sizes in SIZES if 1 not in sizes]


@pytest.mark.parametrize(
    ("sizes", "dtype"), [*((sizes, torch.float32) for sizes in SIZES), *LOW, (SIZES[2], torch.float16)], ids=str
)
def test_linear_with_activation(made: list[MatmulKernel], sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, inner, columns = sizes
    check(gelu, *(numbers(*shape, dtype=dtype) for shape in ((rows, inner), (columns, inner), (columns,))))
    assert len(made) == (0 if 1 in sizes else 1), "one row or column is no work for tensor cores"


HEADS = (2, 7, 4, 8)
CASES: Mapping[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "both transposed": (lambda x, y: (x.t() @ y.t()).relu(), ((70, 33), (96, 70))),
    "several matrices": (lambda x, y: torch.bmm(x, y.transpose(1, 2)) * 0.5 + 1, ((3, 33, 20), (3, 18, 20))),
    "a residual": (lambda x, w, b, r: functional.linear(x, w, b) + r, ((16, 40), (40, 40), (40,), (16, 40))),
    "a residual that is multiplied": (lambda x, w: x @ w + x, ((40, 40), (40, 40))),
    "seen in other shapes": (
        lambda x, w, b: (functional.linear(x, w, b).view(HEADS).transpose(1, 2) * 0.3).contiguous(),
        ((2, 7, 32), (32, 32), (32,)),
    ),
    "two products, one kernel": (lambda x, w, v: functional.silu(x @ w) * (x @ v), ((9, 40), (40, 48), (40, 48))),
    "also returned": (lambda x, w: ((y := x @ w), y.tanh()), ((9, 40), (40, 48))),
    "in another dtype": (lambda x, w: (x @ w).to(torch.bfloat16), ((9, 40), (40, 48))),
    "a bias for each row": (lambda x, w, b: torch.addmm(b, x, w).relu(), ((9, 40), (40, 48), (9, 1))),
    "one number as bias": (lambda x, w, b: torch.addmm(b, x, w).relu(), ((9, 40), (40, 48), ())),
    "a part of a larger one": (lambda x, w: (x[:, 3:20] @ w[3:20, ::2]).relu(), ((9, 40), (40, 48))),
    "compared and chosen": (lambda x, w, b: torch.where(x @ w > b, x @ w, b), ((9, 40), (40, 48), (48,))),
}


@pytest.mark.parametrize("name", CASES)
def test_matmul_epilogues(made: list[MatmulKernel], name: str) -> None:
    function, shapes = CASES[name]
    check(function, *(numbers(*shape) for shape in shapes))
    assert len(made) == 1


def test_rounding_matches_eager(made: list[MatmulKernel]) -> None:
    """The matmul's result is rounded before the next operation: bitwise equal if sums are exact."""
    x, w = (torch.randint(-8, 9, shape).bfloat16() for shape in ((33, 64), (64, 40)))
    torch._dynamo.reset()

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w) * 1.01 - 3

    assert torch.equal(torch.compile(function, backend=TUNED)(x, w), function(x, w))
    assert len(made) == 1


def test_sizes_may_change(made: list[MatmulKernel]) -> None:
    weight, bias = numbers(50, 40), numbers(50)
    torch._dynamo.reset()
    call = torch.compile(gelu, backend=TUNED)
    for rows in (37, 2, 64, 130):
        x = numbers(rows, 40)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(call(x, weight, bias), gelu(x, weight, bias))
    assert len(made) == 1


def test_empty_matmul_is_extern(made: list[MatmulKernel]) -> None:
    check(lambda x, w: (x @ w).relu() + 1, numbers(0, 40), numbers(40, 48))
    check(lambda x, w: (x @ w).relu() + 1, numbers(4, 0), numbers(0, 48))
    assert not made


def test_training_stores_the_matmul_for_backward(made: list[MatmulKernel]) -> None:
    """A matmul's result that the backward needs is stored, too."""
    given = [numbers(*shape).requires_grad_() for shape in ((16, 40), (48, 40), (48,))]
    torch._dynamo.reset()
    expected = torch.autograd.grad(gelu(*given).square().sum(), given)
    found = torch.autograd.grad(torch.compile(gelu, backend=TUNED)(*given).square().sum(), given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # of gradients up to 40, summed in another order
    assert made
    assert made[0].made not in made[0].local


# The pass


def stages(function: Callable[..., Any], *args: Tensor) -> Inspection:
    """The call as mode="max-autotune" compiles it for an H100."""
    with torch.no_grad():
        return opened(function, *args).on("h100").tuned


def steps(call: Inspection) -> list[str]:
    return [type(step).__name__ for step in call.graph.stages.last.steps]


def refused(call: Inspection) -> str:
    [found] = (item.why for item in call.graph.decisions if (item.pass_name, item.verdict) == ("matmuls", "refused"))
    return found


LINEAR = tuple(numbers(*shape, dtype=torch.bfloat16) for shape in ((64, 32), (48, 32), (48,)))


def test_stage_shows_the_kernel_with_its_matmul() -> None:
    call = stages(gelu, *LINEAR)
    assert steps(call) == ["MatmulKernel"]
    head, product, *loops = str(call.matmuls.kernels[0]).splitlines()
    assert head.startswith("kernel addmm_")
    assert product.strip().startswith("addmm = aten.addmm.default(")
    assert product.endswith("# local")
    assert loops[-1].strip().startswith("convert_element_type")
    [kernel] = call.matmuls.kernels
    assert isinstance(kernel, MatmulKernel)
    assert [what for _, what in call.matmuls.rows()][1:3] == [kernel, kernel.call]
    assert "matmuls" in call.stages.index
    assert call.totals.kernels == 1
    assert call.totals.bytes == 2 * (64 * 32 + 48 * 32 + 48 + 64 * 48)


def test_cpu_has_no_fused_matmul() -> None:
    with torch.no_grad():
        call = opened(gelu, *LINEAR)
        assert call.tuned is call
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(gelu, backend="tcompile", mode="max-autotune")(*LINEAR), gelu(*LINEAR))
    program, ctx = call.fused, call.graph.context(call.thresholds)
    ctx.processors = 132
    assert pipeline.fuse_matmuls(program, ctx) is program
    assert ctx.decisions[-1].why.endswith("it is on the CPU")


def test_each_stage_matches_in_the_reference_interpreter() -> None:
    call = stages(gelu, *LINEAR)
    by_shape = {tuple(value.shape): value for value in LINEAR}
    for name in ("matmuls", "scheduled"):
        there = call.stage(name)
        program = replace(there, buffers=tuple(replace(buffer, device="cpu") for buffer in there.buffers))
        shapes = [tuple(size.constant for size in program.by_name[name].shape) for name in program.inputs]
        [found] = interpret(program, [by_shape[shape] for shape in shapes])
        torch.testing.assert_close(found, gelu(*LINEAR))


REFUSED: Mapping[str, tuple[Callable[..., Any], str]] = {
    "reduced": (lambda x, w, b: functional.linear(x, w, b).softmax(-1), "it reduces"),
    "a part of it": (lambda x, w, b: functional.linear(x, w, b)[:, :24] * 2, "not those of the matmul"),
    "spread": (lambda x, w, b: functional.linear(x, w, b)[:, None] * x.new_ones(3, 1), "not those of the matmul"),
    "two places": (lambda x, w, b: (y := functional.linear(x, w, b)) + y[0], "not those of the matmul"),
    "scaled": (lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5).relu(), "it is scaled"),
    "double precision": (lambda x, w, b: functional.linear(x.double(), w.double(), b.double()).relu(), "other dtypes"),
    "one row": (lambda x, w, b: functional.linear(x[:1], w, b).relu(), "one row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_matmul_fusion_refusal_has_a_reason(name: str) -> None:
    function, why = REFUSED[name]
    call = stages(function, *LINEAR)
    assert "MatmulKernel" not in steps(call)
    assert why in refused(call)
    [subjects] = (item.subjects for item in call.graph.decisions if item.pass_name == "matmuls")
    assert why in call.why(*subjects)


def test_why_reports_the_last_decision() -> None:
    call = stages(gelu, *LINEAR)
    ctx = call.graph.context(call.thresholds)
    ctx.pass_name = "tune"
    [subjects] = (item.subjects for item in call.graph.decisions if item.pass_name == "matmuls")
    ctx.decide(subjects, "tuned", "one kernel, 3.0 µs: sooner than both, 4.0 µs", seconds=3e-6)
    assert "are one kernel, where that is not slower" in call.why(*subjects)
    call.ran.append(ctx)
    assert "sooner than both, 4.0 µs" in call.why(*reversed(subjects))
    assert "tuned" in set(call.decisions["verdict"])
    assert "tuned" not in set(call.with_thresholds(tile=8).decisions["verdict"])


def test_operand_mutation_waits_for_the_matmul_kernel(made: list[MatmulKernel]) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        w.add_(1)
        return y.relu() + w.sum()

    ours, other = numbers(20, 20), numbers(20, 20)
    torch._dynamo.reset()
    expected = function(numbers(9, 20), other)
    torch.testing.assert_close(torch.compile(function, backend=TUNED)(numbers(9, 20), ours), expected)
    torch.testing.assert_close(ours, other)


def test_broken_matmul_is_rejected() -> None:
    call = stages(gelu, *LINEAR)
    [kernel] = call.matmuls.kernels
    assert isinstance(kernel, MatmulKernel)
    loop = kernel.loops[-1]
    broken = replace(call.matmuls, steps=(replace(kernel, loops=(replace(loop, value=loop.value),)),))
    with pytest.raises(BrokenProgramError, match="do not read each element of addmm at one point"):
        verify(broken)


# The code


def test_masks_are_only_where_blocks_do_not_divide() -> None:
    assert "mask" not in stages(gelu, numbers(256, 64), numbers(512, 64), numbers(512)).code
    code = stages(gelu, numbers(250, 65), numbers(512, 65), numbers(512)).code
    assert "mask_m = m < 250" in code
    assert "mask_k = k < 65" in code
    assert "mask_n" not in code


def test_tensor_cores_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    call = stages(gelu, *(value.bfloat16() for value in (numbers(512, 256), numbers(1024, 256), numbers(1024))))
    found, code = call.graph.stages.last, emit(call.graph.stages.last, call.graph.context(call.thresholds))
    [function] = code.functions
    kernel = specify_kernel(found, function, function.configs[0], Assumed(), 0)
    [(_, made)] = outputs({"": replace(kernel.job, to_run=False)}, 1)
    assert made.error == ""
    assert "wgmma.mma_async" in made.texts["ptx"]
    assert made.spill_bytes == 0


def test_tf32_only_if_torch_allows_it() -> None:
    given = [value.float() for value in LINEAR]
    assert 'input_precision="ieee"' in stages(gelu, *given).code
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert 'input_precision="tf32"' in stages(gelu, *given).code
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_indices_are_64_bit_where_needed() -> None:
    with torch._subclasses.FakeTensorMode():
        x, weight = torch.empty(2**21, 2048, dtype=torch.bfloat16), torch.empty(64, 2048, dtype=torch.bfloat16)
        graph_code = emit_of(x, weight)
    assert "tile_m.to(tl.int64) * MBLOCK" in graph_code
    assert "k = start + tl.arange(0, KBLOCK).to(tl.int64)" in graph_code


def emit_of(x: Tensor, weight: Tensor) -> str:
    """The generated code of a graph that is not run."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from compiler.backend.backend import context_of
    from compiler.backend.lower.graph import lower
    from compiler.backend.options import BackendOptions

    module = make_fx(lambda x, weight: (torch.ops.aten.relu(torch.ops.aten.mm(x, weight.t())),))(x, weight)
    ctx = context_of(module, [x, weight], "inference", BackendOptions(code="triton"))
    passes = pipeline.passes_for_tuning(pipeline.PASSES)
    return emit(pipeline.run(lower(module, "inference", ctx), ctx, passes).last, ctx).text


def test_record_links_a_matmul_to_its_kernel() -> None:
    found = explore(gelu, LINEAR, options=parse_options(backend="tcompile", target="h100", mode="max-autotune")).record
    assert not found.problems
    [stage] = (artifact for artifact in found.artifacts if artifact.stage == "matmuls")
    number = next(at for at, line in enumerate(stage.text.splitlines(), 1) if "aten.addmm" in line)
    kernel, product = stage.lines[number]
    assert product == f"{kernel}.addmm"
    [facts] = found.kernels
    assert facts.category == "template"
    assert facts.bytes == 2 * (64 * 32 + 48 * 32 + 48 + 64 * 48)
    assert kernel in found.linked_ids(facts.id)
    linked = found.linked_ids(product)
    assert {"captured[0/0].linear", "inference[0/0].addmm", "fused[0/0 inference].addmm"} <= linked
    lines = facts.id + ".L"
    assert any(other.startswith(lines) for other in linked)
    [decision] = (item for item in found.decisions if item.pass_name == "matmuls")
    assert decision.verdict == "matmul"
    assert all(subject.startswith("recompute[") for subject in decision.subjects)


# On a GPU

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(2, 3, 5), (33, 70, 130), (127, 129, 65), (500, 1000, 776)], ids=str)
@pytest.mark.parametrize("place", [0, -1])
def test_gpu_matmul_is_as_accurate_as_eager(
    monkeypatch: pytest.MonkeyPatch,
    made: list[MatmulKernel],
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    place: int,
) -> None:
    """One kernel, even if it is slower: its error against float64 is within a factor of eager mode's."""
    monkeypatch.setattr(tune, "fastest_matmul", lambda _program, _product, candidates, *_: candidates[place])
    monkeypatch.setattr(tune, "fastest", lambda _program, candidates, *_: candidates[0])
    rows, inner, columns = sizes
    given = [numbers(*shape, dtype=dtype).cuda() for shape in ((rows, inner), (columns, inner), (columns,))]
    torch._dynamo.reset()
    found = torch.compile(gelu, backend=partial(tcompile, mode="max-autotune-no-cudagraphs"))(*given)
    exact = gelu(*(value.double() for value in given))
    own = (gelu(*given).double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= 4 * own + 1e-5 * exact.abs().max()
    assert len(made) == 1
