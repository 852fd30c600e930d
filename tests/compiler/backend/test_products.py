"""Matmuls with sizes that are slow in libraries are padded, and compute the same."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.nn import functional

from compiler import open as opened
from compiler.backend.ir import Extern, Program, strided_views
from compiler.backend.ir.reference_interpreter import interpret
from compiler.backend.lower import library_calls
from compiler.torch_api.fx import value_of

VOCABULARY = 30522


def head(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy((x @ weight.t()).float(), target)


def sizes(program: Program) -> list[list[tuple[int | None, ...]]]:
    """The sizes of the operands of each matmul."""
    calls = [step for step in program.steps if isinstance(step, Extern) and "mm" in step.name]
    return [[tuple(size.constant for size in view.shape) for view in strided_views(call.args)] for call in calls]


@cache
def graphs(dtype: torch.dtype, gpu: str = "h200", rows: int = 512) -> list[Program]:
    with FakeTensorMode():
        x, weight = (torch.empty(count, 768, dtype=dtype, requires_grad=True) for count in (rows, VOCABULARY))
        call = opened(head, x, weight, torch.zeros(rows, dtype=torch.int64))
        return [graph.stages.last for graph in (call.on(gpu) if gpu else call).graphs]


def test_vocabulary_matmuls_are_padded_forward_and_backward() -> None:
    forward, backward = graphs(torch.bfloat16)
    assert sizes(forward) == [[(512, 768), (768, 30528)]]
    assert sorted(sizes(backward)) == [[(512, 30528), (30528, 768)], [(30528, 512), (512, 768)]]


def test_gradient_is_padded_once_without_copying_results() -> None:
    _, backward = graphs(torch.bfloat16)
    padded = [name for kernel in backward.kernels for name in kernel.targets if name.endswith(("_left", "_right"))]
    assert len(padded) == 2
    assert {view.buffer for view in strided_views(backward.outputs)} == {"mm_1_padded", "mm_2"}
    assert not any(target in ("mm_1", "mm_2") for kernel in backward.kernels for target in kernel.targets)


def low(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """Logits of a vocabulary with a bias, and with weights cast to bfloat16."""
    scores = functional.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    return functional.cross_entropy(scores.float(), target)


def test_producer_writes_padded_buffer_and_readers_use_it() -> None:
    """The saved bfloat16 weight is a view of the padded weight's first rows.

    The gradient has the matmul's padded rows, and the bias' gradient sums it.
    """
    with FakeTensorMode():
        given = (torch.empty(shape, requires_grad=True) for shape in ((512, 768), (VOCABULARY, 768), (VOCABULARY,)))
        call = opened(low, *given, torch.zeros(512, dtype=torch.int64)).on("h200")
    forward, backward = (graph.stages.last for graph in call.graphs)
    (product,) = (step for step in forward.steps if isinstance(step, Extern) and step.name == "aten.addmm.default")
    weights = product.args[2].buffer
    assert weights in forward.returned
    assert [forward.by_name[name].shape[0].constant for name in forward.by_name if name.endswith("_right")] == [30528]
    views = [view for step in backward.steps if isinstance(step, Extern) for view in strided_views(step.args)]
    (gradient,) = {view.buffer for view in views if view.buffer.endswith("_left")}
    sums = [kernel for kernel in backward.kernels if kernel.reduced and kernel.ranges and gradient in kernel.reads]
    assert [kernel.ranges[-1].size.constant for kernel in sums] == [VOCABULARY]
    scores = [name for name in backward.inputs if backward.by_name[name].strides[:1] and 30528 in (
        stride.constant for stride in backward.by_name[name].strides)]  # fmt: skip
    assert len(scores) == 1, "they lie as the product left them"
    readers = [kernel for kernel in backward.kernels if scores[0] in kernel.reads]
    assert [gradient in kernel.writes for kernel in readers] == [True], "and are read once"
    assert "one term" in [decision.verdict for decision in call.graphs[1].decisions]


def test_useless_padding_is_skipped() -> None:
    assert sizes(graphs(torch.float32)[0]) == [[(512, 768), (768, VOCABULARY)]], "float32 is no TF32"
    assert sizes(graphs(torch.bfloat16, gpu="")[0]) == [[(512, 768), (768, VOCABULARY)]], "on a CPU"
    assert sizes(graphs(torch.bfloat16, rows=4)[0]) == [[(4, 768), (768, VOCABULARY)]], "little work"


def made_up(node: Node) -> Tensor:
    meta = value_of(node)
    return (
        torch.randint(0, 2, meta.shape).to(meta.dtype)
        if meta.dtype == torch.bool
        else torch.randn(meta.shape, dtype=meta.dtype)
    )


def test_padded_matmuls_match_unpadded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on the CPU as if it were a GPU."""
    torch.manual_seed(0)
    model = nn.Linear(51, 1003, dtype=torch.bfloat16)
    x = torch.randn(37, 51, dtype=torch.bfloat16, requires_grad=True)
    monkeypatch.setattr(library_calls, "_unit", lambda _meta: 8)
    monkeypatch.setattr(library_calls, "_pays", lambda *_: True)
    call = opened(lambda x: model(x).relu(), x)
    for graph in call.graphs:
        assert any("padded" in name for name in graph.stages.last.by_name)
        given = [made_up(node) for node in graph.captured.module.graph.find_nodes(op="placeholder")]
        made = interpret(graph.stages.last, list(given))
        expected = graph.captured.module(*given)
        for mine, other in zip(made, expected, strict=True):
            if isinstance(other, Tensor):
                assert mine.shape == other.shape
                torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02)


def calls(program: Program) -> list[str]:
    return [step.name if isinstance(step, Extern) else "kernel" for step in program.steps]


def test_bias_is_fused_into_the_matmul_reader() -> None:
    layer, x = nn.Linear(48, 64).requires_grad_(False), torch.randn(32, 48)
    call = opened(lambda x: layer(x).relu() * 2, x)
    assert calls(call.lowered) == ["aten.mm.default", "kernel", "kernel", "kernel"]
    assert calls(call.graph.stages.last) == ["aten.mm.default", "kernel"]
    rows = opened(lambda x: layer(x.view(2, 16, 48)).relu(), x)  # the matmul's rows are viewed as 2 x 16
    assert calls(rows.graph.stages.last) == ["aten.mm.default", "kernel"]
    given = {(64, 48): layer.weight, (64,): layer.bias, (32, 48): x}
    shapes = [value_of(node).shape for node in call.graph.captured.module.graph.find_nodes(op="placeholder")]
    found = interpret(call.lowered, [given[tuple(shape)] for shape in shapes])
    torch.testing.assert_close(found, [layer(x).relu() * 2])


def test_bias_stays_in_addmm_without_a_matching_reader() -> None:
    layer, x = nn.Linear(48, 64).requires_grad_(False), torch.randn(32, 48)
    low = nn.Linear(48, 64, dtype=torch.bfloat16).requires_grad_(False)
    assert calls(opened(layer, x).lowered) == ["aten.addmm.default"]
    assert calls(opened(lambda x: layer(x).view(-1, 8), x).lowered) == ["aten.addmm.default"]
    assert calls(opened(lambda x: layer(x) @ x.repeat(2, 1), x).lowered)[0] == "aten.addmm.default"
    assert calls(opened(lambda x: low(x).relu(), x.bfloat16()).lowered) == ["aten.addmm.default", "kernel"]


def padded(x: Tensor, weight: Tensor, both: bool = False) -> tuple[Tensor, ...]:
    """A value that the user pads for a matmul, and that others read."""
    y = x.sin()
    wide = functional.pad(y, (0, 0, 0, 3))
    return (wide @ weight, y.sum(0), y * 2, wide) if both else (wide @ weight, y.sum(0), y * 2)


def test_padded_operand_is_computed_once_unless_returned() -> None:
    x, weight = torch.randn(37, 51), torch.randn(51, 20)
    for both in (False, True):
        call = opened(padded, x, weight, both)
        verdicts = [decision.verdict for decision in call.graph.decisions]
        assert ("padded" in verdicts) is not both
        torch.testing.assert_close(call.run(), padded(x, weight, both))
