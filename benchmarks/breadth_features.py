"""Features of PyTorch that people compile: one small program each, shown whole, or one line says why not.

A program is right if its values are those of eager, and if it has every stage of its setting or a `Problem` that gives
the reason for the missing ones. `docs/features.md` is the table of what was found.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.breadth_row import Row
from compiler.engine import Exploration
from compiler.option_checks import parse_options
from compiler.record import Record

Step = Callable[[Callable[..., Any]], Any]
"""A program's step, given what compiles a function: `step(torch.compile)` returns the values to compare."""

SETTINGS = (("h100", "inductor"), ("cpu", "inductor"), ("h100", "tcompile"), ("cpu", "tcompile"))


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature: what it is called, a function that makes a new step, and the options that it needs.

    `inductor_only` are options that only Inductor has; `cheap` features are tested with each commit. `gpu` is the
    virtual GPU to explore for.
    """

    name: str
    make: Callable[[], Step]
    options: dict[str, Any] = field(default_factory=dict)
    cheap: bool = False
    gpu: str = "h100"

    @property
    def inductor_only(self) -> bool:
        return bool(self.options)


FEATURES: list[Feature] = []


def feature(
    name: str, *, cheap: bool = False, gpu: str = "h100", **options: Any
) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    """Register a program under this name."""

    def register(make: Callable[[], Step]) -> Callable[[], Step]:
        FEATURES.append(Feature(name, make, options, cheap, gpu))
        return make

    return register


@feature("NestedTensor (jagged)", cheap=True)
def nested() -> Step:
    rows = [torch.randn(length, 8) for length in (3, 5, 2)]

    def norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x.sin() * 2, (8,))

    return lambda compiler: compiler(norm)(torch.nested.nested_tensor(rows, layout=torch.jagged)).values()


@feature("sparse (COO)", cheap=True)
def sparse() -> Step:
    x, w = torch.eye(16).to_sparse(), torch.randn(16, 8)
    return lambda compiler: compiler(lambda x, w: torch.sparse.mm(x, w).relu() * 2)(x, w)


@feature("sparse (CSR)", cheap=True)
def sparse_csr() -> Step:
    x, w = torch.eye(16).to_sparse_csr(), torch.randn(16, 8)
    return lambda compiler: compiler(lambda x, w: (x @ w).relu() * 2)(x, w)


@feature("complex numbers", cheap=True)
def complex_numbers() -> Step:
    x = torch.randn(32, 16, dtype=torch.complex64)
    return lambda compiler: compiler(lambda x: (torch.fft.fft(x) * x.conj()).abs() + 1)(x)


@feature("sub-byte dtypes", cheap=True)
def sub_byte() -> Step:
    packed, scale = torch.randint(0, 256, (16, 32), dtype=torch.uint8), torch.rand(16, 1)

    def unpack(packed: Tensor, scale: Tensor) -> Tensor:
        both = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
        return (both.to(torch.float32) - 8) * scale

    return lambda compiler: compiler(unpack)(packed, scale)


@feature("torch.uint4", cheap=True)
def uint4() -> Step:
    packed = torch.randint(0, 256, (16, 32), dtype=torch.uint8)
    return lambda compiler: compiler(lambda x: x.view(torch.uint4).view(torch.uint8) + 1)(packed)


@feature("torch.func: grad, vmap, jacrev, jvp", cheap=True)
def func() -> Step:
    x, w = torch.randn(8, 4), torch.randn(4)

    def transforms(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        loss = lambda w, x: (x @ w).tanh().square()  # noqa: E731
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
        jacobian = torch.func.jacrev(lambda w: (x @ w).sin())(w)
        return each, jacobian, torch.func.jvp(torch.sin, (w,), (w,))[1]

    return lambda compiler: compiler(transforms)(x, w)


@feature("vmap over a compiled function", cheap=True)
def vmap_over() -> Step:
    x, w = torch.randn(8, 4), torch.randn(4)
    return lambda compiler: torch.func.vmap(compiler(lambda x, w: (x * w).sin().sum()), (0, None))(x, w)


@feature("compiled optimizer")
def optimizer() -> Step:
    weights = [torch.randn(16, 16), torch.randn(16)]
    grads = [torch.randn(16, 16), torch.randn(16)]

    def step(compiler: Callable[..., Any]) -> Any:
        own = [weight.clone().requires_grad_() for weight in weights]
        for weight, grad in zip(own, grads, strict=True):
            weight.grad = grad.clone()
        compiler(torch.optim.AdamW(own, lr=0.1, foreach=True).step)()
        return own

    return step


@feature("compiled autograd", cheap=True)
def compiled_autograd() -> Step:
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step(compiler: Callable[..., Any]) -> Any:
        layer.zero_grad()
        forward = compiler(lambda x: layer(x).tanh().square().sum())
        with torch._dynamo.config.patch(compiled_autograd=True):
            compiler(lambda x: forward(x).backward())(x)
        return [weight.grad.clone() for weight in layer.parameters() if weight.grad is not None]

    return step


@feature("AOTInductor package")
def aot_inductor() -> Step:
    layers, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU()), torch.randn(4, 16)

    def step(compiler: Callable[..., Any]) -> Any:
        if compiler(layers) is layers:
            return layers(x)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            program = torch.export.export(layers, (x,))
            package = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
            return torch._inductor.aoti_load_package(package)(x)

    return step


def mlp() -> Step:
    layers, x = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), torch.randn(32, 64)
    return lambda compiler: compiler(layers)(x)


feature("CUDA graph trees", mode="reduce-overhead")(mlp)
feature("C++ wrapper", options={"cpp_wrapper": True})(mlp)


@feature("combo kernels", options={"combo_kernels": True})
def combo() -> Step:
    xs = [torch.randn(size) for size in (300, 200, 100)]
    return lambda compiler: compiler(lambda a, b, c: (a.sin(), b.cos(), c.tanh()))(*xs)


@feature("max-autotune templates", mode="max-autotune")
def autotune() -> Step:
    a, b = torch.randn(256, 256, dtype=torch.bfloat16), torch.randn(256, 256, dtype=torch.bfloat16)
    return lambda compiler: compiler(lambda a, b: (a @ b).relu())(a, b)


def of_backend(name: str) -> dict[str, Any]:
    return {"max_autotune": True, "max_autotune_gemm_backends": name}


feature("CUTLASS templates", options=of_backend("CUTLASS"))(autotune)


@feature("CuteDSL templates", gpu="b200", options=of_backend("CUTEDSL,ATEN"))
def grouped_matmul() -> Step:
    """Four matmuls of rows of `a`: the only matmul that torch 2.13 has a CuteDSL template for, on a B200."""
    a, b = torch.randn(256, 64).bfloat16(), torch.randn(4, 64, 128).bfloat16().mT.contiguous().mT
    ends = torch.tensor([64, 128, 192, 256], dtype=torch.int32)
    return lambda compiler: compiler(lambda a, b, ends: torch._grouped_mm(a, b, ends).relu())(a, b, ends)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a feature in a setting: the record, the error if the call ended, and the verdicts on its values."""

    record: Record | None
    error: str
    verdicts: dict[str, str]


def try_feature(each: Feature, target: str, backend: str) -> Tried:
    """Explore a feature's program in a setting, and compare its values with eager's."""
    torch.manual_seed(0)
    step = each.make()
    expected = _tensors(step(lambda fn: fn))
    torch._dynamo.reset()
    exploration = Exploration(parse_options(target=target, backend=backend, **each.options))
    try:
        with exploration:
            found = _tensors(step(exploration.compile))
    except Exception as error:  # noqa: BLE001 - the error is the result
        return Tried(None, f"{type(error).__name__}: {error}".strip().split("\n")[0], {})
    verdicts = {str(number): _verdict(*pair) for number, pair in enumerate(zip(found, expected, strict=True))}
    return Tried(exploration.record, "", verdicts)


def missing_stages(record: Record, backend: str) -> tuple[str, ...]:
    """The stages that a record of this setting lacks without a reason, at one of them or at an earlier one."""
    code = ("post_grad", "ir", "fused_ir") if backend == "inductor" else ("lowered", "scheduled")
    graphs = ("forward", "backward") if record.of_stage("backward") else ("inference",)
    explained = {problem.stage for problem in record.problems}
    wanted = ["captured", *graphs, *code, "kernels"]
    first = min((wanted.index(stage) for stage in explained if stage in wanted), default=len(wanted))
    return tuple(stage for stage in wanted[:first] if not record.of_stage(stage))


def rows(only: str) -> Iterator[Row]:
    """A row for each feature and setting."""
    for each in FEATURES:
        for target, backend in SETTINGS:
            if only in each.name and not (each.inductor_only and backend == "tcompile"):
                yield row(each, each.gpu if target == "h100" else target, backend)


def row(each: Feature, target: str, backend: str) -> Row:
    """The row of a feature in a setting."""
    start = time.perf_counter()
    found = try_feature(each, target, backend)
    seconds = time.perf_counter() - start
    setting = f"{target} {backend}"
    if found.record is None:
        return Row(each.name, setting, (), {}, (found.error,), seconds)
    missing = missing_stages(found.record, backend)
    told = "; ".join(f"{problem.stage}: {problem.reason}" for problem in found.record.problems)
    return Row(each.name, setting, missing, found.verdicts, (), seconds, told)


def _tensors(value: Any) -> Sequence[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def _verdict(found: Tensor, expected: Tensor) -> str:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype} {tuple(found.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    return (
        "equal" if torch.equal(found, expected) else "close" if torch.allclose(found, expected, 2e-2, 1e-4) else "off"
    )
