"""Operators that AOTAutograd has traced before are copied, and the graphs are the same as torch's own traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from compiler.backend.torch_glue import compiling, traced_again
from compiler.torch_api import fx
from compiler.torch_api.aot import Call, Compile, mark_boxed, with_backward

Copied = list[str]


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "FEW", 0)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Copied:
    """The operators that were copied."""
    found: Copied = []
    again = traced_again._replay

    def noted(known: Any, tracer: Any, inputs: Any) -> Any:
        found.append(str(known.steps[-1].target) if known.steps else "")
        return again(known, tracer, inputs)

    monkeypatch.setattr(traced_again, "_replay", noted)
    return found


def graphs(function: Callable[..., Any], *args: Tensor, dynamic: bool | None = None) -> dict[str, GraphModule]:
    """The graphs that AOTAutograd passes to the compiler: forward, backward or inference."""
    torch._dynamo.reset()
    found: dict[str, GraphModule] = {}

    def kept(name: str) -> Compile:
        def compiled(module: GraphModule, inputs: Sequence[Any]) -> Call:
            found[name] = module
            return mark_boxed(lambda values: torch.fx.Interpreter(module).boxed_run(values))

        return compiled

    def compiler(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with with_backward():
            return compiling.compile_with_autograd(module, inputs, kept("forward"), kept("backward"), kept("inference"))

    torch.compile(function, backend=compiler, dynamic=dynamic)(*args)
    return found


def traced(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *args: Tensor, **how: Any) -> Any:
    """The same without copies."""
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "copy_known_traces", nullcontext)
        return graphs(function, *args, **how)


def described(module: GraphModule) -> list[Any]:
    """All facts of a graph's nodes; each memory is identified by its first node."""
    first: dict[int, int] = {}

    def value(tensor: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return repr(tensor)
        storage = tensor.untyped_storage()
        number = first.setdefault(storage._cdata, len(first))
        bytes_ = str(storage.nbytes())
        flags = tensor.requires_grad, tensor.is_conj(), str(torch._C._dispatch_keys(tensor)), sorted(vars(tensor))
        return repr(tensor), tensor.stride(), tensor.storage_offset(), number, bytes_, flags

    start = min((node.meta["seq_nr"] for node in module.graph.nodes if "seq_nr" in node.meta), default=0)

    def said(node: Node) -> dict[str, str]:
        meta = {**node.meta, "seq_nr": node.meta["seq_nr"] - start} if "seq_nr" in node.meta else node.meta
        return {key: repr(known) for key, known in meta.items() if key not in ("val", "from_node")}

    return [
        (
            node.name, str(node.target), str(node.args), str(node.kwargs), said(node),
            [name for name, _ in fx.sources(node)], [value(leaf) for leaf in tree_leaves(fx.value_of(node))],
        )
        for node in module.graph.nodes
    ]  # fmt: skip


def same(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *args: Tensor, **how: Any) -> None:
    expected = traced(monkeypatch, function, *args, **how)
    found = graphs(function, *args, **how)
    assert found.keys() == expected.keys()
    for name, module in found.items():
        for mine, torchs in zip(described(module), described(expected[name]), strict=True):
            assert mine == torchs


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + functional.hardswish(norm(convolution(x)))
        return functional.adaptive_avg_pool2d(x, 1).flatten(1)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(
    ("model", "size"), [(transformer, (2, 8, 16)), (Pictures, (2, 4, 8, 8))], ids=["transformer", "pictures"]
)
def test_graphs_match_those_torch_traces(
    monkeypatch: pytest.MonkeyPatch, copied: Copied, model: Callable[[], nn.Module], size: tuple[int, ...], grad: bool
) -> None:
    made, x = model().train(grad), torch.randn(size)
    with torch.set_grad_enabled(grad):
        same(monkeypatch, made, x)
    assert len(copied) >= (15 if grad else 1), "the second layer; in inference one operator may be a whole layer"


def test_operator_with_equal_layout_arguments_is_copied(copied: Copied) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    graphs(lambda x, y: (functional.gelu(x), functional.gelu(y)), x, y)
    assert copied == ["aten.mul.Tensor"], "the last of a GELU's nodes"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, y: (x.atan2(y), x.atan2(x)), "one tensor twice is not two"),
        (lambda x, y: (x * 0.0, y * -0.0), "zeros of either sign are equal"),
        (lambda x, y: (x + 1, y + 1.0, (x > 0) + True), "so are numbers of any type"),
        (lambda x, y: (x.sum(1), y.t().sum(1), y.double().sum(1)), "sizes, strides, dtypes"),
        (lambda x, y: (x[:, :2].contiguous(), y[:, 1:3].contiguous()), "offsets, and results that are views"),
        (lambda x, y: (x.sin().view(-1), y.sin().view(-1), x.expand(2, 4, 6)), "views"),
        (lambda x, y: (functional.dropout(x, 0.0), functional.dropout(y, 0.0)), "results that are arguments"),
        (
            lambda x, y: (torch.var_mean(x, 0), torch.var_mean(y, 0), x.sort(), y.sort()),
            "several results",
        ),
        (lambda x, y: (x.split(2), y.split(2), x.unbind(), y.unbind()), "lists of them"),
        (lambda x, y: (x.clone().add_(1).mul_(2), y.clone().add_(1).mul_(2)), "changes of copies"),
        (lambda x, y: (x.add_(1), y.add_(1), x.t().mul_(2), y.t().mul_(2)), "changes of arguments"),
        (lambda x, y: (torch.tensor(3.0) * x, torch.tensor(4.0) * y), "constants"),
        (lambda x, y: (torch.rand_like(x), torch.rand_like(y)), "random numbers"),
    ],
    ids=lambda case: case.replace(" ", "-").replace(",", "") if isinstance(case, str) else "",
)
def test_different_arguments_are_traced(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], why: str
) -> None:
    same(monkeypatch, function, torch.randn(4, 6), torch.randn(4, 6))
    x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    same(monkeypatch, lambda x, y: function(x.sin(), y.sin()), x, y)


def test_copied_results_have_separate_memory() -> None:
    made = graphs(lambda x, y: (x.sin(), y.sin()), torch.randn(4), torch.randn(4))["inference"]
    sines = [fx.value_of(node) for node in made.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)]
    assert len({value.untyped_storage()._cdata for value in sines}) == len({id(value) for value in sines}) == 2


def test_symbolic_sizes_are_always_traced(monkeypatch: pytest.MonkeyPatch, copied: Copied) -> None:
    same(monkeypatch, lambda x, y: (x.softmax(-1), y.softmax(-1)), torch.randn(4, 6), torch.randn(4, 6), dynamic=True)
    assert not copied


def test_non_aten_operators_are_traced(copied: Copied) -> None:
    @torch.library.custom_op("tcompile_traced_again::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    shapes = []

    @twice.register_fake
    def _(x: Tensor) -> Tensor:
        shapes.append(x.shape)
        return torch.empty_like(x)

    graphs(lambda x, y: (twice(x), twice(y)), torch.randn(4), torch.randn(4))
    assert not copied


def test_autocast_dtype_is_part_of_the_cache_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def cast(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            first = x @ y
        with torch.autocast("cpu", torch.float16):
            second = x @ y
        return first, second, x @ y

    same(monkeypatch, cast, torch.randn(6, 6), torch.randn(6, 6))


def test_small_graph_is_not_remembered(monkeypatch: pytest.MonkeyPatch, copied: Copied) -> None:
    x = torch.randn(4, 8)
    graphs(lambda x: x.softmax(1).softmax(1), x)
    assert copied
    copied.clear()
    monkeypatch.setattr(compiling, "FEW", 24)
    graphs(lambda x: x.softmax(1).softmax(1), x)
    assert not copied
