"""Memory with gaps: views with an offset that skip elements, or visit an element twice.

For a write to such an input, a graph computes the result in memory of the same form; extern calls and the caller see it
through the input's strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from compiler.backend import tcompile
from tests.compiler.backend.random_programs import as_for_a_gpu

KINDS = pytest.mark.parametrize("kind", ["C++", "as for a GPU"])
DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


@pytest.fixture(autouse=True)
def compiled_as(kind: str) -> Iterator[None]:
    with as_for_a_gpu() if kind != "C++" else nullcontext():
        yield


def gapped() -> Tensor:
    """Six rows of three numbers, with a stride of two, starting at the second of 18 numbers."""
    return torch.arange(108.0).view(1, 6, 18)[..., 1:7:2]


def check(fn: Callable[[Tensor], Any], dynamic: bool = False) -> None:
    torch.compiler.reset()
    given, expected = gapped(), gapped()
    found = torch.compile(fn, backend=tcompile, dynamic=dynamic, fullgraph=True)(given)
    torch.testing.assert_close(([*found], given), ([*fn(expected)], expected), rtol=0, atol=0)


@KINDS
@DYNAMIC
def test_extern_call_reads_a_written_view(dynamic: bool) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        x[..., ::2] = 2
        row = x.squeeze(0)
        return row.sort(-1).values, row @ row.t()

    check(fn, dynamic)


@KINDS
@DYNAMIC
def test_extern_call_reads_an_accumulated_view(dynamic: bool) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        row = x.squeeze(0)
        row.index_add_(1, torch.tensor([0, 1, 1]), torch.ones(6, 3))
        return (row.sort(-1).values,)

    check(fn, dynamic)


@KINDS
def test_dense_buffer_is_not_reused_for_gapped_memory(kind: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        dense = (torch.arange(18.0).view(1, 6, 3) * 3).sort(-1).values + 1
        x[..., ::2] = dense.sort(-1).values[..., ::2]
        return x.sort(-1).values.relu(), dense

    check(fn)


@KINDS
@DYNAMIC
@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: x.copy_(torch.ones(1, 6, 3))], ids=["mul_", "copy_"])
def test_view_of_mutated_input_aliases_it(write: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    """With symbolic sizes, torch's own backends return other elements here."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        write(x)
        return x.narrow(1, 0, (x.shape[1] + 1) // 2), x + 1

    check(fn, dynamic)
    given = gapped()
    view = torch.compile(fn, backend=tcompile, dynamic=dynamic)(given)[0]
    given.zero_()
    assert view.stride() == fn(gapped())[0].stride()
    assert not view.any()


@KINDS
@DYNAMIC
def test_overlapping_elements_have_one_value(dynamic: bool) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        steps = (x + 0).as_strided((10, 2), (1, 1))
        steps[1:].copy_((torch.arange(9).view(9, 1) + torch.arange(2)) * 10.0)
        return steps * 2, steps.sum(1)

    check(fn, dynamic)


@KINDS
@DYNAMIC
def test_view_of_mutated_input_without_loops_aliases_it(dynamic: bool) -> None:
    """Views of a mutated input are not steps, because a step would read it after the write."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x[0]
        rows.add_(rows.flip(0))
        return rows[1:], rows.topk(2).values

    check(fn, dynamic)


@KINDS
def test_complex_views_start_at_their_offset() -> None:
    x, w = (torch.randn(*shape, 8, dtype=torch.complex64)[..., 1::2] for shape in ((2, 2), (2, 1)))
    found = torch.compile(functional.conv1d, backend=tcompile)(x, w, padding="same", groups=2, dilation=2)
    torch.testing.assert_close(found, functional.conv1d(x, w, padding="same", groups=2, dilation=2))
