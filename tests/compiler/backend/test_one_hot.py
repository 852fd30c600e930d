"""Sums with only one non-zero term: a kernel that does nothing else computes that term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import compiler

PLACES = 1000


def hot(target: Tensor, weight: Tensor) -> Tensor:
    """Rows of zeros except for the weight at the target's index; all zeros if the target is out of range."""
    return torch.where(torch.arange(PLACES) == target[:, None], weight[:, None], 0.0)


def summed(target: Tensor, weight: Tensor) -> Tensor:
    return -(hot(target, weight).bfloat16() * weight[:, None]).float().sum(-1)


def of_two(target: Tensor, weight: Tensor) -> Tensor:
    return (hot(target, weight) + hot(target + 1, weight)).sum(-1)


def weighed(target: Tensor, weight: Tensor) -> Tensor:
    return (hot(target, weight) * torch.arange(PLACES)).sum(-1)


def largest(target: Tensor, weight: Tensor) -> Tensor:
    return hot(target, weight).amax(-1)


def kept(target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    rows = hot(target, weight)
    return rows, rows.sum(-1)


def given() -> tuple[Tensor, Tensor]:
    return torch.tensor([0, 7, PLACES - 1, PLACES, -1, -100]), torch.tensor([1.5, 2.0, -3.0, 4.0, 5.0, 6.0])


def test_one_hot_sum_is_replaced_by_its_term() -> None:
    call = compiler.open(summed, *given())
    (kernel,) = call.scheduled.kernels
    assert not kernel.reduced, kernel
    assert "one term" in [*call.decisions.verdict]
    torch.testing.assert_close(call.run(), summed(*given()), rtol=0, atol=0)
    assert call.run()[3:].count_nonzero() == 0


@pytest.mark.parametrize("fn", [of_two, weighed, largest, kept])
def test_other_reductions_keep_their_loop(fn: Callable[..., Tensor]) -> None:
    call = compiler.open(fn, *given())
    assert any(kernel.reduced for kernel in call.scheduled.kernels)
    assert "one term" not in [*call.decisions.verdict]
    torch.testing.assert_close(call.run(), fn(*given()))


@pytest.mark.parametrize("options", [{}, {"code": "triton"}, {"interpret": True}], ids=["C++", "Triton", "interpret"])
def test_one_hot_sum_handles_infinity_and_nan(options: dict[str, Any]) -> None:
    target, _ = given()
    weight = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.inf, 5.0, 6.0])
    rows = hot(target, torch.ones(6))

    def fn(target: Tensor, weight: Tensor) -> Tensor:
        return -(hot(target, torch.ones(6)) * weight[:, None]).sum(-1)

    assert "one term" in [*compiler.open(fn, target, weight).decisions.verdict]
    found = torch.compile(fn, backend="tcompile", options=options)(target, weight)
    torch.testing.assert_close(found, -(rows * weight[:, None]).sum(-1), equal_nan=True, rtol=0, atol=0)
