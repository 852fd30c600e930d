"""Pooling as loops: forward and backward, every geometry, in C++ and in the reference interpreter, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

import compiler
from compiler.backend import tcompile
from compiler.backend.ir import Extern

Pool = Callable[[torch.Tensor], Any]
POOLS: dict[str, Pool] = {
    "max": lambda x: functional.max_pool2d(x, 2),
    "max, padded": lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max, last window beyond the edge": lambda x: functional.max_pool2d(
        x, 3, 2, 1, ceil_mode=True, return_indices=True
    ),
    "max, dilated": lambda x: functional.max_pool2d(x, (3, 2), (2, 3), (1, 1), (2, 3), return_indices=True),
    "max in one dimension": lambda x: functional.max_pool1d(x[0], 3, 1, 1, return_indices=True),
    "max in three dimensions": lambda x: functional.max_pool3d(x[None], 2, 2, return_indices=True),
    "average": lambda x: functional.avg_pool2d(x, 3, 2, 1),
    "average, last window beyond the edge": lambda x: functional.avg_pool2d(x, (3, 5), (1, 2), (1, 2), ceil_mode=True),
    "average of what is inside": lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "average by another divisor": lambda x: functional.avg_pool2d(x, 2, 3, divisor_override=5),
    "average of large windows": lambda x: functional.avg_pool2d(x, 7, 2, 3),
    "average in three dimensions": lambda x: functional.avg_pool3d(x[None], 2, 1),
    "adaptive average": lambda x: functional.adaptive_avg_pool2d(x[..., :8, :8], 4),
}
LOW = ("max, padded", "average", "average of large windows", "average of what is inside")


def together(given: Sequence[torch.Tensor], *names: str) -> list[torch.Tensor]:
    """The results of several pools in one graph, so that the C++ compiler runs once."""
    made = [POOLS[name](x) for x, name in zip(given, names, strict=True)]
    return [one for found in made for one in (found if isinstance(found, tuple) else (found,))]


def both(call: Callable[..., list[torch.Tensor]], x: torch.Tensor, names: tuple[str, ...]) -> list[torch.Tensor]:
    """The results of pools, and the gradient of each under distinct weights."""
    given = [x.clone().requires_grad_() for _ in names]
    found = call(given, *names)
    weighted = [
        (one * torch.arange(one.numel(), dtype=one.dtype).view(one.shape) / 8).sum()
        for one in found
        if one.is_floating_point()
    ]
    return [*found, *torch.autograd.grad(weighted, given)]


def check(x: torch.Tensor, *names: str, **options: Any) -> None:
    torch.compiler.reset()
    compiled = torch.compile(together, backend=tcompile, fullgraph=True, options=options)
    expected = both(together, x, names)
    torch.testing.assert_close(both(compiled, x, names), expected, equal_nan=True, check_stride=True)


@pytest.mark.parametrize("interpret", [False, True], ids=["compiled", "interpreted"])
def test_pools_match_eager(interpret: bool) -> None:
    check(torch.randn(2, 3, 11, 9), *POOLS, interpret=interpret)


def test_low_precision_pools() -> None:
    check(torch.randn(2, 3, 11, 9).bfloat16(), *LOW)


def test_channels_last_pools() -> None:
    check(torch.randn(2, 3, 11, 9).to(memory_format=torch.channels_last), *LOW)


def test_pools_of_nan_infinities_and_ties() -> None:
    x = torch.randn(2, 3, 11, 9).round()
    x[0, 0, 2:4, 2:4], x[0, 1] = float("nan"), -float("inf")
    check(x, "max, padded", "max, dilated")


def test_integer_max_pool() -> None:
    x = torch.randint(-9, 9, (1, 2, 6, 6))
    found = torch.compile(lambda x: functional.max_pool2d(x, 3, 1, 1), backend=tcompile)(x)
    assert torch.equal(found, functional.max_pool2d(x, 3, 1, 1))


def test_sizes_may_change() -> None:
    names = ("average of what is inside", "max, padded")
    pool = torch.compile(together, backend=tcompile, dynamic=True, fullgraph=True)
    for rows, columns in ((7, 9), (12, 5), (4, 30)):
        given = [torch.randn(2, 3, rows, columns)] * len(names)
        torch.testing.assert_close(pool(given, *names), together(given, *names))


def test_pools_fuse_with_their_neighbours() -> None:
    program = compiler.open(lambda x: functional.avg_pool2d(x, 2).relu() * 2, torch.randn(1, 2, 8, 8)).fused
    assert len(program.kernels) == 1
    backward = compiler.open(
        lambda x: functional.max_pool2d(x.relu(), 2), torch.randn(1, 2, 8, 8, requires_grad=True)
    ).backward
    assert len(backward.fused.kernels) == 1


def test_max_pool_saves_one_byte_per_window() -> None:
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    opened = compiler.open(lambda x: functional.max_pool2d(x.sin(), 3, 2, 1), x)
    inputs = [opened.backward.lowered.by_name[name] for name in opened.backward.lowered.inputs]
    assert [buffer.size.constant for buffer in inputs if buffer.dtype == torch.int8] == [2 * 4 * 4]
    assert not [buffer for buffer in inputs if buffer.dtype == torch.int64], str(opened.backward.lowered)


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (lambda x: functional.max_pool2d(x, 6), "windows of 36 elements"),
        (lambda x: functional.adaptive_avg_pool2d(x, 3), "not all equal"),
    ],
)
def test_unsupported_pool_is_extern_with_reason(pool: Pool, why: str) -> None:
    opened = compiler.open(pool, torch.randn(1, 2, 8, 8))
    assert any(isinstance(step, Extern) for step in opened.fused.steps)
    assert any(why in decision.why for decision in opened.graph.decisions)
    x = torch.randn(1, 2, 8, 8)
    torch.testing.assert_close(torch.compile(pool, backend=tcompile)(x), pool(x))
