"""Scatter-add: loops that add at indices from a tensor, in C++, in Triton's interpreter and in ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import compiler
from compiler.backend import tcompile
from compiler.backend.ir import Extern, Kernel, Program
from compiler.backend.ir.expr import Put
from compiler.backend.passes.context import Context
from compiler.backend.passes.verify import BrokenProgramError, verify
from compiler.backend.triton.emit import emit

IDS = torch.tensor([[6, 0, 3, 3], [1, 1, 1, 5]])
PICKED = torch.tensor([0, 1, 1, -1]), torch.tensor([[0], [1]])
Scatter = Callable[[torch.Tensor], torch.Tensor]


def rows_of(x: Tensor, *rows: int) -> Tensor:
    return torch.tensor(rows, device=x.device)


SCATTERS: dict[str, Scatter] = {
    "rows of an embedding": lambda x: functional.embedding(IDS, x.view(8, 9), padding_idx=3).sin(),
    "elements by two indices": lambda x: x[PICKED[0], :, PICKED[1]].cos(),
    "gathered": lambda x: x.gather(1, IDS.view(2, 4, 1).expand(2, 4, 4) % 3),
    "interpolated": lambda x: functional.interpolate(x[None], scale_factor=2).sin(),
    "interpolated between": lambda x: functional.interpolate(x[None], size=(5, 9), mode="bilinear").sin(),
    "messages on a graph": lambda x: x.new_zeros(9, 3, 4).index_add(0, rows_of(x, 1, 1, 8, 0, 4, 2), x.exp()),
    "onto other values": lambda x: x.cos().scatter_add(0, (x > 0).long(), x * 2),
    "counted": lambda x: x.new_zeros(5).index_add(0, rows_of(x, 0, 1, 1, 3), x.new_ones(4)) * x.sum(),
    "one of each row": lambda x: x.scatter(1, x.new_ones(6, 1, 4).long(), 2.0) + x,
    "one of each row, from a tensor": lambda x: x.scatter(1, x.new_ones(6, 1, 4).long(), x[:, :1].exp()),
    "rows replaced": lambda x: x.index_copy(0, rows_of(x, 4, 0, 1), x[:3] * 2) + x,
    "rows filled": lambda x: x.index_fill(1, rows_of(x, 2, 0), 3.0).sin(),
    "elements replaced by two indices": lambda x: x.index_put(PICKED, x[0, 0].exp()),
    "several of each row replaced": lambda x: x.scatter(0, IDS[:, :3, None].expand(2, 3, 4) % 3 + 1, 2.0) * x,
    "replaced by a mask": lambda x: x.index_put((x > 0,), x.new_zeros(())).cos(),
    "replaced by a mask of rows": lambda x: x.index_put((x[:, 0, 0] > 0,), x.new_ones(())) * x,
    "cross entropy": lambda x: functional.cross_entropy(x.view(6, 12), rows_of(x, 0, 1, -100, 11, 3, 3)),
}


def together(given: Sequence[Tensor]) -> list[Tensor]:
    return [scatter(x) for scatter, x in zip(SCATTERS.values(), given, strict=True)]


def both(call: Callable[[Sequence[Tensor]], list[Tensor]], x: Tensor) -> list[Tensor]:
    """The results and their gradients."""
    given = [x.clone().requires_grad_() for _ in SCATTERS]
    found = call(given)
    return [*found, *torch.autograd.grad([one.square().sum() for one in found], given)]


@pytest.mark.parametrize("options", [{}, {"interpret": True}, {"code": "triton"}], ids=["C++", "interpreted", "Triton"])
def test_results_and_gradients_match_eager(options: dict[str, Any]) -> None:
    torch.compiler.reset()
    x = torch.randn(6, 3, 4)
    compiled = torch.compile(together, backend=tcompile, fullgraph=True, options=options)
    torch.testing.assert_close(both(compiled, x), both(together, x))


def test_low_precision_accumulates_in_float32_and_rounds_once() -> None:
    x = torch.randn(4000).bfloat16()
    rows = torch.arange(4000) % 3

    def summed(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(3).index_add(0, rows, x)

    exact = summed(x.double())
    found = torch.compile(summed, backend=tcompile)(x)
    torch.testing.assert_close(found, exact.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64])
def test_scatter_of_other_dtypes(dtype: torch.dtype) -> None:
    x, rows = torch.arange(12).view(3, 4).to(dtype), torch.tensor([1, 1, 0])
    fn = lambda x: x.index_add(0, rows, x)  # noqa: E731
    assert torch.equal(torch.compile(fn, backend=tcompile)(x), fn(x))


def test_index_out_of_range_raises_as_in_eager() -> None:
    add = torch.compile(lambda x, rows: x.index_put((rows,), x.new_ones(3), accumulate=True), backend=tcompile)
    assert torch.equal(add(torch.zeros(4), torch.tensor([0, -1, 0])), torch.tensor([2.0, 0, 0, 1]))
    with pytest.raises(IndexError, match="out of range"):
        add(torch.zeros(4), torch.tensor([0, 4, 0]))
    put = torch.compile(lambda x, rows: x.scatter(1, rows, 1.0), backend=tcompile)
    with pytest.raises(IndexError, match="out of range"):
        put(torch.zeros(2, 3), torch.tensor([[1], [3]]))


@pytest.mark.parametrize("options", [{}, {"code": "triton"}], ids=["C++", "Triton"])
@pytest.mark.parametrize("name", ["index_select", "index_add", "index_copy"])
def test_negative_indices_are_out_of_range(name: str, options: dict[str, Any]) -> None:
    torch.compiler.reset()

    def fn(x: Tensor, rows: Tensor) -> Tensor:
        return getattr(x, name)(0, rows, *(() if name == "index_select" else (x[:2] + 1,)))

    pick, x = torch.compile(fn, backend=tcompile, fullgraph=True, options=options), torch.randn(4, 3)
    assert torch.equal(pick(x, torch.tensor([3, 0])), fn(x, torch.tensor([3, 0])))
    for rows in (torch.tensor([0, -1]), torch.tensor([4, 0])):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            fn(x, rows)
        with pytest.raises(IndexError, match="out of range"):
            pick(x, rows)


@pytest.mark.parametrize("options", [{}, {"interpret": True}, {"code": "triton"}], ids=["C++", "interpreted", "Triton"])
def test_index_fill_and_copy_of_any_dtype(options: dict[str, Any]) -> None:
    torch.compiler.reset()

    def fn(given: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
        filled = [y for x in given for y in (x.index_fill(0, rows, 1), x.t().index_fill(1, rows, 0))]
        return [*filled, *(x.index_copy(0, rows, x[: len(rows)]) for x in given)]

    put = torch.compile(fn, backend=tcompile, dynamic=True, fullgraph=True, options=options)
    for shape, rows in (((5, 3), [4, 1]), ((9, 4), [0, 3, 8]), ((4, 0), [1, 2]), ((3, 2), [])):
        x, places = (torch.arange(shape[0] * shape[1]) % 5).view(shape), torch.tensor(rows).long()
        given = [x.to(dtype) for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.int64)]
        assert all(map(torch.equal, put(given, places), fn(given, places)))


FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "a transposed tensor": lambda x: x.t().index_fill(1, rows_of(x, 1, -1), 2),
    "its clone": lambda x: x.t().clone().index_fill_(0, rows_of(x, 0, 2), 3),
    "with a tensor": lambda x: x.t().index_fill(0, rows_of(x, 0), x.new_tensor(7)),
    "every other row": lambda x: x[::2].index_fill(-1, rows_of(x, 1, 1), 0),
    "what repeats itself": lambda x: x[:1].expand(4, 3).index_fill(0, rows_of(x, 3), 5),
    "one number": lambda x: x[0, 0].index_fill(0, rows_of(x, 0), 9),
    "nothing": lambda x: x[:0].index_fill(1, rows_of(x, 1), 1),
}


def test_index_fill_in_any_layout() -> None:
    """AOTAutograd refuses torch 2.11's own decomposition if the rows are not contiguous."""
    x = torch.arange(15).view(5, 3)
    found = torch.compile(lambda x: [fill(x) for fill in FILLS.values()], backend=tcompile, fullgraph=True)(x)
    for name, fill, ours in zip(FILLS, FILLS.values(), found, strict=True):
        torch.testing.assert_close(ours, fill(x), check_stride=True, msg=lambda what, name=name: f"{name}: {what}")


def test_last_duplicate_index_wins_on_cpu() -> None:
    x, rows = torch.zeros(3), torch.tensor([1, 2, 1, 1])
    values = torch.tensor([1.0, 2, 3, 4])
    found = torch.compile(lambda x, rows, values: x.index_put((rows,), values), backend=tcompile)(x, rows, values)
    assert found.tolist() == [0, 4, 2]


def test_replacing_scatter_prints_and_stores() -> None:
    opened = compiler.open(lambda x, rows: x.index_fill(0, rows, 1.0), torch.ones(5, 3), torch.tensor([1, 2]))
    assert not any(isinstance(step, Extern) for step in opened.scheduled.steps)
    assert "] = 1.0" in str(opened.lowered)
    assert "tl.atomic_add" not in emit(opened.scheduled, Context(processors=132)).text


def test_sizes_may_change_and_be_zero() -> None:
    fn = lambda x, rows: x.new_zeros(5, x.shape[1]).index_add(0, rows, x)  # noqa: E731
    add = torch.compile(fn, backend=tcompile, dynamic=True, fullgraph=True)
    for count, width in ((4, 3), (9, 2), (0, 3)):
        x, rows = torch.randn(count, width), torch.arange(count) % 5
        torch.testing.assert_close(add(x, rows), fn(x, rows))


@pytest.mark.parametrize("positions", [(3, -1, 0, 2, -4), (-1, 3, -2, 0)])
def test_select_scatter_positions_may_be_negative(positions: tuple[int, ...]) -> None:
    torch.compiler.reset()

    def fn(x: Tensor, k: int) -> list[Tensor]:
        return [x.select_scatter(x[0] + 9, 1, k), x.select(0, k) * 2, x[k:] + k, x.roll(k, 1), x.tril(k) + 1]

    run, x = torch.compile(fn, backend=tcompile, dynamic=True, fullgraph=True), torch.randn(5, 5)
    for k in positions:
        torch.testing.assert_close(run(x, k), fn(x, k))


def test_index_add_mutates_an_input() -> None:
    def step(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        x.index_add_(0, rows, x[:2] * 2)
        return x.sum()

    ours, theirs, rows = torch.ones(4, 3), torch.ones(4, 3), torch.tensor([1, 1])
    torch.testing.assert_close([torch.compile(step, backend=tcompile)(ours, rows), ours], [step(theirs, rows), theirs])


def test_cross_entropy_backward_is_one_kernel() -> None:
    logits, ids = torch.randn(6, 50, requires_grad=True), torch.randint(0, 50, (6,))
    backward = compiler.open(functional.cross_entropy, logits, ids).backward.fused
    assert not any(isinstance(step, Extern) for step in backward.steps)
    assert sum("over i0 < 6; r1 < 50" in str(kernel) for kernel in backward.kernels) == 1


def test_gpu_index_add_fuses_with_its_producer(gpu_programs: list[Program]) -> None:
    def messages(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin() * 2
        return x.new_zeros(5, 4).index_add(0, rows, y), y.sum(1), y.new_zeros(7).index_add(0, rows, y.sum(1))

    x, rows = torch.randn(64, 4), torch.arange(64) % 5
    torch.testing.assert_close(torch.compile(messages, backend=tcompile)(x, rows), messages(x, rows))
    (adding,) = (kernel for kernel in gpu_programs[0].kernels if kernel.taken)
    assert len(adding.taken) == 2
    lines = emit(gpu_programs[0], Context(processors=132)).text.splitlines()
    assert any("tl.atomic_add(" in line and "index_add_ptr + " in line for line in lines)


def test_deterministic_scatter_is_extern() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        opened = compiler.open(lambda x: x.new_zeros(2).index_add(0, torch.tensor([0, 0]), x), torch.ones(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert any("in no order" in decision.why for decision in opened.graph.decisions)


def scheduled() -> Program:
    rows = torch.tensor([1, 1, 0])
    return compiler.open(lambda x, rows: x.cos().index_add(0, rows, x.sin()).exp(), torch.ones(3, 4), rows).scheduled


def test_accumulating_loop_prints_its_target() -> None:
    text = str(scheduled())
    assert "index_add = index_add_start, [at(" in text
    assert "+= sin[i0, i1]" in text
    assert "memory: index_add takes over index_add_start" in text


def changed(change: Callable[[Kernel], Kernel]) -> Program:
    """The program with a changed scatter-add kernel."""
    program = scheduled()
    return replace(program, steps=tuple(change(k) if isinstance(k, Kernel) and k.taken else k for k in program.steps))


def with_put(change: Callable[[Put], Put]) -> Program:
    def inside(kernel: Kernel) -> Kernel:
        (loop,) = kernel.loops
        assert isinstance(loop.value, Put)
        return replace(kernel, loops=(replace(loop, value=change(loop.value)),))

    return changed(inside)


def read_after() -> Program:
    program = scheduled()
    (adding,) = (kernel for kernel in program.kernels if kernel.taken)
    return replace(program, steps=(*program.steps, replace(adding, name="again")), frees=())


BROKEN: dict[str, tuple[Callable[[], Program], str]] = {
    "adding to an input": (lambda: with_put(lambda put: replace(put, onto="arg0_1")), "without reusing its memory"),
    "a coordinate too few": (lambda: with_put(lambda put: replace(put, index=put.index[:1])), "is no place"),
    "adding twice": (read_after, "after it was overwritten"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_verifier_rejects_broken_scatter(what: str) -> None:
    make, message = BROKEN[what]
    with pytest.raises(BrokenProgramError, match=message):
        verify(make())
    verify(scheduled())


def test_gradient_accumulates_once_per_expanded_index() -> None:
    """An expanded index has stride 0 along the axis that the same kernel reduces."""
    kinds = torch.tensor([[0, 1, 0, 1, 1]]).expand(3, 5)
    weight = torch.randn(2, 4, requires_grad=True)
    x = torch.randn(3, 5, 4, requires_grad=True)

    def both(x: Tensor, weight: Tensor) -> Tensor:
        h = x * 2 + functional.embedding(kinds, weight)
        return (h * h).sum()

    expected = torch.autograd.grad(both(x, weight), (x, weight))
    for options in ({}, {"code": "triton"}):
        torch._dynamo.reset()
        call = torch.compile(both, backend="tcompile", options=options)
        for mine, other in zip(torch.autograd.grad(call(x, weight), (x, weight)), expected, strict=True):
            torch.testing.assert_close(mine, other)
