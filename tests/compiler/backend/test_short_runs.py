"""Rows with contiguous runs shorter than a cache line, such as a group's rows in channels-last memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import compiler
from compiler.backend.inspect.inspection import Inspection
from compiler.backend.ir.reference_interpreter import interpret
from compiler.backend.passes.context import Thresholds
from compiler.backend.passes.cost import SLOWEST, access_slowdown
from compiler.backend.pipeline import run
from tests.compiler.broken import TORCH

LAST = torch.channels_last
FAKE = FakeTensorMode()


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x.float(), 8, weight)).to(x.dtype)


def crossing(x: Tensor, weight: Tensor) -> Tensor:
    """The norm, with its result in the other layout."""
    other = torch.contiguous_format if x.is_contiguous(memory_format=LAST) else LAST
    return norm(x, weight).contiguous(memory_format=other)


def pictures(*shape: int, last: bool = False, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    with FAKE:
        return torch.empty(shape, dtype=dtype, memory_format=LAST if last else torch.contiguous_format)


def opened(x: Tensor, crosses: bool) -> Inspection:
    return on_h200(crossing if crosses else norm, x)


def on_h200(fn: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Inspection:
    with FAKE:
        return compiler.open(fn, x, torch.ones(x.shape[1])).on("h200")


def decided(call: Inspection) -> dict[str, str]:
    return {
        found.verdict: found.why
        for found in call.graph.decisions
        if " in short runs" in found.why or "lie" in found.why
    }


def of_points(call: Inspection) -> list[tuple[int, ...]]:
    """The block sizes of each kernel without a reduction."""
    kernels = {kernel.name: kernel for kernel in call.graph.stages.last.kernels}
    functions = call._emit().functions
    return [tuple(found.configs[0].blocks.values()) for found in functions if not kernels[found.kernel].reduced]


@dataclass(frozen=True)
class Case:
    """A GroupNorm of eight groups: its input, whether its result has the other layout, and its cost."""

    x: Tensor
    crosses: bool
    kernels: int
    walks: int  # passes over all elements of the pictures, summed over all kernels


MANY_LAST = "groups of many channels last"
CASES = {
    "rows as they lie": Case(pictures(16, 64, 64, 64), False, 1, 2),
    "long rows as they lie": Case(pictures(32, 32, 128, 128), False, 1, 2),
    "long rows as they lie, of which the cache has too few": Case(
        pictures(32, 64, 128, 128, dtype=torch.float32), False, 3, 3
    ),
    "small, crossing": Case(pictures(16, 64, 16, 16), True, 1, 2),
    "crossing": Case(pictures(16, 64, 64, 64), True, 2, 3),
    "long rows, crossing": Case(pictures(32, 32, 128, 128), True, 2, 3),
    "small, channels last": Case(pictures(16, 64, 16, 16, last=True), False, 1, 2),
    "channels last": Case(pictures(64, 64, 64, 64, last=True), False, 2, 3),
    "long rows, channels last": Case(pictures(32, 64, 128, 128, last=True), False, 3, 3),
    MANY_LAST: Case(pictures(64, 512, 16, 16, last=True), False, 1, 2),
    "small, channels last, crossing": Case(pictures(16, 64, 16, 16, last=True), True, 1, 2),
    "channels last, crossing": Case(pictures(64, 64, 64, 64, last=True), True, 2, 3),
    "groups of many channels, crossing": Case(pictures(64, 512, 16, 16), True, 1, 2),
    "groups of many channels last, crossing": Case(pictures(64, 512, 16, 16, last=True), True, 2, 3),
}


MADE_CONTIGUOUS = pytest.mark.skipif(
    "2.14" <= TORCH < "2.15", reason="torch 2.14's group_norm makes its input contiguous, on any device"
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MADE_CONTIGUOUS) if name == MANY_LAST else name for name in CASES]
)
def test_rows_are_reread_if_cheaper_than_short_runs(name: str) -> None:
    case = CASES[name]
    call = opened(case.x, case.crosses)
    whole = case.x.numel() * case.x.itemsize
    assert call.totals.kernels == case.kernels, str(call.graph.stages.last)
    assert case.walks * whole < call.totals.bytes < (case.walks + 0.3) * whole


def test_transposed_write_becomes_a_tiled_kernel() -> None:
    call = opened(pictures(16, 64, 64, 64), True)
    moved = 16 * 64 * 64 * 64 * 2
    lost = f"{(SLOWEST - 1) * (moved + 64 * 4):,}"  # of the result, and of the weights
    assert decided(call)["fission"] == (
        f"rows would meet clone in short runs, for the time of {lost} bytes more; {moved:,} are read again"
    )
    assert of_points(call) == [(64, 64)]


def test_recomputed_value_is_read_in_tiles() -> None:
    """As in PyTorch's GroupNorm on a GPU: the result is contiguous, whatever the layout of the pictures."""

    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return functional.silu(functional.group_norm(x.float().contiguous(), 8, weight)).to(x.dtype)

    call = on_h200(fn, pictures(64, 64, 64, 64, last=True))
    assert "fission" in decided(call)
    assert of_points(call) == [(64, 64)]


@MADE_CONTIGUOUS
def test_rows_along_reads_write_short_runs() -> None:
    call = opened(pictures(64, 512, 16, 16, last=True), True)
    moved = 64 * 512 * 16 * 16 * 2
    assert decided(call)["fission"] == (
        f"rows would meet clone in short runs, for the time of {(SLOWEST - 1) * moved:,} bytes more; "
        f"{moved:,} are read again"
    )


@MADE_CONTIGUOUS
def test_short_run_channels_split_into_parts() -> None:
    call = opened(pictures(32, 64, 128, 128, last=True), False)
    assert decided(call)["split"] == (
        "256 results of 131,072 elements each lie in runs of 16 bytes: each is made of 128 parts"
    )
    first = call.graph.stages.last.kernels[0]
    assert [var.size.constant for var in first.reduced] == [1024]


def test_full_cache_lines_have_no_slowdown() -> None:
    assert [access_slowdown(run) for run in (2, 32, 64, 128, 4096)] == [SLOWEST, SLOWEST, 2, 1, 1]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("crosses", [False, True])
def test_split_norm_matches_eager(crosses: bool, last: bool) -> None:
    torch.compiler.reset()
    x, weight = torch.randn(2, 32, 32, 32) + 3, torch.randn(32)
    x = x.contiguous(memory_format=LAST) if last else x
    fn = crossing if crosses else norm
    graph = compiler.open(fn, x, weight).graph
    ctx = replace(graph.context(Thresholds(launch_bytes=0, longest_row=2048)), processors=4)
    program = run(graph.stages.programs["lowered"], ctx).last
    told = {found.verdict for found in ctx.decisions if "short runs" in found.why or "lie in runs" in found.why}
    assert told == ({"split"} if last else {"fission"} if crosses else set())
    torch.testing.assert_close(interpret(program, list(graph.captured.inputs))[0], fn(x, weight), rtol=1e-5, atol=1e-5)
