"""Data-dependent sizes and numbers: the graph is split where they become known, and its parts are compiled."""

# ruff: noqa: ARG005 every function is given all that it may need

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional

import compiler
from compiler.backend import tcompile

ASKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "put by a mask": lambda x, v: torch.index_put(x, (x > 0,), v) * 2,
    "stored by a mask": lambda x, v: (y := x.clone()).masked_fill(x > 1, 0) + y.index_put_((x > 0,), v),
    "picked by a mask": lambda x, v: x[x > 0].sin() * 2,
    "rows times columns": lambda x, v: (x[x[:, 0] > 0] @ x.t()).relu().sum(1) + 1,
    "columns": lambda x, v: x[:, x[0] > 0].exp().softmax(-1).sum(0),
    "a number": lambda x, v: x * x.sum().item() + v[:, None],
    "a size": lambda x, v: torch.zeros(int(x.abs().sum().long().item()) % 7 + 2) + x.sum(),
    "places": lambda x, v: torch.nonzero(x > 0).sum(0) + 1,
    "places by dimension": lambda x, v: torch.stack(torch.where(x > 0)) * 2,
    "a mean of some": lambda x, v: x.masked_select(x > 0.5).cos().mean() * x,
    "rows repeated": lambda x, v: x.repeat_interleave((x[:, 0] > 0).long() + 1, 0).sin(),
    "some rows by another function": lambda x, v: x.index_add(0, torch.nonzero(v > 0)[:, 0], x[v > 0].tanh() * 2),
    "none": lambda x, v: x[x > 100].sin().sum() + x[x > 100].numel() + x,
    "rows of none": lambda x, v: functional.layer_norm(x[x[:, 0] > 100].softmax(-1), (4,)),
    "different ones": lambda x, v: x.detach().round().unique() * v[:1],
}
IN_KERNELS = ("columns", "a number", "a size", "some rows by another function", "none")
"""Of each kind of kernel one: data say the size of its rows or of itself, a number, or its indices; it has no rows."""


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    """Let TorchDynamo capture data-dependent operations; otherwise they are graph breaks."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        torch.compiler.reset()
        yield


def numbers(rows: int) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 4, generator=make), torch.randn(rows, generator=make)[:1].expand(rows).clone()


def results(fn: Callable[[Tensor, Tensor], Any], rows: int, single: bool) -> list[Any]:
    x, v = (value.requires_grad_() for value in numbers(rows))
    found = fn(x, v[:1] if single else v)
    if not found.requires_grad:
        return [found]
    return [found, *torch.autograd.grad((found * 1.5).sum(), (x, v), allow_unused=True)]


@pytest.mark.parametrize(
    ("what", "code"), [*((name, "") for name in ASKED), *((name, "triton") for name in IN_KERNELS)]
)
def test_results_and_gradients_match_eager(what: str, code: str) -> None:
    fn, single = ASKED[what], what.endswith("by a mask")
    run = torch.compile(fn, backend=tcompile, fullgraph=True, options={"code": code} if code else {})
    for rows in (6, 6, 9):
        torch.testing.assert_close(results(run, rows, single), results(fn, rows, single), equal_nan=True)


def test_input_mutation_happens_in_the_last_graph() -> None:
    def step(x: Tensor) -> Tensor:
        picked = x[x > 0]
        x.mul_(2).add_(picked.sum())
        return picked + 1

    (ours, _), (theirs, _) = numbers(5), numbers(5)
    with torch.no_grad():
        found = torch.compile(step, backend=tcompile, fullgraph=True)(ours)
        torch.testing.assert_close([found, ours], [step(theirs), theirs])


def test_data_dependent_graphs_name_what_splits_them() -> None:
    opened = compiler.open(lambda x: x[x.sin() > 0].exp().sum() * 2, numbers(6)[0])
    assert [graph.name for graph in opened.graphs] == ["inference", "inference_2"]
    decisions = opened.graphs[1].decisions
    assert any("aten.index.Tensor" in decision.why and "as data say" in decision.why for decision in decisions)


def counted(x: Tensor) -> tuple[int, Tensor]:
    """A function with a Python number that the code of a later part may depend on."""
    found: tuple[int, Tensor] = while_loop(lambda i, _y: i < 4, lambda i, y: (i + 1, y.tanh() * 2), (0, x.sin()))
    return found


def test_unread_loop_counter_divides_nothing() -> None:
    opened = compiler.open(lambda x: counted(x)[1] + 1, numbers(6)[0])
    assert len(opened.graphs) == 1
    assert "[None, while_loop_1] = while_loop(" in str(opened.lowered)
    assert torch.equal(opened.run(), counted(numbers(6)[0])[1] + 1)


@pytest.mark.parametrize("scaled", [False, True])
def test_read_loop_counter_divides_the_graph(scaled: bool) -> None:
    def fn(x: Tensor) -> tuple[int, Tensor]:
        count, y = counted(x)
        return count, y * count if scaled else y

    x = numbers(6)[0]
    count, found = torch.compile(fn, backend=tcompile, fullgraph=True)(x)
    assert (count, fn(x)[0]) == (4, 4)
    torch.testing.assert_close(found, fn(x)[1])
    opened = compiler.open(fn, x)
    assert len(opened.graphs) == 1 + scaled
    assert any("while_loop: what it gives" in decision.why for decision in opened.graphs[-1].decisions)
    assert "_graph_0" not in str(opened.lowered)


def test_other_data_dependent_sizes_do_not_recompile() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def counting(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return tcompile(module, inputs)

    run = torch.compile(lambda x: x[x > 0.1].exp() * 2, backend=counting, fullgraph=True)
    for seed in range(4):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(run(x), x[x > 0.1].exp() * 2)
    assert len(graphs) == 1


def test_size_marked_unbacked_compiles_once() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def counting(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return tcompile(module, inputs)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).softmax(-1).sum(0) + x.sum()

    run, w = torch.compile(fn, backend=counting, fullgraph=True), torch.randn(4, 3, requires_grad=True)
    for rows in (5, 7, 1, 0):
        x, _ = numbers(rows) if rows else (torch.randn(0, 4), None)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        ours, theirs = run(x, w), fn(x, w)
        torch.testing.assert_close(
            [ours, *torch.autograd.grad(ours.sum(), w)], [theirs, *torch.autograd.grad(theirs.sum(), w)]
        )
    assert len(graphs) == 1
