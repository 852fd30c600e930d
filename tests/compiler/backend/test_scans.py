"""Scans (cumulative sums and products): loops along one range, in C++, in Triton's interpreter and in ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import compiler
from compiler.backend import tcompile
from compiler.backend.ir import Kernel

MODES: dict[str, dict[str, Any]] = {"C++": {}, "interpreted": {"interpret": True}, "Triton": {"code": "triton"}}
SCANS: dict[str, Callable[[Tensor], Any]] = {
    "along rows": lambda x: x.cumsum(-1),
    "along columns": lambda x: x.cumsum(0),
    "products": lambda x: (x * 0.1 + 1).cumprod(-1),
    "between other values": lambda x: (x.exp().cumsum(-1) * 2 + x).relu(),
    "normalized": lambda x: x.exp().cumsum(-1) / x.exp().sum(-1, keepdim=True),
    "reduced": lambda x: x.cumsum(-1).amax(-1),
    "less their mean": lambda x: (c := x.cumsum(-1)) - c.mean(-1, keepdim=True),
    "twice": lambda x: x.cumsum(-1).cumsum(-1),
    "along both": lambda x: x.cumsum(0).cumsum(1),
    "backwards": lambda x: x.flip(-1).cumsum(-1).flip(-1) + x.cumsum(-1),
    "of a view": lambda x: x.t()[1:].cumsum(0),
    "of bools": lambda x: (x > 0).cumsum(-1),
    "of small numbers": lambda x: (x * 4).to(torch.int8).cumsum(-1, dtype=torch.int8),
    "in low precision": lambda x: x.bfloat16().cumsum(-1),
    "in double": lambda x: x.cumsum(-1, dtype=torch.float64),
    "places in a mask": lambda x: ((x > 0).long().cumsum(-1) - 1).clamp(min=0) * (x > 0),
    "of one number": lambda x: x.sum().cumsum(0),
    "of one in a row": lambda x: x[:, :1].cumsum(1),
    "of none": lambda x: x[:0].cumsum(0) + x[:, :0].cumsum(1).sum(),
}


def together(x: Tensor) -> list[Any]:
    return [scan(x) for scan in SCANS.values()]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_eagers(found: list[Any], expected: list[Any]) -> None:
    for name, ours, theirs in zip(SCANS, found, expected, strict=True):
        near = {} if ours.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(
            ours, theirs, check_stride=True, msg=lambda what, name=name: f"{name}: {what}", **near
        )


@pytest.mark.parametrize("mode", MODES)
def test_results_match_eager(mode: str) -> None:
    torch.compiler.reset()
    run = torch.compile(together, backend=tcompile, fullgraph=True, options=MODES[mode])
    assert_eagers(run(numbers(9, 70)), together(numbers(9, 70)))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_match_eager(mode: str) -> None:
    def step(call: Callable[[Tensor], Tensor]) -> Tensor:
        x = numbers(6, 40).requires_grad_()
        return torch.autograd.grad(call(x).square().sum(), x)[0]

    torch.compiler.reset()
    fn = lambda x: x.cumsum(-1).sin() + x.cumsum(0)  # noqa: E731
    run = torch.compile(fn, backend=tcompile, fullgraph=True, options=MODES[mode])
    torch.testing.assert_close(step(run), step(fn), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_sizes_may_change(mode: str) -> None:
    torch.compiler.reset()
    fn = lambda x: (x.cumsum(-1) * 2, x.cumprod(0))  # noqa: E731
    run = torch.compile(fn, backend=tcompile, dynamic=True, fullgraph=True, options=MODES[mode])
    for shape in ((4, 5), (3, 130), (7, 2), (0, 3), (3, 0)):
        torch.testing.assert_close(run(numbers(*shape)), fn(numbers(*shape)))


def test_padded_rows_split_into_symbolic_chunk_count() -> None:
    """The shape of the result shows that there is one; the shape of the summed tensor does not."""

    def fn(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, (64 - x.shape[1] % 64) % 64))
        return padded.reshape(x.shape[0], -1, 64).sin().cumsum(-1)

    torch.compiler.reset()
    run = torch.compile(fn, backend=tcompile, dynamic=True, fullgraph=True)
    for length in (11, 40, 100):
        torch.testing.assert_close(run(numbers(3, length)), fn(numbers(3, length)))


def test_long_scan_carries_across_blocks() -> None:
    torch.compiler.reset()
    x = numbers(2, 9001)
    fn = lambda x: ((c := x.cumsum(-1)) - c.amax(-1, keepdim=True), x[0].cumsum(0).exp())  # noqa: E731
    run = torch.compile(fn, backend=tcompile, fullgraph=True, options={"code": "triton"})
    torch.testing.assert_close(run(x), fn(x), rtol=1e-3, atol=1e-3)


def test_cpu_float32_cumsum_accumulates_in_double() -> None:
    x = torch.full((100_000,), 0.1)
    found = torch.compile(lambda x: x.cumsum(0), backend=tcompile)(x)
    assert torch.equal(found, x.cumsum(0))


def test_scan_fuses_with_its_neighbours() -> None:
    def kernels(fn: Callable[[Tensor], Tensor]) -> list[Kernel]:
        return list(compiler.open(fn, numbers(8, 64)).fused.kernels)

    assert len(kernels(lambda x: x.exp().cumsum(-1) * 2)) == 1
    assert len(kernels(lambda x: x.cumsum(-1) / x.sum(-1, keepdim=True))) == 1
    assert len(kernels(lambda x: x.cumsum(0) + x.cumsum(1))) == 2


def test_scans_in_opposite_orders_are_not_fused() -> None:
    opened = compiler.open(lambda x: (x.cumsum(-1), x.flip(-1).cumsum(-1)), numbers(8, 64))
    assert len(opened.fused.kernels) == 2


def test_unsupported_dtype_raises_as_in_eager() -> None:
    with pytest.raises(RuntimeError, match="not implemented for 'Bool'"):
        torch.compile(lambda x: x.cumsum(0, dtype=torch.bool), backend=tcompile)(torch.ones(4, dtype=torch.bool))


def test_scan_too_long_for_one_multiprocessor_is_extern() -> None:
    def kernels(length: int) -> int:
        return len(compiler.open(lambda x: x.cumsum(0), numbers(length)).on("h200").fused.kernels)

    assert kernels(2**16) == 1
    assert kernels(2**16 + 1) == 0
