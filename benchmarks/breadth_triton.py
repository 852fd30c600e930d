"""Users' own Triton kernels, explored without a GPU down to machine code; values and gradients held against PyTorch.

The values are those of Triton's interpreter; in our own backend, each launch is an extern call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from torch.nn import functional

from benchmarks.breadth_row import Row
from compiler.engine import Exploration
from compiler.numerics.policy.by_dtype import numbers
from compiler.record.options import Options

# mypy: disable-error-code="no-untyped-def"


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask), mask=mask)


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
    return out


@triton.jit
def softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, columns, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * out_stride + at, powers / tl.sum(powers, 0), mask=at < columns)


def softmax(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](
        x, out, x.stride(0), out.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=2
    )
    return out


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16}, num_warps=2, num_stages=2),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32}, num_warps=4, num_stages=3),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=4, num_stages=3),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, a_m, a_k, b_k, b_n, c_m, c_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,  # noqa: N803
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(tl.cdiv(k, BLOCK_K)):
        inner = start * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * a_m + inner[None, :] * a_k,
                    mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)  # fmt: skip
        b = tl.load(b_ptr + inner[:, None] * b_k + columns[None, :] * b_n,
                    mask=(inner[:, None] < k) & (columns[None, :] < n), other=0.0)  # fmt: skip
        total += tl.dot(a, b, input_precision="ieee")
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * c_m + columns[None, :] * c_n, total, mask=inside)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    c = a.new_empty(a.shape[0], b.shape[1])

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(a.shape[0], meta["BLOCK_M"]), triton.cdiv(b.shape[1], meta["BLOCK_N"])

    matmul_kernel[grid](a, b, c, a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), *c.stride())
    return c


@triton.jit
def norm_kernel(x_ptr, w_ptr, out_ptr, rstd_ptr, mean_ptr, columns, eps, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    x = tl.load(x_ptr + row * columns + at, mask=mask, other=0.0)
    mean = tl.sum(x, 0) / columns
    centred = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    tl.store(out_ptr + row * columns + at, centred * rstd * tl.load(w_ptr + at, mask=mask), mask=mask)


@triton.jit
def norm_backward_kernel(
    grad_ptr,
    x_ptr,
    w_ptr,
    rstd_ptr,
    mean_ptr,
    grad_x_ptr,
    grad_w_ptr,
    columns,
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    x = tl.load(x_ptr + row * columns + at, mask=mask, other=0.0)
    grad = tl.load(grad_ptr + row * columns + at, mask=mask, other=0.0)
    w = tl.load(w_ptr + at, mask=mask, other=0.0)
    rstd = tl.load(rstd_ptr + row)
    hat = tl.where(mask, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    scaled = grad * w
    first = tl.sum(hat * scaled, 0) / columns
    second = tl.sum(scaled, 0) / columns
    tl.store(grad_x_ptr + row * columns + at, (scaled - (hat * first + second)) * rstd, mask=mask)
    tl.atomic_add(grad_w_ptr + at, grad * hat, mask=mask)


@triton_op("tcompile_breadth::norm", mutates_args={})
def norm_forward(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out, rstd, mean = torch.empty_like(x), x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
    block = triton.next_power_of_2(x.shape[1])
    wrap_triton(norm_kernel)[(x.shape[0],)](x, w, out, rstd, mean, x.shape[1], 1e-5, BLOCK=block)
    return out, rstd, mean


@triton_op("tcompile_breadth::norm_backward", mutates_args={})
def norm_backward(grad: Tensor, x: Tensor, w: Tensor, rstd: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    grad_x, grad_w = torch.empty_like(x), torch.zeros_like(w)
    block = triton.next_power_of_2(x.shape[1])
    wrap_triton(norm_backward_kernel)[(x.shape[0],)](grad, x, w, rstd, mean, grad_x, grad_w, x.shape[1], BLOCK=block)
    return grad_x, grad_w


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        out, rstd, mean = norm_forward(x, w)
        ctx.save_for_backward(x, w, rstd, mean)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return norm_backward(grad.contiguous(), *ctx.saved_tensors)


@triton.jit
def dropout_kernel(x_ptr, out_ptr, count, p, seed, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    keep = tl.rand(seed, at) > p
    tl.store(out_ptr + at, tl.where(keep, tl.load(x_ptr + at, mask=mask) / (1 - p), 0.0), mask=mask)


def keep_all(x: Tensor) -> Tensor:
    """A dropout of nothing, as its random numbers have no equal in PyTorch."""
    out = torch.empty_like(x)
    dropout_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), 0.0, 1234, BLOCK=64)
    return out


@triton.jit
def scale_in_place_kernel(x_ptr, count, factor, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < count) * factor, mask=at < count)


def scale_in_place(x: Tensor, factor: float) -> None:
    scale_in_place_kernel[(triton.cdiv(x.numel(), 64),)](x, x.numel(), factor, BLOCK=64)


@triton.jit
def activation_kernel(x_ptr, out_ptr, count, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    tl.store(out_ptr + at, x, mask=at < count)


def activate(x: Tensor, kind: str) -> Tensor:
    out = torch.empty_like(x)
    activation_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), ACTIVATION=kind, BLOCK=64)
    return out


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, columns, x_0, x_1, out_0, out_1, TILE: tl.constexpr):  # noqa: N803
    r = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    x = tl.load(x_ptr + r[:, None] * x_0 + c[None, :] * x_1, mask=inside)
    tl.store(out_ptr + r[:, None] * out_0 + c[None, :] * out_1, x, mask=inside)


def copy_strided(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 16))
    transpose_kernel[grid](x, out, *x.shape, *x.stride(), *out.stride(), TILE=16)
    return out


@triton.jit
def histogram_kernel(x_ptr, out_ptr, count, bins, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count, other=0)
    tl.atomic_add(out_ptr + x % bins, 1.0, mask=at < count)


def histogram(x: Tensor) -> Tensor:
    out = torch.zeros(8, device=x.device)
    histogram_kernel[(triton.cdiv(x.numel(), 32),)](x, out, x.numel(), 8, BLOCK=32)
    return out


@triton.jit
def printing_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    if tl.program_id(0) == 0:
        tl.device_print("x", x)
    tl.device_assert(at >= 0, "places are positive")
    tl.store(out_ptr + at, x + 1, mask=at < count)


def printed(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    printing_kernel[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), BLOCK=8)
    return out


@triton.heuristics({"EVEN": lambda args: args["count"] % args["BLOCK"] == 0})
@triton.jit
def heuristic_kernel(x_ptr, out_ptr, count, EVEN: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + at, tl.load(x_ptr + at) * 3)
    else:
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < count) * 3, mask=at < count)


def tripled(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    heuristic_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


@triton.jit
def square(x):
    return x * x


@triton.jit
def combine(a, b):
    return a + b


@triton.jit
def scan_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = square(tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0))
    tl.store(out_ptr + row * columns + at, tl.associative_scan(x, 0, combine), mask=at < columns)


def sums_of_squares(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    scan_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


@triton_op("tcompile_breadth::accumulate", mutates_args={"total"})
def accumulate(total: Tensor, x: Tensor) -> None:
    wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 64),)](total, x, total, x.numel(), BLOCK=64)


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    view = y.view(-1)
    scale_in_place(y, 0.5)
    return y + view.sum()


def in_place_formula(x: Tensor) -> Tensor:
    return x + x.sum()


def of_the_input(x: Tensor) -> Tensor:
    scale_in_place(x, 3.0)
    return x + 1


def of_the_input_formula(x: Tensor) -> Tensor:
    return x.mul_(3.0) + 1


def accumulated(x: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    for _ in range(3):
        accumulate(total, x)
    return total.relu()


def sliced(x: Tensor) -> Tensor:
    """Only some rows of a tensor are written, through a view."""
    y = x.clone()
    scale_in_place(y[1:3], -1.0)
    return y


def sliced_formula(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:3] *= -1
    return y


@dataclass(frozen=True)
class Case:
    """A program with kernels, the same in PyTorch, and its inputs; all of them need gradients if `trains`."""

    name: str
    fn: Callable[..., Tensor]
    formula: Callable[..., Tensor]
    inputs: Callable[[], list[Tensor]]
    trains: bool = False
    dynamic: bool | None = None


def one() -> list[Tensor]:
    return [torch.randn(7, 50)]


def two() -> list[Tensor]:
    return [torch.randn(7, 50), torch.randn(7, 50)]


def cases() -> list[Case]:
    return [
        Case("vector add", lambda x, y: add(x.relu(), y).sin() + 1, lambda x, y: (x.relu() + y).sin() + 1, two),
        Case("vector add, dynamic", lambda x, y: add(x, y) * 2, lambda x, y: (x + y) * 2, two, dynamic=True),
        Case("fused softmax", lambda x: softmax(x * 2) + 1, lambda x: (x * 2).softmax(-1) + 1, one),
        Case("autotuned matmul", lambda x, y: matmul(x, y.T).relu(), lambda x, y: (x @ y.T).relu(), two),
        Case(
            "layer norm in an autograd.Function",
            lambda x, w: Norm.apply(x * 2, w).square(),
            lambda x, w: functional.layer_norm(x * 2, (50,), w).square(),
            lambda: [torch.randn(7, 50), torch.randn(50)],
            trains=True,
        ),
        Case("dropout with a seed", lambda x: keep_all(x) * 2, lambda x: x * 2, one),
        Case("in place of a value", in_place, in_place_formula, one),
        Case("in place of an input", of_the_input, of_the_input_formula, one),
        Case("in place of a slice", sliced, sliced_formula, one),
        Case("constexpr relu", lambda x: activate(x, "relu"), torch.relu, one),
        Case("constexpr silu", lambda x: activate(x, "silu") + 1, lambda x: functional.silu(x) + 1, one),
        Case("strides", lambda x: copy_strided(x.t()) * 2, lambda x: x.t() * 2, one),
        Case("two in a row", lambda x, y: softmax(add(x, y)), lambda x, y: (x + y).softmax(-1), two),
        Case(
            "atomics", lambda x: histogram(x.flatten()) / 2, lambda x: torch.bincount(x.flatten() % 8, minlength=8) / 2,
            lambda: [torch.arange(100)],
        ),
        Case("printing and assertions", printed, lambda x: x + 1, one),
        Case("heuristics", lambda x: tripled(x) + 1, lambda x: x * 3 + 1, one),
        Case("scan with a function", sums_of_squares, lambda x: x.square().cumsum(-1), one),
        Case("triton_op that mutates", accumulated, lambda x: (x * 3).relu(), one),
    ]  # fmt: skip


STAGES = ("captured", "post_grad", "kernels", "ttir", "ttgir", "llir", "ptx", "sass")
OURS = ("captured", "lowered", "kernels")


def rows(only: str) -> Iterator[Row]:
    for case in cases():
        if only in case.name:
            yield explored(case, "inductor", STAGES)
            yield explored(case, "tcompile", OURS)


def explored(case: Case, backend: str, expected: Sequence[str]) -> Row:
    """Explore a program for an H100; compare its results, changed inputs and gradients with PyTorch's."""
    torch._dynamo.reset()
    started = time.perf_counter()
    torch.manual_seed(0)
    inputs = [each.requires_grad_(case.trains) for each in case.inputs()]
    others = [each.detach().clone().requires_grad_(case.trains) for each in inputs]
    stages = ("all",) if backend == "inductor" else ()
    try:
        with Exploration(Options(backend=backend, dynamic=case.dynamic, stages=stages)) as exploration:
            found = results(exploration.compile(case.fn), inputs)
    except Exception as error:  # noqa: BLE001 - a program that fails is a row
        return Row(case.name, backend, (), {f"{type(error).__name__}: {str(error)[:200]}": "differs"})
    wanted = results(case.formula, others)
    names = [f"{number}" for number in range(len(wanted))]
    verdicts = {
        name: numbers([(name, mine)], [(name, theirs)])[0].verdict
        for name, mine, theirs in zip(names, found, wanted, strict=True)
    }
    record = exploration.record
    missing = tuple(stage for stage in expected if not record.of_stage(stage))
    problems = tuple(problem.reason for problem in record.problems if "interpreter" not in problem.reason)
    users = [kernel for kernel in record.kernels if kernel.category == "user" or kernel.name.startswith("triton.")]
    lines = {"linked": "equal" if users and all(is_linked(record, kernel.id) for kernel in users) else "differs"}
    return Row(case.name, backend, missing, verdicts | lines, problems, time.perf_counter() - started)


def is_linked(record: Any, kernel: str) -> bool:
    """Whether a kernel is linked to a line of the program."""
    ids = record.linked_ids(kernel)
    return any(entity.id in ids for artifact in record.of_stage("source") for entity in artifact.entities)


def results(fn: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The result, the gradients, and the inputs afterwards."""
    out = fn(*inputs)
    gradients = torch.autograd.grad(out.square().sum(), inputs) if out.requires_grad else ()
    return [each.detach() for each in (out, *gradients, *inputs)]
