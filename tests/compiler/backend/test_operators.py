"""Operators against eager mode, by torch's own database of sample inputs (OpInfo), in machine code.

All samples of an operator go into one graph, so that the C++ compiler runs once per operator. In low precision a result
may differ from eager's if it is equally close to the exact result, because both round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_utils import set_rng_seed

import compiler
from compiler.backend import tcompile
from compiler.backend.ir import Extern

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SAMPLES = 3
POINTWISE = """
    add sub mul div floor_divide remainder fmod pow neg abs sqrt rsqrt reciprocal exp expm1 log log2 log1p sin tan asin
    atan cosh tanh atanh erf sigmoid square sign floor ceil round trunc clamp maximum fmin lt ge eq ne logical_and
    logical_not bitwise_xor bitwise_not isnan isinf signbit copysign atan2 where addcmul nn.functional.relu
    nn.functional.gelu nn.functional.silu nn.functional.softplus
"""
REDUCTIONS = """
    sum mean prod amax amin max argmax argmin var std var_mean any all logsumexp softmax log_softmax count_nonzero
    cumsum cumprod nn.functional.layer_norm nn.functional.group_norm
"""
VIEWS = """
    permute reshape expand squeeze unsqueeze narrow select split chunk unbind diagonal flip roll repeat t unfold
    broadcast_to as_strided tril
"""
INDEXING = """
    gather index_select index_put scatter_add cat stack masked_fill nn.functional.embedding nn.functional.pad
    take_along_dim select_scatter slice_scatter nn.functional.interpolate nn.functional.one_hot
    nn.functional.avg_pool2d nn.functional.max_pool2d nn.functional.adaptive_avg_pool2d arange full zeros_like scatter
    index_add lerp
"""
NAMES = [name for family in (POINTWISE, REDUCTIONS, VIEWS, INDEXING) for name in family.split()]
MODES = (
    "",
    "binary",
    "reduction_no_dim",
    "reduction_with_dim",
    "trunc_rounding",
    "floor_rounding",
    "constant",
    "nearest",
    "bilinear",
    "with_dtype",
)


def samples(name: str, device: str) -> Iterator[tuple[Any, torch.dtype, Any]]:
    from torch.testing._internal.common_methods_invocations import op_db  # takes 4 s, in each process that collects

    for info in (info for info in op_db if info.name == name and info.variant_test_name in MODES):
        for dtype in (dtype for dtype in DTYPES if info.supports_dtype(dtype, device)):
            torch.manual_seed(0)
            # Like `info.sample_inputs`, which searches the stack for a unittest for half a second each time.
            drawn = iter(info.sample_inputs_func(info, device, dtype, requires_grad=False))
            for _ in range(SAMPLES):
                set_rng_seed()
                if (sample := next(drawn, None)) is not None:
                    yield info.op, dtype, sample


def called(calls: Any) -> list[Any]:
    return [op(x, *args, **kwargs) for op, x, args, kwargs in calls]


@pytest.mark.parametrize("name", NAMES)
def test_operator_matches_eager(name: str) -> None:
    held_against_eager(name, "cpu")


def held_against_eager(name: str, device: str) -> None:
    """Compare all samples of an operator with eager, in one graph."""
    cases = list(samples(name, device))
    assert cases, f"torch has no samples of {name}"
    calls = [(op, sample.input, sample.args, sample.kwargs) for op, _, sample in cases]
    expected = called(calls)
    torch.compiler.reset()
    found = torch.compile(called, backend=tcompile)(calls)
    for (op, dtype, sample), got, wanted in zip(cases, found, expected, strict=True):
        check(op, dtype, sample, got, wanted)


def check(op: Any, dtype: torch.dtype, sample: Any, found: Any, expected: Any) -> None:
    try:
        torch.testing.assert_close(found, expected, equal_nan=True, check_stride=True)
    except AssertionError:
        if dtype != torch.bfloat16:
            raise
        kwargs = {name: as_double(value) for name, value in sample.kwargs.items()}
        exact = op(as_double(sample.input), *map(as_double, sample.args), **kwargs)
        assert distance(found, exact) <= 2 * distance(expected, exact)


def as_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact).abs().max())


@pytest.mark.parametrize("code", ["cpp", "triton"])
def test_all_shifts_match_eager(code: str) -> None:
    def shift(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        found = []
        for x, y in pairs:
            found += [
                x << y,
                x >> y,
                x << 1,
                torch.bitwise_right_shift(x, 7),
                5 << y,
                5 >> y,
                torch.full_like(x, 5) >> y,
            ]
        return found

    pairs = []
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        x = torch.tensor([limits.min, limits.max, 0, 1, 100, limits.min // 3, limits.max // 3], dtype=dtype)
        by = torch.arange(-3 if limits.min else 0, limits.bits + 3).to(dtype)
        pairs.append((x[:, None].repeat(1, len(by)), by.repeat(len(x), 1)))
    torch.compiler.reset()
    run = compiler.open(shift, pairs)
    assert not any(isinstance(step, Extern) for step in run.scheduled.steps)
    found = torch.compile(shift, backend=tcompile, options={"code": code})(pairs)
    for got, wanted in zip(found, shift(pairs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("code", ["cpp", "triton"])
def test_operators_that_torch_lowers_whole_become_kernels(code: str) -> None:
    def call_operators(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor, ends: torch.Tensor) -> list[torch.Tensor]:
        buckets = [torch.bucketize(x, ends, right=right, out_int32=right) for right in (False, True)]
        near = nn.functional.cosine_similarity(x, y)
        grid = nn.functional.affine_grid(y[:4].view(2, 2, -1)[:, :, :3], [2, 1, 3, 5], align_corners=False)
        turned = x.roll((3, -70), (1, 1))
        wholes = [torch.ldexp(x, i), torch.fmod(i, 7), torch.fmod(i.to(torch.int8), 7)]
        return [
            nn.functional.glu(x),
            torch.clamp_min(x, y),
            torch.clamp_max(x, y),
            near,
            grid,
            *buckets,
            turned,
            *wholes,
        ]

    x, y, i = torch.randn(8, 64), torch.randn(8, 64), torch.randint(-40, 40, (8, 64))
    x[0, :3] = torch.tensor([torch.nan, torch.inf, 0.0])
    arguments = (x, y, i, torch.tensor([-1.0, 0, 0, 1]))
    torch.compiler.reset()
    assert not any(isinstance(step, Extern) for step in compiler.open(call_operators, *arguments).scheduled.steps)
    found = torch.compile(call_operators, backend=tcompile, options={"code": code})(*arguments)
    torch.testing.assert_close(found, call_operators(*arguments), equal_nan=True)
