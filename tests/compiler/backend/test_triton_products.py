"""Products of matrices with what is computed of them as one Triton kernel: what it computes, when it is made, which of
both is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from compiler.backend import pipeline, tcompile, tune
from compiler.backend.build_triton import Wanted, wanted
from compiler.backend.context import Context
from compiler.backend.emit_triton import emit
from compiler.backend.interpret import interpret
from compiler.backend.ir import BackendError, Extern, Kernel, Product, Program
from compiler.backend.launch import Assumed, Launcher
from compiler.backend.on_gpu import OnGpu
from compiler.backend.opened import Opened
from compiler.backend.opened import open as opened
from compiler.backend.products import apart, with_alternatives
from compiler.backend.verify import BrokenProgramError, verify
from compiler.binary.workers import outputs
from compiler.engine import explore
from compiler.options import Options
from compiler.torch_api.cuda_launch import Loaded

pytest.importorskip("triton")

TUNED: Any = partial(tcompile, mode="max-autotune", options={"code": "triton"})
"""Products are made, and run in Triton's interpreter."""


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    """The products that are merged with kernels."""
    found: list[Product] = []

    def kept(program: Program, ctx: Context) -> Program:
        changed = pipeline.products(program, ctx)
        found.extend(step for step in changed.steps if isinstance(step, Product))
        return changed

    monkeypatch.setattr(pipeline, "tuned", lambda passes: {**passes, "products": kept})
    return found


def check(function: Callable[..., Any], *args: Tensor, dynamic: bool | None = None) -> None:
    torch._dynamo.reset()
    expected, found = function(*args), torch.compile(function, backend=TUNED, dynamic=dynamic)(*args)
    torch.testing.assert_close(found, expected)


def gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


SIZES = ((2, 2, 2), (16, 16, 16), (5, 70, 130), (130, 33, 3), (64, 128, 64), (127, 1, 90), (1, 20, 30), (30, 20, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_linear_and_an_activation(made: list[Product], sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
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
    "a part of a larger one": (lambda x, w: (x[:, 3:20] @ w[3:20, ::2]).relu(), ((9, 40), (40, 48))),
    "compared and chosen": (lambda x, w, b: torch.where(x @ w > b, x @ w, b), ((9, 40), (40, 48), (48,))),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_of_a_product(made: list[Product], name: str) -> None:
    function, shapes = CASES[name]
    check(function, *(numbers(*shape) for shape in shapes))
    assert len(made) == 1


def test_rounding_is_eager_modes(made: list[Product]) -> None:
    """The product is rounded before what follows: not a bit differs where sums are exact."""
    x, w = (torch.randint(-8, 9, shape).bfloat16() for shape in ((33, 64), (64, 40)))
    torch._dynamo.reset()

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w) * 1.01 - 3

    assert torch.equal(torch.compile(function, backend=TUNED)(x, w), function(x, w))
    assert len(made) == 1


def test_sizes_that_change(made: list[Product]) -> None:
    weight, bias = numbers(50, 40), numbers(50)
    torch._dynamo.reset()
    call = torch.compile(gelu, backend=TUNED)
    for rows in (37, 2, 64, 130):
        x = numbers(rows, 40)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(call(x, weight, bias), gelu(x, weight, bias))
    assert len(made) == 1


def test_a_product_without_elements_is_pytorchs(made: list[Product]) -> None:
    check(lambda x, w: (x @ w).relu() + 1, numbers(0, 40), numbers(40, 48))
    check(lambda x, w: (x @ w).relu() + 1, numbers(4, 0), numbers(0, 48))
    assert not made


def test_training(made: list[Product]) -> None:
    """A product that the backward needs is stored beside what is computed of it."""
    given = [numbers(*shape).requires_grad_() for shape in ((16, 40), (48, 40), (48,))]
    torch._dynamo.reset()
    expected = torch.autograd.grad(gelu(*given).square().sum(), given)
    found = torch.autograd.grad(torch.compile(gelu, backend=TUNED)(*given).square().sum(), given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # of gradients up to 40, summed in another order
    assert made
    assert made[0].made not in made[0].local


# The pass


def stages(function: Callable[..., Any], *args: Tensor) -> Opened:
    """The call as mode="max-autotune" compiles it for an H100."""
    with torch.no_grad():
        return opened(function, *args).on("h100").tuned


def steps(call: Opened) -> list[str]:
    return [type(step).__name__ for step in call.graph.stages.last.steps]


def refused(call: Opened) -> str:
    [found] = (item.why for item in call.graph.decisions if (item.pass_name, item.verdict) == ("products", "refused"))
    return found


LINEAR = tuple(numbers(*shape, dtype=torch.bfloat16) for shape in ((64, 32), (48, 32), (48,)))


def test_a_stage_shows_the_kernel_with_its_product() -> None:
    call = stages(gelu, *LINEAR)
    assert steps(call) == ["Product"]
    head, product, *loops = str(call.products.kernels[0]).splitlines()
    assert head.startswith("kernel addmm_")
    assert product.strip().startswith("addmm = aten.addmm.default(")
    assert product.endswith("# local")
    assert loops[-1].strip().startswith("convert_element_type")
    [kernel] = call.products.kernels
    assert isinstance(kernel, Product)
    assert [what for _, what in call.products.rows()][1:3] == [kernel, kernel.call]
    assert "products" in call.stages.index
    assert call.totals.kernels == 1
    assert call.totals.bytes == 2 * (64 * 32 + 48 * 32 + 48 + 64 * 48)


def test_on_the_cpu_there_is_none_of_it() -> None:
    with torch.no_grad():
        call = opened(gelu, *LINEAR)
        assert call.tuned is call
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(gelu, backend="tcompile", mode="max-autotune")(*LINEAR), gelu(*LINEAR))
    program, ctx = call.fused, call.graph.context(call.thresholds)
    ctx.processors = 132
    assert pipeline.products(program, ctx) is program
    assert ctx.decisions[-1].why.endswith("it is on the CPU")


def test_each_stage_computes_the_same_in_the_reference_interpreter() -> None:
    call = stages(gelu, *LINEAR)
    by_shape = {tuple(value.shape): value for value in LINEAR}
    for name in ("products", "scheduled"):
        there = call.stage(name)
        program = replace(there, buffers=tuple(replace(buffer, device="cpu") for buffer in there.buffers))
        shapes = [tuple(size.constant for size in program.by_name[name].shape) for name in program.inputs]
        [found] = interpret(program, [by_shape[shape] for shape in shapes])
        torch.testing.assert_close(found, gelu(*LINEAR))


REFUSED: Mapping[str, tuple[Callable[..., Any], str]] = {
    "reduced": (lambda x, w, b: functional.linear(x, w, b).softmax(-1), "it reduces"),
    "a part of it": (lambda x, w, b: functional.linear(x, w, b)[:, :24] * 2, "not those of the product"),
    "spread": (lambda x, w, b: functional.linear(x, w, b)[:, None] * x.new_ones(3, 1), "not those of the product"),
    "two places": (lambda x, w, b: (y := functional.linear(x, w, b)) + y[0], "not those of the product"),
    "scaled": (lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5).relu(), "it is scaled"),
    "double precision": (lambda x, w, b: functional.linear(x.double(), w.double(), b.double()).relu(), "other dtypes"),
    "one row": (lambda x, w, b: functional.linear(x[:1], w, b).relu(), "one row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_a_reason(name: str) -> None:
    function, why = REFUSED[name]
    call = stages(function, *LINEAR)
    assert "Product" not in steps(call)
    assert why in refused(call)
    [subjects] = (item.subjects for item in call.graph.decisions if item.pass_name == "products")
    assert why in call.why(*subjects)


def test_why_answers_with_what_was_decided_last() -> None:
    call = stages(gelu, *LINEAR)
    ctx = call.graph.context(call.thresholds)
    ctx.pass_name = "tune"
    [subjects] = (item.subjects for item in call.graph.decisions if item.pass_name == "products")
    ctx.decide(subjects, "tuned", "one kernel, 3.0 µs: sooner than both, 4.0 µs", seconds=3e-6)
    assert "are one kernel, where that is not slower" in call.why(*subjects)
    call.ran.append(ctx)
    assert "sooner than both, 4.0 µs" in call.why(*reversed(subjects))
    assert "tuned" in set(call.decisions["verdict"])
    assert "tuned" not in set(call.with_thresholds(tile=8).decisions["verdict"])


def test_what_is_multiplied_does_not_change_before_the_kernel_runs(made: list[Product]) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        w.add_(1)
        return y.relu() + w.sum()

    ours, other = numbers(20, 20), numbers(20, 20)
    torch._dynamo.reset()
    expected = function(numbers(9, 20), other)
    torch.testing.assert_close(torch.compile(function, backend=TUNED)(numbers(9, 20), ours), expected)
    torch.testing.assert_close(ours, other)


def test_a_broken_product_is_told() -> None:
    call = stages(gelu, *LINEAR)
    [kernel] = call.products.kernels
    assert isinstance(kernel, Product)
    loop = kernel.loops[-1]
    broken = replace(call.products, steps=(replace(kernel, loops=(replace(loop, value=loop.value),)),))
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
    kernel = wanted(found, code, function, function.configs[0], Assumed(), 0)
    [(_, made)] = outputs({"": replace(kernel.job, to_run=False)}, 1)
    assert made.error == ""
    assert "wgmma.mma_async" in made.texts["ptx"]
    assert made.spill_bytes == 0


def test_float32_is_not_tf32_unless_torch_may() -> None:
    given = [value.float() for value in LINEAR]
    assert 'input_precision="ieee"' in stages(gelu, *given).code
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert 'input_precision="tf32"' in stages(gelu, *given).code
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_indices_are_64_bits_where_they_have_to_be() -> None:
    with torch._subclasses.FakeTensorMode():
        x, weight = torch.empty(2**21, 2048, dtype=torch.bfloat16), torch.empty(64, 2048, dtype=torch.bfloat16)
        graph_code = emit_of(x, weight)
    assert "tile_m.to(tl.int64) * MBLOCK" in graph_code
    assert "k = start + tl.arange(0, KBLOCK).to(tl.int64)" in graph_code


def emit_of(x: Tensor, weight: Tensor) -> str:
    """Of a graph that nobody runs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from compiler.backend.backend import context_of
    from compiler.backend.lower.graph import lower
    from compiler.backend.options import BackendOptions

    module = make_fx(lambda x, weight: (torch.ops.aten.relu(torch.ops.aten.mm(x, weight.t())),))(x, weight)
    ctx = context_of(module, [x, weight], "inference", BackendOptions(code="triton"))
    return emit(pipeline.run(lower(module, "inference", ctx), ctx, pipeline.tuned(pipeline.PASSES)).last, ctx).text


def test_kernels_of_layers_that_are_alike_are_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(12)]
    model = torch.nn.Sequential(*layers).bfloat16()
    program, _, kernels = alternatives(stages(model, numbers(128, 64, dtype=torch.bfloat16)))
    assert [type(step) for step in program.steps] == [Product] * 12
    configs = {function: {repr(kernel.config) for kernel in kernels if kernel.function.name.startswith(function)}
               for function in ("kernel_addmm", "kernel_after")}  # fmt: skip
    assert len({kernel.job.key() for kernel in kernels}) == sum(map(len, configs.values()))


# The choice


def alternatives(call: Opened) -> tuple[Program, Context, list[Wanted]]:
    """All kernels of a call, in all configurations."""
    program, ctx = call.graph.stages.last, call.graph.context(call.thresholds)
    code = emit(with_alternatives(replace(program, steps=program.kernels, frees=()), ctx), ctx)
    kernels = [(function, config) for function in code.functions for config in function.configs]
    return program, ctx, [wanted(program, code, function, config, Assumed(), 0) for function, config in kernels]


LOADED = Loaded(1, 4, 0, "OO", 0)


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _=None: "a GPU that is not here")
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("apart_takes", [0.5e-5, 2e-5])
def test_the_faster_one_is_taken_and_kept_on_disk(monkeypatch: pytest.MonkeyPatch, apart_takes: float) -> None:
    program, ctx, kernels = alternatives(stages(gelu, *LINEAR))
    [product] = program.kernels
    assert isinstance(product, Product)
    own = [(kernel, LOADED) for kernel in kernels if kernel.function.kernel == product.name]
    [*_, rest] = [(kernel, LOADED) for kernel in kernels if kernel.function.kernel == f"after_{product.name}"]
    times = iter([1e-5 if number == 1 else 3e-5 for number in range(len(own))])
    monkeypatch.setattr(tune, "_seconds", lambda *_: next(times))
    monkeypatch.setattr(tune, "_seconds_apart", lambda *_: apart_takes)
    for _ in range(2):  # the second time nothing is measured
        chosen = tune.fastest_product(program, product, own, rest, ctx, 0)
        assert chosen is (own[1] if apart_takes > 1e-5 else None)
        said = ctx.decisions[-1]
        assert said.verdict == ("tuned" if chosen else "refused")
        assert said.subjects == (product.made, product.targets[-1])
        assert "10.0 µs" in said.why
        assert f"{1e6 * apart_takes:.1f} µs" in said.why


@pytest.mark.usefixtures("_gpu")
def test_other_sizes_are_timed_anew() -> None:
    """The code is the same for 512 rows and for 1024: no mask says how many there are."""
    keys, jobs = set(), set()
    for rows in (512, 1024):
        _, ctx, [kernel, *_] = alternatives(stages(gelu, numbers(rows, 32, dtype=torch.bfloat16), *LINEAR[1:]))
        keys.add(tune._key([(kernel, LOADED)], ctx, 0))
        jobs.add(kernel.job.source)
    assert len(jobs) == 1
    assert len(keys) == 2


@pytest.mark.usefixtures("_gpu")
def test_both_ways_are_timed_on_memory_of_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product is PyTorch's, and what it made is what the kernel after it is given."""
    program, ctx, kernels = alternatives(stages(gelu, *LINEAR))
    [product] = program.kernels
    assert isinstance(product, Product)
    launched: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tune, "launch", lambda: lambda *given: launched.append(given))
    monkeypatch.setattr(tune, "raw_stream", lambda: lambda _: 7)
    monkeypatch.setattr(tune, "_memory", partial(on_cpu, tune._memory))
    monkeypatch.setattr(tune, "_measured", lambda run, _device: run() or 1.0)
    kernel = next(kernel for kernel in kernels if kernel.function.kernel == product.name)
    assert tune._seconds(program, kernel, LOADED, ctx, 0) == 1.0
    blocks = kernel.config.blocks
    grid = (-(-64 // blocks["MBLOCK"]), -(-48 // blocks["NBLOCK"]), 1)
    assert launched[-1][1:4] == grid
    assert len(launched[-1][7]) == len(kernel.function.buffers) == 4
    rest = next(kernel for kernel in kernels if kernel.function.kernel == f"after_{product.name}")
    assert tune._seconds_apart(program, product, (rest, LOADED), ctx, 0) == 1.0
    assert len(launched[-1][7]) == 2


def on_cpu(memory: Callable[..., Tensor], program: Program, name: str, ctx: Context, _device: int) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "zeros", lambda size, dtype, device: torch.ones(size, dtype=dtype))  # noqa: ARG005
        return memory(program, name, ctx, 0)


def test_apart_it_is_pytorchs_product_and_a_kernel_in_order() -> None:
    call = stages(lambda *args: gelu(*args).view(8, 8, 48) + 1, *LINEAR)
    program, ctx = call.graph.stages.last, call.graph.context(call.thresholds)
    [product] = program.kernels
    split = apart(program, {product.name}, ctx)
    verify(split)
    first, second = split.steps
    assert isinstance(first, Extern)
    assert isinstance(second, Kernel)
    assert not isinstance(second, Product)
    assert len(second.ranges) == 1, "it walks memory as any kernel does"
    assert split.by_name[second.writes[0]].reuses == first.targets[0], "memory is planned anew"
    assert not ctx.decisions
    assert apart(program, (), ctx) is program


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("faster", [True, False])
def test_the_call_launches_what_was_chosen(monkeypatch: pytest.MonkeyPatch, *, faster: bool) -> None:
    """`OnGpu` with a GPU that is made up: one kernel of the product, or PyTorch's and the kernel after it."""
    call = stages(gelu, *LINEAR)
    program, ctx = call.graph.stages.last, call.graph.context(call.thresholds)
    code = emit(with_alternatives(replace(program, steps=program.kernels, frees=()), ctx), ctx)
    texts: list[str] = []
    monkeypatch.setattr("compiler.backend.on_gpu.Builds", NoBuilds)
    monkeypatch.setattr("compiler.backend.on_gpu._driver", dict)
    monkeypatch.setattr(Launcher, "made", lambda self, _names: texts.append(self.text))
    monkeypatch.setattr(tune, "fastest", lambda _program, candidates, *_: candidates[0])
    monkeypatch.setattr(tune, "_seconds", lambda *_: 1e-5)
    monkeypatch.setattr(tune, "_seconds_apart", lambda *_: 2e-5 if faster else 0.5e-5)
    there = OnGpu(program, code, {}, ctx, 0, tuned=True)
    there.made(there.expected, *there.begun[there.expected])
    [text] = texts
    assert text.count("launch(kernel_") == 1
    assert ("call_aten_addmm_default(" in text) is not faster
    assert ("launch(kernel_after_" in text) is not faster
    assert [said for said in ("shared memory", "not take it") for found in ctx.decisions if said in found.why] == [
        "shared memory",
        "not take it",
    ]


class NoBuilds:
    """Binaries of nothing; the first two configurations of a product fail."""

    def __init__(self) -> None:
        self.errors: list[Exception] = [BackendError("Triton did not take it"), torch.OutOfMemoryError("shared memory")]

    @staticmethod
    def start(_kernels: Iterator[Wanted]) -> NoBuilds:
        return NoBuilds()

    def loaded(self, _kernel: Wanted, _device: int) -> Loaded:
        if self.errors:
            raise self.errors.pop()
        return LOADED


def test_the_record_links_a_product_from_python_to_its_kernel() -> None:
    found = explore(gelu, LINEAR, options=Options.of(backend="tcompile", target="h100", mode="max-autotune")).record
    assert not found.problems
    [stage] = (artifact for artifact in found.artifacts if artifact.stage == "products")
    number = next(at for at, line in enumerate(stage.text.splitlines(), 1) if "aten.addmm" in line)
    kernel, product = stage.lines[number]
    assert product == f"{kernel}.addmm"
    [facts] = found.kernels
    assert facts.category == "template"
    assert facts.bytes == 2 * (64 * 32 + 48 * 32 + 48 + 64 * 48)
    assert product in found.linked(facts.id)
    [decision] = (item for item in found.decisions if item.pass_name == "products")
    assert decision.verdict == "product"
    assert all(subject.startswith("recompute[") for subject in decision.subjects)


# On a GPU

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(2, 3, 5), (33, 70, 130), (127, 129, 65), (500, 1000, 776)], ids=str)
@pytest.mark.parametrize("place", [0, -1])
def test_a_gpu_computes_what_eager_mode_does(
    monkeypatch: pytest.MonkeyPatch, made: list[Product], sizes: tuple[int, int, int], dtype: torch.dtype, place: int
) -> None:
    """One kernel, whatever is faster: as near to float64 as eager mode, but for a factor."""
    monkeypatch.setattr(tune, "fastest_product", lambda _program, _product, candidates, *_: candidates[place])
    monkeypatch.setattr(tune, "fastest", lambda _program, candidates, *_: candidates[0])
    rows, inner, columns = sizes
    given = [numbers(*shape, dtype=dtype).cuda() for shape in ((rows, inner), (columns, inner), (columns,))]
    torch._dynamo.reset()
    found = torch.compile(gelu, backend=partial(tcompile, mode="max-autotune-no-cudagraphs"))(*given)
    exact = gelu(*(value.double() for value in given))
    own = (gelu(*given).double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= 4 * own + 1e-5 * exact.abs().max()
    assert len(made) == 1


@on_a_gpu
@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_a_gpu_times_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str) -> None:
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(tmp_path))
    said: list[str] = []
    real = tune.fastest_product

    def heard(program: Program, product: Product, own: Any, rest: Any, ctx: Context, device: int) -> Any:
        chosen = real(program, product, own, rest, ctx, device)
        said.append(ctx.decisions[-1].why)
        return chosen

    monkeypatch.setattr(tune, "fastest_product", heard)
    given = [numbers(*shape, dtype=torch.bfloat16).cuda() for shape in ((512, 768), (3072, 768), (3072,))]
    torch._dynamo.reset()
    with torch.no_grad():
        call = torch.compile(gelu, backend=partial(tcompile, mode=mode))
        for _ in range(3):
            torch.testing.assert_close(call(*given), gelu(*given), rtol=0.02, atol=0.02)
    [why] = said
    assert why.count("µs") == 2
    assert "aten.addmm" in why
