"""In bfloat16 every element equals eager's: operations in float32, places of rounding, casts of numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from compiler.backend import tcompile
from compiler.backend.ir.expr import Load, cast
from compiler.backend.passes.simplify import fold

X = torch.cat([torch.linspace(-4, 4, 2001), torch.tensor([0.3, 0.1, -0.7])]).bfloat16()
Y = torch.randn(len(X), generator=torch.Generator().manual_seed(0)).bfloat16()
EXACT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sums with numbers": lambda x, _: (x + 0.3) * (0.3 - x) - 0.1,
    "a scaled sum": lambda x, y: torch.add(x, y, alpha=0.5),
    "products and quotients with numbers": lambda x, _: x * 0.3 / 0.7,
    "comparisons with numbers": lambda x, _: (x == 0.3) | (x <= 0.1) & (x >= -0.7),
    "cubes": lambda x, _: x**3 + x**2,
    "remainders": lambda x, _: torch.remainder(x, 0.3) + torch.fmod(x, 0.3),
    "rounded quotients": lambda x, _: x // 0.3,
    "quotients towards zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "quotients by a number towards zero": lambda x, _: torch.div(x, 0.1, rounding_mode="trunc"),
    "between two, by a tensor": lambda x, y: torch.lerp(x, y, y.sigmoid()),
    "clamped": lambda x, _: x.clamp(-0.7, 0.3),
    "rounded to decimals": lambda x, y: torch.round(x, decimals=1) + torch.round(y, decimals=2),
    "activations": lambda x, y: functional.silu(x) + functional.leaky_relu(x, 0.3) * functional.elu(y),
}


def together(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [fn(x, y) for fn in EXACT.values()]


def test_each_element_matches_eager() -> None:
    found = torch.compile(together, backend=tcompile, fullgraph=True)(X, Y)
    for name, ours, theirs in zip(EXACT, found, together(X, Y), strict=True):
        assert torch.equal(ours, theirs), name


def test_lerp_by_a_number_matches_eager_accuracy() -> None:
    def between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.lerp(x, y, weight) for weight in (0.3, 0.7)])

    found = torch.compile(between, backend=tcompile)(X, Y)
    torch.testing.assert_close(found, between(X.double(), Y.double()).bfloat16(), rtol=0.008, atol=0)


def test_common_subexpressions_include_indices() -> None:
    def twice(x: torch.Tensor) -> list[torch.Tensor]:
        return [functional.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "bilinear", "bilinear")]

    x = torch.randn(2, 3, 8, 8).bfloat16()
    torch.testing.assert_close(torch.compile(twice, backend=tcompile)(x), twice(x))


def test_log_softmax_rounds_once_and_matches_eager_accuracy() -> None:
    """On a CPU eager mode rounds a row's logarithm, or each exponential, before the next step; on a GPU it does not."""

    def logarithms(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.log_softmax(-1), x.log_softmax(0), x.logsumexp(-1), x.logsumexp(0)]

    for shape in ((64, 128), (7, 5000), (300, 3)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16() * 3
        torch.compiler.reset()
        found = torch.compile(logarithms, backend=tcompile, fullgraph=True)(x)
        for ours, theirs, exact in zip(found, logarithms(x), logarithms(x.double()), strict=True):
            off, eagers = ((value.double() - exact).abs().mean() for value in (ours, theirs))
            assert off <= eagers * 1.001
            assert (ours == exact.bfloat16()).double().mean() > 0.999


@pytest.mark.parametrize("options", [{}, {"code": "triton"}, {"interpret": True}], ids=["C++", "Triton", "interpreter"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_integers_are_promoted_before_arithmetic(dtype: torch.dtype, options: dict[str, object]) -> None:
    """In bfloat16 271 is 272, and the remainder of a division shows it."""

    def left(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x % y, torch.fmod(x, y), x == y + 271, x * y

    x, y = torch.tensor([271, 2049, 70001, -3]), torch.tensor([2.734375, 3, 0, 5], dtype=dtype)
    found = torch.compile(left, backend=tcompile, options=options)(x, y)
    torch.testing.assert_close(found, left(x, y), equal_nan=True)


@pytest.mark.parametrize("narrow", [torch.float32, torch.float64])
def test_integers_are_rounded_by_a_float_between(narrow: torch.dtype) -> None:
    """A float with the same number of bits does not represent all integers, whatever torch's type promotion says."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.to(narrow).to(torch.int64) + 1

    x = torch.tensor([2**24 + 1, 2**53 + 1, -7])
    torch.testing.assert_close(torch.compile(fn, backend=tcompile)(x), fn(x))


@pytest.mark.parametrize(
    ("between", "outside", "is_dropped"),
    [
        (torch.float32, torch.bfloat16, True), (torch.float64, torch.float32, True),
        (torch.float16, torch.float32, False), (torch.int64, torch.int32, True),
        (torch.float32, torch.int64, False), (torch.float64, torch.int64, False), (torch.int64, torch.float32, False),
    ],
)  # fmt: skip
def test_casts_there_and_back_are_dropped_where_they_are_exact(
    between: torch.dtype, outside: torch.dtype, is_dropped: bool
) -> None:
    """A float does not hold all integers, whatever torch promotes the two to."""
    x = Load("x", (), outside)
    assert (fold(cast(cast(x, between), outside)) == x) is is_dropped
