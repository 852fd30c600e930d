"""Triton code: eager mode's results in Triton's interpreter, compilation by real Triton, and golden texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler.backend import backend, tcompile
from compiler.backend.ir import Program
from compiler.backend.ir.scalar import OPERATIONS
from compiler.backend.passes.context import Context
from compiler.backend.triton.emit import TritonCode, emit, signature
from compiler.backend.triton.text import FUNCTIONS, PATTERNS
from compiler.binary.jobs import Job, Output
from compiler.binary.workers import outputs
from compiler.torch_api.patching import replace_attribute
from tests.compiler.backend.random_programs import case_of, check
from tests.compiler.backend.test_operators import check as check_operator
from tests.compiler.backend.test_operators import samples
from tests.compiler.backend.test_stages import assert_golden

H200 = Context(processors=132)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(dtype).requires_grad_(grad)


def whole(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(-high, high, shape, generator=torch.Generator().manual_seed(high)).to(dtype)


def with_nan(*shape: int) -> Tensor:
    values = numbers(*shape)
    return torch.where(values > 1.5, float("nan"), values)


def with_infinities() -> Tensor:
    values = numbers(4, 40001)
    values[0] = float("-inf")
    values[1, 7], values[2, :8000], values[3, 5000] = float("inf"), float("-inf"), float("nan")
    return values


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    return functional.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def running_mean(x: Tensor, mean: Tensor) -> Tensor:
    mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x - mean


def rounded(x: Tensor) -> tuple[Tensor, ...]:
    return x.floor(), x % 0.7, torch.div(x, 0.3, rounding_mode="floor"), torch.div(x, 0.3, rounding_mode="trunc")


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[Tensor]]]] = {
    "pointwise, with a mask": (lambda x, b: ((x + b).relu() * x).sin(), lambda: (numbers(30, 77), numbers(77))),
    "running sums": (lambda x: (x.exp().cumsum(-1) * 2, (x * 0.1).cumsum(0) - 1), lambda: (numbers(9, 70),)),
    "running sums of long rows": (lambda x: x.exp().cumsum(-1) / x.exp().sum(-1, True), lambda: (numbers(2, 40001),)),
    "pointwise, gradients": (
        lambda x, b: (x * b).tanh().sigmoid(),
        lambda: (numbers(9, 7, grad=True), numbers(7, grad=True)),
    ),
    "16 bits": (lambda x, y: functional.silu(x + y) * x, lambda: [numbers(9, 70, dtype=torch.bfloat16)] * 2),
    "16 bits, summed": (lambda x: (x.exp() + 1).sum(-1), lambda: (numbers(9, 70, dtype=torch.float16),)),
    "16 bits, by short formulas": (
        lambda x: (functional.gelu(x), functional.gelu(x, approximate="tanh"), x.sigmoid(), x.exp() / x),
        lambda: (numbers(9, 70, dtype=torch.float16),),
    ),
    "double precision": (
        lambda x: ((x + 0.1).exp(), torch.where(x > 0, x, 0.1), x / 3.3, x.sum(1)),
        lambda: (numbers(9, 70, dtype=torch.float64),),
    ),
    "whole numbers": (
        lambda x: (x // 3, x % 5, -x, x.abs(), x.sign(), x.sum(0), x.amax(1), x.prod(1)),
        lambda: (whole(50, 8, 40),),
    ),
    "bytes": (
        lambda x: (x * 3, x + 100, x.amin(0), x.sum(1), x.float().to(torch.uint8)),
        lambda: (whole(50, 8, 40, dtype=torch.int8),),
    ),
    "unsigned bytes and numbers beyond them": (
        lambda x: (-x, ~x, x + 300, x * -3, x & -3, x > -3, x < 300, x.clamp(-3, 5), torch.where(x > 5, x, -3)),
        lambda: (whole(200, 8, 40).to(torch.uint8),),
    ),
    "signed bytes and numbers beyond them": (
        lambda x: (x + 300, x * -300, x > 300, x == -1000, x | 300),
        lambda: (whole(50, 8, 40, dtype=torch.int8),),
    ),
    "16 bits, chosen": (
        lambda x: (torch.where(x > 0, x, 1.5), x.nan_to_num(1.0), torch.where(x > 0, -2.5, x), x.clamp(-0.3, 0.3)),
        lambda: (numbers(9, 70, dtype=torch.bfloat16),),
    ),
    "truth": (
        lambda x, y: ((x > y) & (y > 0), (x > y).any(-1), (x > y).all(0), (x > 0).amax(1), ~(x < y)),
        lambda: (numbers(8, 40), numbers(40, 8).t()),
    ),
    "rounding": (rounded, lambda: (numbers(8, 40),)),
    "NaN in extremes": (
        lambda x: (x.amax(-1), x.amin(0), x.argmax(-1), x.argmin(0), x.clamp(-1, 1)),
        lambda: (with_nan(20, 30),),
    ),
    "the first of equal ones": (
        lambda x: (x.argmax(-1), x.argmin(0), x.max(1), x.argmax()),
        lambda: (whole(4, 12, 40),),
    ),
    "the first of equal ones, far apart": (lambda x: (x.argmax(-1), x.argmin(-1)), lambda: (whole(4, 2, 9000),)),
    "one row in a program": (lambda x: functional.softmax(x, -1), lambda: (numbers(5, 1000, grad=True),)),
    "several rows in a program": (lambda x: functional.softmax(x, -1), lambda: (numbers(300, 7, grad=True),)),
    "a long row, held whole": (lambda x: functional.log_softmax(x, -1), lambda: (numbers(2, 9001, grad=True),)),
    "a long row, read again": (
        lambda x: (functional.log_softmax(x, -1), functional.layer_norm(x, (9001,)), (x * 2).softmax(-1)),
        lambda: (numbers(2, 9001, dtype=torch.bfloat16),),
    ),
    "a row in steps": (lambda x: functional.log_softmax(x, -1), lambda: (numbers(2, 40001, grad=True),)),
    "infinities in a row in steps": (
        lambda x: (functional.softmax(x, -1), x.logsumexp(-1)),
        lambda: (with_infinities(),),
    ),
    "16 bits in a row in steps": (
        lambda x: functional.log_softmax(x, -1),
        lambda: (numbers(2, 40001, dtype=torch.bfloat16),),
    ),
    "a row in steps, stored and read again": (
        lambda x: (x.exp() / (y := x.exp()).sum(-1, keepdim=True), y),
        lambda: (numbers(2, 40001),),
    ),
    "short columns": (lambda x: functional.softmax(x, 0), lambda: (numbers(30, 50, grad=True),)),
    "long columns": (lambda x: (x.mean(0), x.var(0), x.argmax(0)), lambda: (numbers(300, 40),)),
    "rows and columns": (lambda x: (x.sum(0), x.sum(1), x.sum()), lambda: (numbers(70, 130),)),
    "an inner dimension": (lambda x: x.amax(1), lambda: (numbers(3, 70, 5),)),
    "a value that is the same all along a row, summed": (
        lambda x, y: (
            (y.expand(8, 64) * 2).sum(1) + x.sum(1),
            (y[:3].expand(3, 9000) / 3).amax(1),
            x.sum(1).exp().sum(),
        ),
        lambda: (numbers(8, 64), numbers(8, 1)),
    ),
    "adaptive averages, backward": (
        lambda x: functional.adaptive_avg_pool2d(x.relu(), 1) + x.sum((2, 3), keepdim=True),
        lambda: (numbers(2, 5, 8, 8, grad=True),),
    ),
    "variances": (lambda x: (x.var(-1), x.std(), x.var((0, 2))), lambda: (numbers(4, 30, 20),)),
    "transposes on two axes": (
        lambda x, y: x.transpose(1, 2).contiguous() * 2 + y,
        lambda: (numbers(2, 40, 50), numbers(2, 50, 40)),
    ),
    "channels last": (
        lambda x, y: (x * y).relu(),
        lambda: (numbers(2, 16, 9, 9), numbers(2, 9, 9, 16).permute(0, 3, 1, 2)),
    ),
    "padded, joined, rolled, flipped": (
        lambda x, y: torch.cat([functional.pad(x, (1, 2, 0, 1)), y]).roll(3, 1).flip(0),
        lambda: (numbers(9, 5, grad=True), numbers(3, 8, grad=True)),
    ),
    "gathered": (
        lambda t, i: (t[i], t.gather(0, i[:4, None].expand(4, 9) % 4)),
        lambda: (numbers(50, 9), whole(50, 30)),
    ),
    "layer norm, GELU": (
        lambda x, w, b: functional.gelu(functional.layer_norm(x, (40,), w, b)),
        lambda: (numbers(9, 40, grad=True), numbers(40, grad=True), numbers(40, grad=True)),
    ),
    "RMS norm in bfloat16": (
        lambda x, w: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w,
        lambda: (numbers(9, 1030, dtype=torch.bfloat16), numbers(1030, dtype=torch.bfloat16)),
    ),
    "attention": (attention, lambda: [numbers(2, 20, 8, grad=True) for _ in "qkv"]),
    "changed in place": (running_mean, lambda: (numbers(8, 16), numbers(16))),
    "changed in place and summed": (lambda x: x.add_(1).sum(1) + x.amax(1), lambda: (numbers(8, 16),)),
    "no dimensions": (lambda x: (x * 2 + 1, x.sum(), x.argmax()), lambda: (numbers(),)),
    "no elements": (lambda x: (x * 2, x.sum(0), x.sum(), x.any(0)), lambda: (numbers(0, 5),)),
    "not contiguous": (lambda x: x * 2 + x.sum(0), lambda: (numbers(40, 30).t()[::2, 1:],)),
}


def called(fn: Callable[..., Any], args: Sequence[Tensor]) -> list[Tensor]:
    """The results of a function, the gradients of its arguments, and its arguments, which it may mutate."""
    given = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    found = fn(*given)
    results = [*found] if isinstance(found, tuple) else [found]
    flat = [part for result in results for part in (result if isinstance(result, tuple) else [result])]
    leaves = [arg for arg in given if arg.requires_grad]
    losses = [result.float().cos().sum() for result in flat if result.requires_grad]
    grads = torch.autograd.grad(losses, leaves) if leaves else ()
    return [value.detach() for value in (*flat, *grads, *given)]


@cache
def ran(name: str) -> tuple[list[Tensor], list[Program]]:
    """The results of a case, and the programs that made them."""
    fn, arguments = CASES[name]
    programs: list[Program] = []

    def interpret(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda program, ctx: programs.append(program) or original(program, ctx)

    torch.compiler.reset()
    with replace_attribute(backend, "interpret_triton", interpret):
        found = called(torch.compile(fn, backend=tcompile, options={"code": "triton"}), arguments())
    return found, programs


@pytest.mark.parametrize("name", CASES)
def test_triton_program_matches_eager(name: str) -> None:
    fn, arguments = CASES[name]
    torch.testing.assert_close(ran(name)[0], called(fn, arguments()), equal_nan=True)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


class Words(nn.Module):
    """Embeddings, and a loss on the tokens themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 12)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.cross_entropy(self.table(ids) @ self.table.weight.t(), ids)


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "MLP": (mlp, numbers(6, 8)),
    "convolution and batch norm": (convolutions, numbers(2, 3, 10, 10)),
    "embedding and cross entropy": (Words, whole(50, 30).abs()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_in_eager_mode(name: str) -> None:
    make, x = MODELS[name]

    def step(options: dict[str, Any] | None) -> list[Tensor]:
        torch.manual_seed(0)
        torch.compiler.reset()
        model = make()
        run = model if options is None else torch.compile(model, backend=tcompile, options=options)
        run(x).square().sum().backward()
        return [*(p.grad for p in model.parameters() if p.grad is not None), *model.state_dict().values()]

    torch.testing.assert_close(step({"code": "triton"}), step(None), rtol=1e-4, atol=1e-4)


def test_changing_sizes_reuse_the_kernel() -> None:
    graphs = []

    def counting(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return tcompile(module, inputs, options={"code": "triton"})

    def fn(x: Tensor) -> Tensor:
        return functional.softmax(x * x.shape[0], -1).sum(0)

    torch.compiler.reset()
    compiled = torch.compile(fn, backend=counting, dynamic=True)
    for rows, columns in ((3, 5), (20, 33), (2, 3000)):
        torch.testing.assert_close(compiled(numbers(rows, columns)), fn(numbers(rows, columns)))
    assert len(graphs) == 1


GROUPS = {
    "pointwise": "add sub div floor_divide remainder neg abs sqrt rsqrt exp log1p sin erf sigmoid sign round clamp "
    "maximum fmin lt eq logical_not bitwise_xor isnan signbit copysign where addcmul nn.functional.softplus",
    "reductions": "sum mean prod amax argmin var any all logsumexp softmax cumsum nn.functional.group_norm",
    "views": "permute expand split diagonal flip roll repeat tril unfold",
    "indexing": "gather index_select cat masked_fill nn.functional.embedding nn.functional.pad slice_scatter "
    "nn.functional.interpolate nn.functional.one_hot",
}


@pytest.mark.parametrize("group", GROUPS)
def test_operators_match_eager(group: str) -> None:
    cases = [case for name in GROUPS[group].split() for case in samples(name, "cpu")][::3]
    calls = [(op, sample.input, sample.args, sample.kwargs) for op, _, sample in cases]

    def run(calls: Any) -> list[Any]:
        return [op(x, *args, **kwargs) for op, x, args, kwargs in calls]

    torch.compiler.reset()
    found = torch.compile(run, backend=tcompile, options={"code": "triton"})(calls)
    for (op, dtype, sample), got, wanted in zip(cases, found, run(calls), strict=True):
        check_operator(op, dtype, sample, got, wanted)


@pytest.mark.parametrize("seed", range(8))
def test_random_program_matches_eager(seed: int) -> None:
    check(case_of(seed, "cpu", {"code": "triton"}))


def test_index_out_of_range_is_an_error() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda t, i: t[i] * 2, backend=tcompile, options={"code": "triton"})
    with pytest.raises(IndexError, match="out of range"):
        compiled(numbers(5), torch.tensor([1, 7]))


# Texts.


def code(fn: Callable[..., Any], *args: Any, ctx: Context = H200, **options: Any) -> TritonCode:
    return emit(compiler.open(fn, *args, **options).scheduled, ctx)


def text(fn: Callable[..., Any], *args: Any, **options: Any) -> str:
    return re.sub(r"(test_\w+\.py):\d+", r"\1:LINE", code(fn, *args, **options).text)


GOLDEN: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]] = {
    "pointwise": (lambda x, b: ((x + b).relu() * x).sin(), (numbers(30, 77), numbers(77))),
    "persistent": (lambda x: functional.softmax(x, -1), (numbers(8, 1000),)),
    "looped": (lambda x: functional.softmax(x, -1), (numbers(8, 50000),)),
    "columns": (lambda x: x.mean(0), (numbers(500, 64),)),
    "two_axes": (lambda x: x.t().contiguous() * 2, (numbers(100, 200),)),
    "layer_norm": (
        lambda x, w, b: functional.gelu(functional.layer_norm(x, (64,), w, b)),
        (numbers(32, 64), numbers(64), numbers(64)),
    ),
    "gathered": (lambda t, i: t[i] * 2, (numbers(50, 16), whole(50, 30))),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_triton(name: str) -> None:
    fn, args = GOLDEN[name]
    assert_golden(f"triton_{name}.py", text(fn, *args).rstrip("\n"))


def test_golden_triton_of_dynamic_sizes() -> None:
    softmax = text(lambda x: functional.softmax(x, -1), numbers(8, 16), dynamic=True)
    assert_golden("triton_dynamic.py", softmax.rstrip("\n"))


def test_masks_only_where_blocks_do_not_divide() -> None:
    def is_masked(fn: Callable[..., Any], *shape: int) -> bool:
        return " mask_" in re.sub("#.*", "", text(fn, numbers(*shape)))

    assert not is_masked(lambda x: x.relu(), 64, 1024)
    assert not is_masked(lambda x: functional.softmax(x, -1), 64, 1024)
    assert is_masked(lambda x: x.relu(), 64, 1023)


def test_indices_are_64_bit_only_where_needed() -> None:
    def indices(rows: int) -> set[str]:
        return {
            function.index for function in code(lambda x: x + 1, torch.empty(rows, 1 << 16, device="meta")).functions
        }

    with torch.device("meta"):
        assert indices(1 << 10) == {"i32"}
        assert indices(1 << 16) == {"i64"}
    dynamic = code(lambda x: x * 2, numbers(8, 16), dynamic=True)
    assert {function.index for function in dynamic.functions} == {"i64"}
    guarded = code(lambda x: x * 2, numbers(8, 16), dynamic=True, ctx=Context(processors=132, is_small=True))
    assert {function.index for function in guarded.functions} == {"i32"}
    assert "int64" not in guarded.text


def test_transposed_copy_gets_two_grid_axes() -> None:
    (function,) = code(lambda x: x.t().contiguous() * 2, numbers(100, 200)).functions
    assert [(points.constant, block) for points, block in function.grid] == [(100, "YBLOCK"), (200, "XBLOCK")]
    (function,) = code(lambda x: (x.t() * 2).t(), numbers(100, 200)).functions
    assert [(points.constant, block) for points, block in function.grid] == [(20000, "XBLOCK")]


def test_oversized_second_grid_axis_is_flattened() -> None:
    def turned(columns: int) -> TritonCode:
        return code(lambda x: x.t().contiguous() * 2, torch.empty(columns, 64, device="meta"))

    with torch.device("meta"):
        few, many = turned(65_535 * 16), turned(65_535 * 16 + 1)
    assert "program_id(1)" in few.text
    assert "program_id(1)" not in many.text
    (function,) = many.functions
    high, wide = (function.configs[0].blocks[name] for name in ("YBLOCK", "XBLOCK"))
    programs = -(-64 // high) * -(-1_048_561 // wide)
    assert function.programs(lambda size: size.constant or 0, function.configs[0].blocks) == (programs, 1, 1)


def test_flattened_grid_covers_all_points() -> None:
    torch.compiler.reset()
    fn = lambda x: x.transpose(1, 2).contiguous() * 2  # noqa: E731
    turn = torch.compile(fn, backend=tcompile, dynamic=True, fullgraph=True, options={"code": "triton"})
    for shape in ((1, 90, 33), (3, 40, 129), (2, 8, 8), (2, 0, 9)):
        x = torch.randn(shape)
        assert torch.equal(turn(x), fn(x))
    made = code(fn, torch.randn(3, 40, 129), dynamic=True)
    assert "program // tl.cdiv(" in made.text


def test_a_line_says_which_value_it_computes() -> None:
    made = code(lambda x: functional.softmax(x, -1), numbers(8, 1000))
    lines = made.text.splitlines()
    (function,) = made.functions
    first, last = function.lines
    assert lines[first - 1] == "@triton.jit"
    assert lines[last - 1].strip().startswith("tl.store")
    assert last == len(lines)
    computed = {target: lines[line - 1].strip() for line, target in made.lines.items()}
    assert computed["sum_1"].startswith("sum_1 = tl.sum(")
    assert set(computed) == {"amax", "sub", "exp", "sum_1", "div"}


def test_rows_with_mostly_per_row_operands_stay_rows() -> None:
    def scaled(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (x * (a * b - c)[:, None]).sum(-1)

    rows = [numbers(4096) for _ in range(3)]
    (function,) = code(scaled, numbers(4096, 5000), *rows).functions
    assert dict(function.configs[0].blocks) == {"RBLOCK": 4096}
    (function,) = code(lambda x, a: (x * a[:, None]).sum(0), numbers(64, 8192), numbers(64)).functions
    assert "XBLOCK" in function.configs[0].blocks


def test_short_rows_share_a_program_long_rows_persist() -> None:
    def blocks(fn: Callable[..., Any], rows: int, length: int, dtype: torch.dtype) -> dict[str, int]:
        (function,) = code(fn, torch.empty(rows, length, dtype=dtype)).functions
        return dict(function.configs[0].blocks)

    assert blocks(lambda x: x.sum(-1), 16384, 1024, torch.bfloat16) == {"XBLOCK": 2, "RBLOCK": 1024}
    assert blocks(lambda x: x.sum(-1), 16384, 1024, torch.float32) == {"RBLOCK": 1024}
    assert blocks(lambda x: functional.softmax(x, -1), 256, 30000, torch.bfloat16) == {"RBLOCK": 32768}
    assert blocks(lambda x: functional.softmax(x, -1), 256, 33000, torch.bfloat16) == {"RBLOCK": 4096}


def test_long_rows_are_reloaded_if_smaller_than_registers() -> None:
    def reads(length: int, dtype: torch.dtype) -> tuple[list[str], int]:
        made = code(lambda x: functional.softmax(x, -1), torch.empty(256, length, dtype=dtype))
        lines = [line for line in made.text.splitlines() if "tl.load(" in line]
        return [line.partition("policy=")[2].strip('")') for line in lines], made.functions[0].configs[0].num_warps

    assert reads(16384, torch.bfloat16) == (["evict_last", "", "evict_first"], 16)
    assert reads(30001, torch.bfloat16) == (["evict_last", "", "evict_first"], 32)
    assert reads(16384, torch.float32)[0] == [""]
    assert reads(8192, torch.bfloat16)[0] == [""]


def test_kernel_has_alternative_configs() -> None:
    for fn, args in GOLDEN.values():
        for function in code(fn, *args).functions:
            assert 2 <= len(function.configs) <= 9
            assert len({tuple(config.blocks) for config in function.configs}) == 1
            assert all(block & (block - 1) == 0 for config in function.configs for block in config.blocks.values())


def test_each_operation_has_a_triton_function() -> None:
    from triton.language.extra.cuda import libdevice as nvidia
    from triton.language.extra.hip import libdevice as amd

    texts = [*(operation.triton for operation in OPERATIONS.values()), *PATTERNS.values(), *FUNCTIONS.values()]
    for name in re.findall(r"libdevice\.(\w+)", " ".join(texts)):
        assert hasattr(nvidia, name), name
        assert hasattr(amd, name), name
    for operation in OPERATIONS.values():
        own = re.match(r"(\w+)\(", operation.triton)
        assert own is None or own[1] in FUNCTIONS, operation.name
        assert operation.triton or operation.kind == "cast", operation.name


# Real Triton.


H100, MI300X = ("cuda", 90, 32), ("hip", "gfx942", 64)


def jobs(program: Program, target: tuple[str, int | str, int] = H100) -> Iterator[Job]:
    made = emit(program, H200)
    for function in made.functions:
        config = function.configs[0]
        aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(function.buffers))}
        arguments = repr((dict(signature(program, function)), dict(config.blocks), aligned))
        options: dict[str, Any] = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        options |= {"debug": True, "sanitize_overflow": False} if function.checks else {}
        yield Job(function.name, "kernels.py", made.text, arguments, options, *target, to_run=target == H100)


@cache
def binaries() -> dict[str, Output]:
    """The kernels of all cases, forward and backward, compiled for an H100."""
    wanted = {}
    for name in CASES:
        for program in ran(name)[1]:
            for job in jobs(program):
                wanted[f"{name}, {program.name}, {job.name}"] = job
    with closing(outputs(wanted, 2)) as found:
        return dict(found)


def test_triton_compiles_every_kernel_to_a_binary() -> None:
    assert {name: output.error for name, output in binaries().items() if output.error} == {}
    assert len(binaries()) > 50
    assert all(output.binary.startswith(b"\x7fELF") for output in binaries().values())


def test_kernels_are_compiled_for_amd_too() -> None:
    def fn(x: Tensor) -> list[Tensor]:
        half = functional.gelu(x.bfloat16()) + x.bfloat16().softmax(-1).tanh()
        return [rounded(x)[1], x.double().sqrt() / 3, x.rsqrt(), functional.layer_norm(x, (300,)), x.argmax(-1), half]

    program = compiler.open(fn, numbers(40, 300)).scheduled
    with closing(outputs({job.name: job for job in jobs(program, MI300X)}, 2)) as found:
        made = dict(found)
    assert {name: output.error for name, output in made.items() if output.error} == {}
    assert made
    assert all("amdgcn" in output.texts for output in made.values())
